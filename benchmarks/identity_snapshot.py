"""100,000 API keys on a real Postgres: load, memory, lookup, and for how long each reload holds others up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import TupleRow

from sidecar.core.model import Secret
from sidecar.identity import keys
from sidecar.identity.denials import DenyBook
from sidecar.identity.keys import KeyRing
from sidecar.identity.persist import SnapshotFile
from sidecar.identity.refresh import KeyRefresher
from tests.support.identity import seeded
from tests.support.postgres import prepare

KEYS: Final = 100_000
PAUSE_MS: Final = 5.0  # the budget (DESIGN §7)
PEPPER: Final = Secret(b"p" * 32)


def rss() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


class Timed(KeyRefresher):
    """Notes the CPU its thread takes between two moments at which it lets others have the interpreter (ms).

    That is the pause another thread sees on a machine with a core to spare; a witness thread would measure, on a busy
    one, whoever else runs there.
    """

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type] — forwarded as they are
        self.stretches: list[float] = []
        self._from = 0.0

    def _pause(self) -> None:
        self.stretches.append((time.thread_time() - self._from) * 1e3)
        super()._pause()
        self._from = time.thread_time()

    def _look(self, connection: psycopg.Connection[TupleRow]) -> None:
        self._from = time.thread_time()
        super()._look(connection)
        self.stretches.append((time.thread_time() - self._from) * 1e3)


@dataclass
class Witness:
    """What each reload takes until it is known (ms), and its longest stretch without a pause."""

    refresher: Timed
    seen: dict[str, dict[str, float]] = field(default_factory=dict)

    def __call__(self, name: str, act: Callable[[], None]) -> None:
        self.refresher.stretches.clear()
        began = time.perf_counter()
        act()
        took, stretches = time.perf_counter() - began, sorted(self.refresher.stretches) or [0.0]
        p99 = stretches[int(len(stretches) * 0.99)]
        self.seen[name] = {
            "took_ms": round(took * 1e3), "p99_ms": round(p99, 2), "longest_ms": round(stretches[-1], 2),
        }  # fmt: skip


def until(what: Callable[[], bool]) -> None:
    while not what():
        time.sleep(0.001)


def fill(dsn: str) -> bytes:
    """``KEYS`` keys; the last one's text."""
    copy = "COPY warden.api_keys (id, tenant, name, environment, secret_mac, created_at, created_by) FROM STDIN"
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor, cursor.copy(copy) as rows:
        for number in range(KEYS):
            key = keys.generate("live", seeded(number))
            mac = keys.mac(PEPPER, key.secret)
            rows.write_row((key.id, f"tenant-{number % 1000}", f"key {number}", "live", mac, "2026-01-01", "bench"))
    return key.text().encode()


def measure(dsn: str, directory: Path) -> dict[str, Any]:
    """On a database of its own, which is filled here."""
    prepare(dsn)
    last = fill(dsn)
    ring, book = KeyRing(PEPPER, "live", max_age=3600), DenyBook(max_age=3600)
    path = directory / "identity.snapshot"
    file = SnapshotFile(path, Secret(b"r" * 32), "EU live", secrets.token_bytes)
    refresher = Timed(dsn, ring, book, refresh=0.5, clock=time.time, monotonic=time.monotonic, file=file)
    witness, before = Witness(refresher), rss()

    def first() -> None:
        refresher.start()
        until(lambda: refresher.status.loads == 1)

    witness("first load", first)
    memory = rss() - before
    witness("sealing them to disk (within 5 s)", lambda: until(path.exists))
    _changes(dsn, witness)
    lookup = _lookup(ring, last)
    refresher.stop()
    restored = KeyRing(PEPPER, "live", max_age=3600)
    other = KeyRefresher(dsn, restored, refresh=1, clock=time.time, monotonic=time.monotonic, file=file)
    began = time.perf_counter_ns()
    assert other.restore() is None
    return {
        "keys": KEYS,
        "memory_mib": round(memory / 2**20, 1),
        "disk_mib": round(path.stat().st_size / 2**20, 1),
        "lookup_us": lookup,
        "start_from_disk_ms": round((time.perf_counter_ns() - began) / 1e6),
        "reloads": witness.seen,
        "longest_pause_ms": max(each["longest_ms"] for each in witness.seen.values()),
    }


def _changes(dsn: str, witness: Witness) -> None:
    refresher = witness.refresher

    def change(statement: str) -> Callable[[], None]:
        def act() -> None:
            loads = refresher.status.loads
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(statement)  # type: ignore[call-overload] — constants
            until(lambda: refresher.status.loads > loads)

        return act

    one = "WHERE id = (SELECT min(id) FROM warden.api_keys)"
    witness("one key revoked", change(f"UPDATE warden.api_keys SET revoked_at = now() {one}"))
    witness("10,000 keys changed", change("UPDATE warden.api_keys SET name = 'x' WHERE tenant LIKE 'tenant-7__'"))
    witness("all keys changed", change("UPDATE warden.api_keys SET name = 'y'"))
    witness("one key deleted: all read again", change(f"DELETE FROM warden.api_keys {one}"))
    witness("idle polls for 3 s", lambda: time.sleep(3))


def _lookup(ring: KeyRing, key: bytes) -> float:
    times, at = 20_000, time.time()
    began = time.process_time_ns()
    for _ in range(times):
        ring.identify(key, at)
    return round((time.process_time_ns() - began) / times / 1000, 2)

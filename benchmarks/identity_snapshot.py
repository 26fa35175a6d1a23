"""100,000 API keys on a real Postgres: load, memory, lookup, pauses: ``python -m benchmarks.identity_snapshot``."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from sidecar.core.model import Secret
from sidecar.identity import keys
from sidecar.identity.denials import DenyBook
from sidecar.identity.keys import KeyRing
from sidecar.identity.persist import SnapshotFile
from sidecar.identity.refresh import KeyRefresher
from tests.support.identity import seeded
from tests.support.postgres import prepare, running_server

KEYS = 100_000
PEPPER = Secret(b"p" * 32)


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


def witnessed(name: str, refresher: Timed, act: Callable[[], None]) -> None:
    refresher.stretches.clear()
    began = time.perf_counter()
    act()
    took, seen = time.perf_counter() - began, sorted(refresher.stretches) or [0.0]
    p99, longest = seen[int(len(seen) * 0.99)], seen[-1]
    print(f"{name:40} {took * 1e3:6.0f} ms; {len(seen):4} stretches, p99 {p99:.2f} ms, longest {longest:.2f} ms")


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


def main() -> None:
    with running_server() as server, tempfile.TemporaryDirectory() as directory:
        dsn = server.create_database()
        prepare(dsn)
        last = fill(dsn)
        ring, book = KeyRing(PEPPER, "live", max_age=3600), DenyBook(max_age=3600)
        file = SnapshotFile(Path(directory) / "snapshot", Secret(b"r" * 32), "EU live", secrets.token_bytes)
        refresher = Timed(
            dsn, ring, book, refresh=0.5, clock=time.time, monotonic=time.monotonic, file=file
        )  # fmt: skip
        before = rss()

        def first() -> None:
            refresher.start()
            until(lambda: refresher.status.loads == 1)

        witnessed(f"first load of {KEYS:,} keys", refresher, first)
        print(f"{'memory of them':44} {(rss() - before) / 2**20:8.1f} MiB")
        path = Path(directory) / "snapshot"
        witnessed("sealing them to disk (within 5 s)", refresher, lambda: until(path.exists))
        print(f"{'on disk':44} {path.stat().st_size / 2**20:8.1f} MiB")

        def change(statement: str) -> Callable[[], None]:
            def act() -> None:
                loads = refresher.status.loads
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute(statement)  # type: ignore[call-overload] — constants
                until(lambda: refresher.status.loads > loads)

            return act

        one = "UPDATE warden.api_keys SET revoked_at = now() WHERE id = (SELECT min(id) FROM warden.api_keys)"
        witnessed("one key revoked: until it is known", refresher, change(one))
        witnessed(
            "1,000 keys changed",
            refresher,
            change("UPDATE warden.api_keys SET name = 'x' WHERE tenant LIKE 'tenant-7__'"),
        )
        gone = "DELETE FROM warden.api_keys WHERE id = (SELECT min(id) FROM warden.api_keys)"
        witnessed("one key deleted: all read again", refresher, change(gone))
        times, at = 20_000, time.time()
        began = time.process_time_ns()
        for _ in range(times):
            ring.identify(last, at)
        print(f"{'lookup':44} {(time.process_time_ns() - began) / times / 1000:8.2f} µs")
        witnessed("idle polls for 3 s", refresher, lambda: time.sleep(3))
        refresher.stop()
        restored = KeyRing(PEPPER, "live", max_age=3600)
        other = KeyRefresher(dsn, restored, refresh=1, clock=time.time, monotonic=time.monotonic, file=file)
        began = time.perf_counter_ns()
        assert other.restore() is None
        print(f"{'a start from disk':44} {(time.perf_counter_ns() - began) / 1e6:8.0f} ms")


if __name__ == "__main__":
    main()

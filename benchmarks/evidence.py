"""The evidence: records shipped a second from a journal into Postgres, verified a second, bytes stored a call."""

from __future__ import annotations

import gc
import os
import random
import secrets
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg

from audit import store
from audit.content import ContentSealer
from audit.filekeys import FileKeys
from audit.fleet import Fleet
from audit.journal import Bounds as JournalBounds
from audit.journal import Journal, Origin
from audit.logbook import LogBook, log_signer, origin_of
from audit.poison import PoisonKeeper
from audit.ship import Parts, Shipper
from audit.vault import Vault
from audit.verify import Options, verify
from benchmarks.processes import children, ended_cpu_us
from sidecar.core.model import Secret
from sidecar.runtime import migrate
from sidecar.runtime.journal_source import JournalSource
from sidecar.runtime.shipping import collect_seldom, keep_memory
from tests.support.journal import put
from tests.support.store import completed, content

_ROOT: Final = Secret(b"b" * 32)
SUBJECTS: Final = 100  # who call, in turn: each has a data key


def measure(dsn: str, directory: Path, *, quick: bool, calls: int | None = None) -> dict[str, Any]:
    """By content size in bytes: what one process on one core does, with all that there is switched on.

    ``calls``: to catch up on, of each size. ``database_us``: CPU of Postgres a record, its own upkeep included.
    ``grown_mb``: by how much memory this process grew meanwhile, at most.
    """
    return {
        str(size): _one(dsn, directory / str(size), size, calls or (some // 5 if quick else some))
        for size, some in ((1024, 50_000), (16_384, 10_000))
    }


def _one(dsn: str, directory: Path, size: int, calls: int) -> dict[str, Any]:
    directory.mkdir(parents=True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE evidence_{size}")
    made = psycopg.conninfo.make_conninfo(dsn, dbname=f"evidence_{size}")
    engine = store.connect(made, application="warden-bench")
    migrate.upgrade(engine, jurisdiction="EU", today=datetime.now(UTC).date())
    _fill(directory / "journal", size, calls)
    shipper = _shipper(engine, directory)
    keep_memory()  # as the process does, and so is garbage looked for
    seldom, frozen = gc.get_threshold(), gc.get_freeze_count()
    collect_seldom()
    wall, cpu, database = time.perf_counter(), time.process_time(), _postgres_us()
    runner = threading.Thread(target=shipper.run)
    runner.start()
    began = most = _resident()
    while shipper.status.rows < calls or shipper.status.signed_size < calls:
        time.sleep(0.01)
        most = max(most, _resident())
    wall, cpu, database = time.perf_counter() - wall, time.process_time() - cpu, _postgres_us() - database
    shipper._stop.set()  # noqa: SLF001 — as the process does on SIGTERM
    runner.join()
    gc.set_threshold(*seldom)
    if not frozen:
        gc.unfreeze()
    found = {
        "calls": calls,
        "shipped_per_s": round(calls / wall),
        "shipped_per_cpu_s": round(calls / cpu),
        "database_us": round(database / calls, 1),
        "grown_mb": round((most - began) / 2**20, 1),
        "stored_bytes": _stored(made, calls),
        **_verified(made, calls),
    }
    engine.dispose()
    return found


def _fill(directory: Path, size: int, calls: int) -> None:
    bounds = JournalBounds(segment_bytes=2**26, max_bytes=2**34, min_free=2**26, keep_s=86400.0)
    journal = Journal.open(
        directory, _ROOT, Origin("pod-1", "eu-west-1", "EU"), bounds,
        random=secrets.token_bytes, wall_ns=time.time_ns, monotonic=time.monotonic,
    )  # fmt: skip
    assert isinstance(journal, Journal), journal
    text = random.Random(1).randbytes(size)
    for number in range(calls):
        for entry in completed(subject=f"subject {number % SUBJECTS}", prompt=content(text)):
            put(journal, entry)
    journal.close()


def _shipper(engine: Any, directory: Path) -> Shipper:
    sealer = ContentSealer(_ROOT.reveal())
    return Shipper(
        Parts(
            source=JournalSource(directory / "journal", _ROOT),
            engine=engine,
            redaction_key=sealer.redaction_key,
            vault=Vault(FileKeys(directory / "keys", secrets.token_bytes), secrets.token_bytes),
            book=LogBook(directory / "log", "pod-1", "EU", _ROOT, secrets.token_bytes),
            poison=PoisonKeeper(directory / "poison", sealer),
            directory=directory / "journal",
            sidecar="pod-1",
            region="eu-west-1",
            jurisdiction="EU",
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            chance=random.random,
            fleet=Fleet(directory / "fleet", "EU", _ROOT),
        ),
        threading.Event(),
    )


def _postgres_us() -> float:
    """CPU of the servers that this process started, of those of their processes that have ended too."""
    return sum(
        ended_cpu_us(number)
        for number in children(os.getpid())
        if Path(f"/proc/{number}/exe").resolve().name == "postgres"
    )


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _stored(dsn: str, calls: int) -> int:
    """Bytes a call: rows, their indexes and leaf hashes."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'warden' AND c.relkind = 'r' AND c.relname ~ 'audit_(calls|leaves)'"
        ).fetchone()
    assert found is not None
    return round(float(found[0]) / calls)


def _verified(dsn: str, calls: int) -> dict[str, int]:
    rates = {}
    for jobs in (1, 2):
        options = Options(
            lambda log: log_signer(_ROOT, origin_of("EU", log)).verifier, datetime.now(UTC), jobs=jobs, jobs_from=0
        )
        began = time.perf_counter()
        report = verify(dsn, options, jurisdiction="EU")
        assert report.ok, report.faults
        assert report.records >= calls
        rates[f"verified_per_s_{jobs}"] = round(calls / (time.perf_counter() - began))
    return rates

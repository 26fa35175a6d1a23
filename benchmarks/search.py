"""Looking for calls among millions: p50 and p95 of one `audit search`, by filter and by word."""

from __future__ import annotations

import itertools
import random
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from audit import store
from audit.filekeys import FileKeys
from audit.opening import Opener
from audit.search import Asker, Filter, search
from benchmarks import search_rows
from sidecar.cli.demo.postgres import THROW_AWAY, start_postgres
from sidecar.runtime import migrate

DAYS: Final = 8
QUICK_ROWS, ROWS = 50_000, 400_000
_SERVER: Final = {"wal_level": "minimal", "max_wal_senders": "0", "max_wal_size": "6GB", "shared_buffers": "1GB"}

_NOW: Final = datetime.now(UTC)

Ask = Callable[[random.Random], Filter]


def _hour(chance: random.Random) -> Filter:
    until = _NOW - timedelta(hours=chance.randrange(24 * (DAYS - 1)))
    return Filter(since=until - timedelta(hours=1), until=until)


def _subject(chance: random.Random, *, tenant: bool) -> Filter:
    one = chance.randrange(50)
    named = f"subject {one} {chance.randrange(20)}"
    return Filter(subject=named, tenant=f"tenant-{one}" if tenant else None)


def _conversation(chance: random.Random, *, tenant: bool) -> Filter:
    one = chance.randrange(50)
    named = search_rows.talk(one, chance.randrange(20), chance.randrange(4))
    return Filter(conversation=named, tenant=f"tenant-{one}" if tenant else None)


CASES: Final[Mapping[str, Ask]] = {
    "nothing but the newest": lambda _: Filter(),
    "tenant": lambda r: Filter(tenant=f"tenant-{r.randrange(50)}"),
    "tenant, nobody's": lambda _: Filter(tenant="nobody"),
    "since, until: an hour": _hour,
    "model": lambda r: Filter(model=f"model-{r.randrange(20)}"),
    "model, 1 call in 100,000": lambda _: Filter(model="retired"),
    "model, none": lambda _: Filter(model="none"),
    "outcome: completed": lambda _: Filter(outcome="completed"),
    "outcome: aborted, 1 in 10,000": lambda _: Filter(outcome="aborted"),
    "refused for MEMORY_KV, 1 in 10,000": lambda _: Filter(refused_for="MEMORY_KV"),
    "refused for what nothing was": lambda _: Filter(refused_for="REGION"),
    "would refuse, 1 in 10,000": lambda _: Filter(would_refuse="MEMORY_KV"),
    "principal": lambda r: Filter(principal=f"robot-{r.randrange(50)}-{r.randrange(5)}"),
    "principal, nobody": lambda _: Filter(principal="nobody"),
    "key": lambda r: Filter(key=f"KEY{r.randrange(2000):09d}"),
    "subject, of a tenant": lambda r: _subject(r, tenant=True),
    "subject": lambda r: _subject(r, tenant=False),
    "conversation, of a tenant": lambda r: _conversation(r, tenant=True),
    "conversation": lambda r: _conversation(r, tenant=False),
    "data class, 1 in 10,000": lambda _: Filter(data_class="phi"),
    "rule: a guard, 1 in 5,000": lambda _: Filter(rule="guards.no-cards"),
    "rule, none": lambda _: Filter(rule="guards.none"),
    "region, none": lambda _: Filter(region="mars"),
    "word, of a tenant, 24 h": lambda r: Filter(text=search_rows.word(r.randrange(200)), tenant="tenant-5"),
    "word, 24 h": lambda r: Filter(text=search_rows.word(r.randrange(200))),
    "word, 1 in 5,000 indexed": lambda _: Filter(text=search_rows.RARE),
    "word, none": lambda r: Filter(text=f"nothing{r.randrange(999)}"),
    "word, none, 8 days": lambda r: Filter(text=f"nothing{r.randrange(999)}", since=_NOW - timedelta(days=7, hours=23)),
}


def measure(directory: Path, *, quick: bool, rows: int | None = None) -> dict[str, Any]:
    """Milliseconds by case, over ``rows`` calls of eight days in a Postgres of its own."""
    rows = rows or (QUICK_ROWS if quick else ROWS)
    server = start_postgres(directory / "postgres", settings={**THROW_AWAY, **_SERVER})
    try:
        engine = store.connect(server.dsn, application="warden-bench")
        migrate.upgrade(engine, jurisdiction="EU", today=_NOW.date())
        engine.dispose()
        keys = FileKeys(directory / "keys", secrets.token_bytes)
        began = time.perf_counter()
        search_rows.load(server.dsn, keys, secrets.token_bytes, rows=rows, days=DAYS, last=_NOW.date())
        loaded = round(time.perf_counter() - began)
        print(f"bench: {rows:,} calls are there, after {loaded} s", file=sys.stderr, flush=True)
        return {"rows": rows, "load_s": loaded, **asked(server.dsn, keys, rounds=5 if quick else 10)}
    finally:
        server.stop()


def asked(dsn: str, keys: FileKeys, *, rounds: int) -> dict[str, Any]:
    """Each case ``rounds`` times, all cases in turn: whole searches, their records and what they open included."""
    engine, opener = store.connect(dsn, application="warden-bench"), Opener(keys)
    ids = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
    chance = random.Random(1)
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    found = dict.fromkeys(CASES, 0)
    for _ in range(rounds):
        for name, ask in CASES.items():
            began = time.perf_counter()
            with suppress(sa.exc.OperationalError):  # it took longer than a search may: that long counts
                page = search(engine, ask(chance), Asker("bench", _NOW, ids), opener, "EU")
                found[name] = max(found[name], len(page.found))
            taken[name].append((time.perf_counter() - began) * 1e3)
    engine.dispose()
    with psycopg.connect(dsn) as connection:
        size = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return {
        "database_mb": round(size[0] / 2**20) if size else 0,
        "ms": {
            name: {"p50": statistics.median(each), "p95": sorted(each)[int(len(each) * 0.95)], "most": found[name]}
            for name, each in taken.items()
        },
    }

"""Issue 2, "Must show" 4 and 5, whole: a kill -9 in the middle of 2,000 calls; a minute of load without Postgres.

`pytest -m long -s tests/long` prints what was measured. About four minutes a wire.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time

import pytest

from tests.support.load import Load, Seen, judge
from tests.support.postgres import Server
from tests.support.sidecar import Launch, Sidecar
from tests.support.stack import eventually

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]
CALLS = 2000
OUTAGE_S = 60.0


def shipped(sidecar: Sidecar) -> None:
    eventually(lambda: sidecar.metric("warden_ship_lag_records") == 0, what="nothing left to ship", within_s=60)


def searched(sidecar: Sidecar) -> list[dict[str, object]]:
    """All records, through the command line; content cannot be revealed for so many at once."""
    command = [sys.executable, "-m", "sidecar.cli.main", "audit", "search", "--config", str(sidecar.stack.config)]
    done = subprocess.run([*command, "--json", "--limit", "10000"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def revealed(sidecar: Sidecar, seen: list[Seen]) -> list[dict[str, object]]:
    """The records of these calls with their content, a thousand at a time at most."""
    records = sidecar.search(limit=1000, outcome="aborted") + sidecar.search(limit=1000, outcome="cancelled")
    records += sidecar.search(limit=1000, outcome="completed") + sidecar.search(limit=1000, outcome="failed")
    records += sidecar.search(limit=1000, outcome="refused")
    wanted = {call.call_id for call in seen}
    return [record for record in records if record["call_id"] in wanted]


def test_killed_in_the_middle_of_2000_calls(own: Launch) -> None:
    sidecar = own()
    load = Load(sidecar, CALLS, threads=16)
    worker = threading.Thread(target=load.run)
    began = time.monotonic()
    worker.start()
    eventually(lambda: load.done >= CALLS // 2, what="half of the calls", within_s=300)
    process = sidecar.stack.process
    assert process is not None
    killed = time.monotonic()
    process.kill()
    process.wait()
    sidecar.stack.start_warden()
    print(f"\n{sidecar.wire}: killed after {load.done} calls, ready again after {time.monotonic() - killed:.1f} s")
    worker.join()
    print(f"{CALLS} calls in {time.monotonic() - began:.0f} s")
    sidecar.settles()
    shipped(sidecar)
    records = searched(sidecar)
    ids = [record["call_id"] for record in records]
    assert len(set(ids)) == len(ids)
    assert {call.call_id for call in load.seen if call.answered} <= set(ids)
    outcomes = judge(load.seen, revealed(sidecar, load.seen), killed=[killed]).outcomes
    assert outcomes["aborted"] >= 1
    assert outcomes["refused"] > CALLS // 3
    print(f"records: {len(ids)}, of calls whose client was answered: {sum(call.answered for call in load.seen)}")


def test_postgres_stopped_for_a_minute(own: Launch, postgres: Server) -> None:
    sidecar = own()
    before = Load(sidecar, 240, seed=2)
    before.run()
    during: list[Load] = []
    postgres.stop()
    began = time.monotonic()
    try:
        while time.monotonic() - began < OUTAGE_S:
            during.append(Load(sidecar, 240, seed=len(during)))
            during[-1].run()
        assert sidecar.stack.readyz()["ready"]
    finally:
        postgres.start()
    up = time.monotonic()
    calls = [call for load in during for call in load.seen]
    assert all(call.answered or call.kind == "cancelled" for call in calls)
    assert {call.code for call in calls if call.kind in ("unary", "stream")} == {"OK"}
    for kind in ("unary", "stream", "refused"):
        was, then = (sorted(call.seconds for call in group if call.kind == kind) for group in (before.seen, calls))
        print(
            f"\n{sidecar.wire} {kind}: p50 {1000 * statistics.median(was):.1f} ms with Postgres, "
            f"{1000 * statistics.median(then):.1f} without; p99 {1000 * was[int(len(was) * 0.99)]:.1f}, "
            f"{1000 * then[int(len(then) * 0.99)]:.1f}"
        )
        assert statistics.median(then) < 2 * statistics.median(was) + 0.005
    eventually(lambda: sidecar.metric("warden_ship_database_up") == 1, what="ship to be back", within_s=60)
    shipped(sidecar)
    print(f"{len(calls)} calls during the outage; all shipped {time.monotonic() - up:.1f} s after its end")
    ids = [record["call_id"] for record in searched(sidecar)]
    assert len(set(ids)) == len(ids)
    missing = {call.call_id for call in [*before.seen, *calls] if call.call_id} - set(ids)
    assert not missing, f"{len(missing)} of {len(ids)} missing"

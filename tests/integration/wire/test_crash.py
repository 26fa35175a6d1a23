"""kill -9 in the middle of mixed load: afterwards the audit holds every answered call once, with what was delivered."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.load import Load, judge
from tests.support.sidecar import Launch
from tests.support.stack import eventually

pytestmark = pytest.mark.integration
CALLS = 300


def test_every_answered_call_is_recorded_once(own: Launch) -> None:
    sidecar = own()
    load = Load(sidecar, CALLS)
    worker = threading.Thread(target=load.run)
    worker.start()
    eventually(lambda: load.done >= CALLS // 3, what="a third of the calls", within_s=60)
    process = sidecar.stack.process
    assert process is not None
    killed = time.monotonic()
    process.kill()
    process.wait()
    sidecar.stack.start_warden()
    worker.join()
    sidecar.settles()
    assert load.done == CALLS
    answered = {call.call_id for call in load.seen if call.answered}

    def shipped() -> bool:
        return answered <= {record["call_id"] for record in sidecar.search(reveal=False, limit=10_000)}

    eventually(shipped, what="every answered call in the database", within_s=30)
    eventually(lambda: sidecar.metric("warden_ship_lag_records") == 0, what="nothing left to ship", within_s=30)
    outcomes = judge(load.seen, sidecar.search(limit=1000), killed=[killed]).outcomes
    assert outcomes["completed"] > CALLS // 6
    assert outcomes["refused"] > CALLS // 4
    assert outcomes["cancelled"] > CALLS // 20
    assert outcomes["aborted"] >= 1

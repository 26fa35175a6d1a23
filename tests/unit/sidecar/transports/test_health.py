"""What the sidecar answers itself, to anyone."""

from __future__ import annotations

import pytest
from tritonclient.grpc.service_pb2 import ServerLiveResponse, ServerReadyResponse

from sidecar.transports import health
from sidecar.transports.live import LiveRpcs
from sidecar.triton.methods import HEALTH, KSERVE, METHODS
from tests.support.wire import World

WATCH = METHODS[HEALTH + "Watch"]


@pytest.mark.parametrize("ready", [True, False])
def test_health_is_answered_from_what_is_known(ready: bool) -> None:
    world = World()
    world.ready = ready
    live = health.answer(world.services, world.context(METHODS[KSERVE + "ServerLive"]))
    assert ServerLiveResponse.FromString(live).live
    answer = health.answer(world.services, world.context(METHODS[KSERVE + "ServerReady"]))
    assert ServerReadyResponse.FromString(answer).ready is ready
    # grpc.health.v1: SERVING = 1, NOT_SERVING = 2
    assert health.answer(world.services, world.context(METHODS[HEALTH + "Check"])) == (
        b"\x08\x01" if ready else b"\x08\x02"
    )
    assert world.ports.entries == []


async def test_a_watch_tells_the_state_and_each_change_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "POLL", 0.001)
    world = World()
    told = []
    async for message in health.changes(world.services, world.context(WATCH, ("grpc-timeout", "100m"))):
        told.append(message)
        if len(told) == 1:
            world.ready = False
        else:
            world.clock.pass_ms(101)
    assert told == [b"\x08\x01", b"\x08\x02"]


async def test_watches_are_bounded_and_their_places_given_back() -> None:
    live = LiveRpcs()
    watches = health.Watches(live, most=1)
    with watches.one() as first, watches.one() as second:
        assert first is not None
        assert second is None
        assert len(live) == 1
    with pytest.raises(ZeroDivisionError), watches.one():
        raise ZeroDivisionError
    with watches.one() as third:
        assert third is not None

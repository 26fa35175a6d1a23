"""What the sidecar answers itself, to anyone."""

from __future__ import annotations

import pytest
from tritonclient.grpc.service_pb2 import ServerLiveResponse, ServerReadyResponse

from sidecar.core.model import Denial
from sidecar.core.reasons import Code, Reason
from sidecar.transports import health
from sidecar.transports.live import LiveRpcs
from sidecar.transports.render import Status
from sidecar.triton.methods import HEALTH, KSERVE, METHODS
from tests.support.wire import World

CHECK, WATCH = METHODS[HEALTH + "Check"], METHODS[HEALTH + "Watch"]


def named(service: str) -> bytes:
    """A HealthCheckRequest; a default value written out is the same to protobuf."""
    return bytes([0x0A, len(service)]) + service.encode()


@pytest.mark.parametrize("ready", [True, False])
def test_health_is_answered_from_what_is_known(ready: bool) -> None:
    world = World()
    world.ready = ready
    live = health.answer(world.services, world.context(METHODS[KSERVE + "ServerLive"]))
    assert ServerLiveResponse.FromString(live).live
    answer = health.answer(world.services, world.context(METHODS[KSERVE + "ServerReady"]))
    assert ServerReadyResponse.FromString(answer).ready is ready
    # grpc.health.v1: SERVING = 1, NOT_SERVING = 2
    for message in (b"", named("inference.GRPCInferenceService"), named("")):
        assert health.check(world.services, world.context(CHECK), message) == (b"\x08\x01" if ready else b"\x08\x02")
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


@pytest.mark.parametrize("service", ["inference.GRPCInferenceServic", "Inference.GRPCInferenceService", "chat", "grpc"])
async def test_a_service_that_is_not_here_is_not_found_and_to_a_watch_unknown(service: str) -> None:
    """As grpc/grpc doc/health-checking.md has it."""
    world = World()
    assert health.check(world.services, world.context(CHECK), named(service)) == Status(
        Code.NOT_FOUND, "unknown service"
    )
    assert health.known(named(service)) is False
    told = []
    async for message in health.changes(world.services, world.context(WATCH, ("grpc-timeout", "100m")), served=False):
        told.append(message)
        world.clock.pass_ms(101)
    assert told == [b"\x08\x03"]


@pytest.mark.parametrize("message", [b"\x0a", b"\x0a\x05a", b"\xff" * 16, b"\x0b", b"\x08\x01", b"\x0a\x01\xff"])
def test_a_request_that_cannot_be_read_says_why(message: bytes) -> None:
    world = World()
    denial = health.known(message)
    assert isinstance(denial, Denial)
    assert denial.reason is Reason.REQUEST_MALFORMED
    answer = health.check(world.services, world.context(CHECK), message)
    assert isinstance(answer, Status)
    assert (answer.code, "HealthCheckRequest" in answer.message) == (Code.INVALID_ARGUMENT, True)


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

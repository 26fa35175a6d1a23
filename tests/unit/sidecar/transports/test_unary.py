"""A unary RPC: whatever happens to it, it is settled once and gives back what it held."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from sidecar.core.model import Denial, Forward
from sidecar.core.reasons import Code, Reason
from sidecar.core.recorded import OUTPUT_LAG_BYTES
from sidecar.transports import unary
from sidecar.transports.budget import Held
from sidecar.transports.exchange import DRAINED, UpstreamEnd
from sidecar.transports.live import LiveRpcs
from sidecar.transports.unary import Answer
from sidecar.triton.reader import TritonReader
from tests.support import kserve
from tests.support.core import FakePorts
from tests.support.reading import isolation
from tests.support.wire import MODEL_INFER, OK_END, FakeUpstream, World, cancelled_at, done, quiet

REQUEST: bytes = kserve.chat(b"hello", stream=False).SerializeToString()
ANSWER: bytes = kserve.response(("text_output", "BYTES", [1], kserve.packed(b"hi"))).SerializeToString()
NO_AUDIT = Denial(Reason.AUDIT_UNAVAILABLE, retry_after=1.0)


async def serve(world: World, upstream: FakeUpstream, *headers: tuple[str, str], message: bytes = REQUEST) -> Answer:
    with Held(world.budget) as held, LiveRpcs().track() as live:
        assert held.take(len(message))
        return await unary.serve(world.services, world.context(MODEL_INFER, *headers), upstream, held, live, message)


def outcome(world: World) -> tuple[str, str]:
    (ended,) = world.outcomes.values()
    return ended


async def test_an_answer_comes_back_as_triton_gave_it() -> None:
    world, upstream = World(), FakeUpstream([ANSWER, OK_END])
    answer = await serve(world, upstream)
    assert (answer.message, answer.status.code) == (ANSWER, Code.OK)
    assert outcome(world) == ("completed", "")
    assert upstream.calls[0].message == REQUEST
    assert dict(upstream.calls[0].metadata)["traceparent"].startswith("00-")
    world.assert_even()


async def test_a_call_whose_telemetry_stays_here_gives_triton_no_trace_to_join() -> None:
    world, upstream = World(ports=FakePorts(may_trace=False)), FakeUpstream([ANSWER, OK_END])
    assert (await serve(world, upstream)).status.code == Code.OK
    assert "traceparent" not in dict(upstream.calls[0].metadata)
    world.assert_even()


class Rewriting(TritonReader):
    """A reader whose isolation forwards something else than the message, or answers itself."""

    __slots__ = ("forward",)

    def __init__(self, forward: Forward) -> None:
        super().__init__(isolation())
        self.forward = forward

    def isolate(self, *_: object) -> Forward:
        return self.forward


async def test_what_isolation_appends_is_sent_too() -> None:
    upstream = FakeUpstream([ANSWER, OK_END])
    await serve(World(reader=Rewriting(Forward(REQUEST, suffix=b"+s"))), upstream)
    assert upstream.calls[0].message == REQUEST + b"+s"


async def test_an_answer_of_our_own_needs_no_triton_and_is_metered_all_the_same() -> None:
    world, upstream = World(reader=Rewriting(Forward(REQUEST, answer=ANSWER))), FakeUpstream([])
    answer = await serve(world, upstream)
    assert (answer.message, answer.status.code, upstream.calls) == (ANSWER, Code.OK, [])
    assert outcome(world) == ("completed", "")
    world.assert_even()


@pytest.mark.parametrize(("lost", "size"), [("output", OUTPUT_LAG_BYTES), ("settled", 1)])
async def test_an_answer_of_our_own_is_not_given_where_it_cannot_be_recorded(lost: str, size: int) -> None:
    own: bytes = kserve.response(("text_output", "BYTES", [1], kserve.packed(bytes(size)))).SerializeToString()
    ports = FakePorts(denials={f"journal {lost}": NO_AUDIT})
    world, upstream = World(ports=ports, reader=Rewriting(Forward(REQUEST, answer=own))), FakeUpstream([])
    answer = await serve(world, upstream)
    assert (answer.message, answer.status.code, upstream.calls) == (None, Code.UNAVAILABLE, [])
    assert not world.ports.held


async def test_a_refused_call_never_reaches_triton() -> None:
    world = World(ports=FakePorts(denials={"reserve": Denial(Reason.RATE_TOKENS, retry_after=1.5)}))
    upstream = FakeUpstream([])
    answer = await serve(world, upstream)
    assert answer.message is None
    assert answer.status.code == Code.RESOURCE_EXHAUSTED
    assert answer.status.message == "[RATE_TOKENS] token budget exceeded; retry in 1.5s"
    assert upstream.calls == []
    world.assert_even()


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        (UpstreamEnd(3, "bad shape"), Code.INVALID_ARGUMENT, ""),
        (UpstreamEnd(14, "Exceeds maximum queue size"), Code.RESOURCE_EXHAUSTED, "UPSTREAM_QUEUE_FULL"),
        (UpstreamEnd(14, "upstream connect error 10.0.0.7"), Code.UNAVAILABLE, "UPSTREAM_UNAVAILABLE"),
    ],
)
async def test_tritons_own_failure_is_translated_and_recorded(end: UpstreamEnd, code: Code, reason: str) -> None:
    world = World()
    answer = await serve(world, FakeUpstream([end]))
    assert (answer.message, answer.status.code) == (None, code)
    assert "10.0.0.7" not in answer.status.message
    assert outcome(world) == ("failed", reason)
    world.assert_even()


async def test_a_message_before_a_bad_end_is_not_given_to_the_client() -> None:
    world = World()
    assert (await serve(world, FakeUpstream([ANSWER, UpstreamEnd(13, "late")]))).message is None


async def test_a_good_end_without_a_message_is_no_answer() -> None:
    """An abort with OK would leave a client of grpc.aio waiting for ever."""
    world = World()
    answer = await serve(world, FakeUpstream([OK_END]))
    assert (answer.message, answer.status.code) == (None, Code.INTERNAL)
    assert outcome(world) == ("failed", "INTERNAL")
    world.assert_even()


async def test_a_crash_of_ours_is_internal_and_settled() -> None:
    world, upstream = World(), FakeUpstream([ZeroDivisionError()])
    answer = await serve(world, upstream)
    assert answer.status.code == Code.INTERNAL
    assert outcome(world) == ("failed", "INTERNAL")
    assert [type(fault) for fault in world.crashes] == [ZeroDivisionError]
    assert upstream.calls[0].cancelled == 1
    world.assert_even()


async def test_the_deadline_ends_the_call_at_triton_too() -> None:
    world, upstream = World(), FakeUpstream([])
    answer = await serve(world, upstream, ("grpc-timeout", "20m"))
    assert answer.status.code == Code.DEADLINE_EXCEEDED
    assert outcome(world) == ("failed", "UPSTREAM_TIMEOUT")
    assert upstream.calls[0].cancelled == 1
    world.assert_even()


async def test_a_call_whose_deadline_has_passed_is_not_forwarded() -> None:
    world, upstream = World(), FakeUpstream([ANSWER, OK_END])
    answer = await serve(world, upstream, ("grpc-timeout", "0n"))
    assert (answer.message, answer.status.code) == (None, Code.DEADLINE_EXCEEDED)
    assert upstream.calls == []
    assert outcome(world) == ("failed", "UPSTREAM_TIMEOUT")
    world.assert_even()


@pytest.mark.parametrize(
    ("gone_after_ms", "ended"), [(0, ("cancelled", "CLIENT_CANCELLED")), (59_995, ("failed", "UPSTREAM_TIMEOUT"))]
)
async def test_a_client_that_left_is_told_apart_from_its_deadline(gone_after_ms: float, ended: tuple[str, str]) -> None:
    world = World()
    leaving = asyncio.Event()
    task = asyncio.ensure_future(
        serve(world, FakeUpstream([leaving, UpstreamEnd(14, "server request completed", client_gone=True)]))
    )
    for _ in range(5):
        await asyncio.sleep(0)
    world.clock.pass_ms(gone_after_ms)
    leaving.set()
    assert (await task).message is None
    assert outcome(world) == ended
    world.assert_even()


async def test_a_response_that_does_not_fit_the_buffer_is_refused() -> None:
    world = World(buffer=len(REQUEST) + len(ANSWER) - 1)
    answer = await serve(world, FakeUpstream([ANSWER, OK_END]))
    assert (answer.message, answer.status.code) == (None, Code.RESOURCE_EXHAUSTED)
    assert outcome(world) == ("failed", "MEMORY_TENSOR")
    world.assert_even()


async def test_output_that_cannot_be_recorded_is_not_delivered() -> None:
    world = World(ports=FakePorts(denials={"journal settled": NO_AUDIT}))
    answer = await serve(world, FakeUpstream([ANSWER, OK_END]))
    assert (answer.message, answer.status.code) == (None, Code.UNAVAILABLE)
    assert not world.ports.held
    assert world.budget.used == 0


async def test_a_strict_call_waits_for_its_entries_before_triton_and_before_its_answer() -> None:
    world, upstream = World(), FakeUpstream([ANSWER, OK_END])
    written: list[Future[Denial | None]] = []

    def durable(_: object) -> Future[Denial | None]:
        written.append(Future())
        return written[-1]

    world.durable = durable
    task = asyncio.ensure_future(serve(world, upstream))
    for n in range(2):
        while len(written) == n:
            await asyncio.sleep(0)
        assert (len(upstream.calls), task.done()) == (n, False)
        written[n].set_result(None)
    assert (await task).message == ANSWER
    world.assert_even()


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_strict_call_whose_entries_may_be_lost_is_not_answered(lost: int) -> None:
    world, upstream = World(), FakeUpstream([ANSWER, OK_END])
    answers = [done(NO_AUDIT if n == lost else None) for n in range(2)]
    world.durable = lambda _: answers.pop(0)
    answer = await serve(world, upstream)
    assert (answer.message, answer.status.code) == (None, Code.UNAVAILABLE)
    assert len(upstream.calls) == lost
    world.assert_even()


async def test_cancelling_at_any_step_settles_once_and_cancels_upstream() -> None:
    reached, step = True, 0
    while reached:
        world, upstream = World(), FakeUpstream([ANSWER, OK_END])
        world.durable = lambda _: done(None)
        reached = await cancelled_at(step, serve(world, upstream))
        await quiet()
        world.assert_even()
        if reached and upstream.calls:
            assert upstream.calls[0].cancelled == 1
        step += 1
    assert step > 5
    assert outcome(world) == ("completed", "")


async def test_a_drain_is_told_apart_from_a_client_that_left() -> None:
    world, live_rpcs, upstream = World(), LiveRpcs(), FakeUpstream([])

    async def rpc() -> None:
        with Held(world.budget) as held, live_rpcs.track() as live:
            await unary.serve(world.services, world.context(MODEL_INFER), upstream, held, live, REQUEST)

    task = asyncio.ensure_future(rpc())
    while not upstream.calls:
        await asyncio.sleep(0)
    live_rpcs.cut_all(DRAINED)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outcome(world) == ("failed", "DRAINING")
    assert len(live_rpcs) == 0
    world.assert_even()


# --- before the message -------------------------------------------------------------------------------------------


async def test_a_stranger_is_refused_before_the_message() -> None:
    world = World(ports=FakePorts(denials={"identify": Denial(Reason.KEY_UNKNOWN)}))
    status = unary.refuse(world.services, world.context(MODEL_INFER))
    assert status is not None
    assert status.code == Code.UNAUTHENTICATED
    assert [kind for kind, _ in world.ports.entries] == ["refused"]


async def test_who_is_known_is_not_refused_before_the_message() -> None:
    world = World()
    assert unary.refuse(world.services, world.context(MODEL_INFER)) is None
    assert world.ports.entries == []


async def test_a_message_the_wire_could_not_read_is_recorded() -> None:
    world = World()
    status = unary.reject(world.services, world.context(MODEL_INFER), Denial(Reason.REQUEST_TOO_LARGE))
    assert status.code == Code.INVALID_ARGUMENT
    assert [kind for kind, _ in world.ports.entries] == ["refused"]

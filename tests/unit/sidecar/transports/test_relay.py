"""A client's stream: each message its own call; whatever ends it, each call is settled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from sidecar.core.model import Denial, Forward, MalformedRequest
from sidecar.core.reasons import Code, Reason
from sidecar.core.recorded import OUTPUT_LAG_BYTES
from sidecar.transports import render
from sidecar.transports.budget import Held
from sidecar.transports.exchange import DRAINED, UpstreamEnd
from sidecar.transports.grpc_frames import UnsupportedEncoding
from sidecar.transports.live import LiveRpcs
from sidecar.transports.outbox import ClientGone
from sidecar.transports.relay import StreamRelay
from sidecar.triton.knowledge import Knowledge, ModelBook, ModelFacts
from sidecar.triton.peek import EMPTY_FINAL_SUFFIX
from sidecar.triton.protos import ModelInferRequest, ModelInferResponse
from sidecar.triton.reader import TritonReader
from tests.support import kserve
from tests.support.core import FakePorts
from tests.support.reading import isolation
from tests.support.wire import (
    BOUNDS,
    OK_END,
    STREAM_INFER,
    FakeCall,
    FakeClient,
    FakeUpstream,
    World,
    cancelled_at,
    done,
    quiet,
    sending,
)

NOT_TOLD = "the model failed; its own words are in the record of call call-1/1"
NO_AUDIT = Denial(Reason.AUDIT_UNAVAILABLE, retry_after=1.0)


def ask(request_id: str = "r1", *, sequence: int = 0, empty_final: bool = False) -> bytes:
    message = kserve.chat(b"hello")
    message.id = request_id
    if sequence:
        message.parameters["sequence_id"].int64_param = sequence
        message.parameters["sequence_start"].bool_param = True
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    data: bytes = message.SerializeToString()
    return data


def token(text: bytes, *, request_id: str = "r1", final: bool = False) -> bytes:
    return kserve.streamed(
        kserve.response(("text_output", "BYTES", [1], kserve.packed(text)), id=request_id), final=final
    )


FINAL = kserve.streamed(kserve.response(id="r1"), final=True)  # the empty one of a decoupled model


class Rpc:
    """One client stream on a world of its own."""

    def __init__(self, upstream: FakeUpstream, **world: Any) -> None:
        self.world = World(**world)
        self.client = FakeClient()
        self.upstream = upstream
        self.live = LiveRpcs()

    async def run(
        self,
        *messages: bytes | Exception,
        forever: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
        source: Callable[[Held], AsyncIterator[bytes]] | None = None,
    ) -> render.Status:
        world = self.world
        with Held(world.budget) as held:
            context = world.context(STREAM_INFER, *headers)
            relay = StreamRelay(world.services, context, self.upstream, self.client.send, held, framed=False)
            with self.live.track(on_end=relay.end_with) as live:
                incoming = source(held) if source else sending(*messages, held=held, forever=forever)
                try:
                    return await relay.run(incoming)
                except asyncio.CancelledError:
                    assert live.ending or asyncio.current_task().cancelling()  # type: ignore[union-attr]  # we are in one
                    raise

    @property
    def told(self) -> list[str]:
        """What the client was sent: texts, refusals' reasons, or "final"."""
        found = []
        for each in self.client.streamed():
            answer = each.infer_response
            if each.error_message:
                found.append(answer.parameters["warden_reason"].string_param or f"error {each.error_message}")
            else:
                found.append(answer.raw_output_contents[0][4:].decode() if answer.outputs else "final")
        return found


async def until(holds: Callable[[], object]) -> None:
    for _ in range(200):
        if holds():
            return
        await asyncio.sleep(0)
    pytest.fail("the condition never came true")


# --- answers ------------------------------------------------------------------------------------------------------


async def test_a_stream_is_relayed_and_its_call_completed() -> None:
    rpc = Rpc(FakeUpstream([token(b"a"), token(b"b"), FINAL]))
    status = await rpc.run(ask())
    assert status == render.OK
    assert rpc.told == ["a", "b"]  # the empty final response was not asked for
    assert rpc.world.outcomes == {"call-1/1": ("completed", "")}
    (call,) = rpc.upstream.calls
    assert call.message.startswith(ask())
    assert call.message.endswith(EMPTY_FINAL_SUFFIX)
    assert ModelInferRequest.FromString(call.message).parameters["triton_enable_empty_final_response"].bool_param
    assert call.half_closed
    rpc.world.assert_even()
    await quiet()


async def test_the_empty_final_response_is_shown_to_who_asked_for_it() -> None:
    rpc = Rpc(FakeUpstream([token(b"a"), FINAL]))
    await rpc.run(ask(empty_final=True))
    assert rpc.told == ["a", "final"]
    assert rpc.upstream.calls[0].message.startswith(ask(empty_final=True))
    assert EMPTY_FINAL_SUFFIX not in rpc.upstream.calls[0].message[len(ask(empty_final=True)) :]


async def test_the_only_response_is_shown_though_it_has_no_outputs() -> None:
    """A model may leave out its optional outputs; one that isn't decoupled has no other response."""
    rpc = Rpc(FakeUpstream([FINAL], [token(b"a", request_id="r2"), FINAL]))
    assert await rpc.run(ask(), ask("r2")) == render.OK
    assert sorted(rpc.told) == ["a", "final"]
    assert rpc.world.outcomes == {"call-1/1": ("completed", ""), "call-1/2": ("completed", "")}
    rpc.world.assert_even()


async def test_a_final_response_with_output_is_shown() -> None:
    rpc = Rpc(FakeUpstream([token(b"a", final=True)]))
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == ["a"]
    rpc.world.assert_even()


async def test_each_message_is_a_call_of_its_own() -> None:
    rpc = Rpc(FakeUpstream([token(b"a"), FINAL], [token(b"b", request_id="r2"), FINAL]))
    await rpc.run(ask("r1"), ask("r2"))
    assert sorted(rpc.told) == ["a", "b"]
    assert set(rpc.world.outcomes) == {"call-1/1", "call-1/2"}
    spans = {dict(call.metadata)["traceparent"] for call in rpc.upstream.calls}
    assert len(spans) == 2
    rpc.world.assert_even()


async def test_what_follows_the_final_response_is_drained_not_delivered() -> None:
    rpc = Rpc(FakeUpstream([token(b"a", final=True), token(b"ghost"), OK_END]))
    await rpc.run(ask())
    assert rpc.told == ["a"]


async def test_an_end_without_a_final_response_completes_the_call() -> None:
    rpc = Rpc(FakeUpstream([token(b"a"), OK_END]))
    assert await rpc.run(ask()) == render.OK
    assert (rpc.told, rpc.world.outcomes) == (["a"], {"call-1/1": ("completed", "")})
    rpc.world.assert_even()


# --- bad ends -----------------------------------------------------------------------------------------------------


async def test_tritons_bad_end_is_told_in_band_and_the_stream_lives_on() -> None:
    rpc = Rpc(FakeUpstream([token(b"a"), UpstreamEnd(13, "model died")], [token(b"b"), FINAL]))
    assert await rpc.run(ask("r1"), ask("r2")) == render.OK
    assert sorted(rpc.told) == ["a", "b", f"error {NOT_TOLD}"]
    error = next(each for each in rpc.client.streamed() if each.error_message)
    assert error.infer_response.id == "r1"
    assert error.infer_response.parameters["triton_final_response"].bool_param
    assert rpc.world.outcomes == {"call-1/1": ("failed", ""), "call-1/2": ("completed", "")}
    rpc.world.assert_even()


@pytest.mark.parametrize("final", [True, None])
async def test_an_in_band_error_of_triton_that_is_final_or_says_nothing_ends_its_call(final: bool | None) -> None:
    error = kserve.streamed(kserve.response(id="r1"), error="out of memory", final=final)
    rpc = Rpc(FakeUpstream([token(b"a"), error]))
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == ["a", f"error {NOT_TOLD}"]
    assert rpc.world.outcomes == {"call-1/1": ("failed", "")}
    rpc.world.assert_even()


async def test_a_decoupled_model_may_go_on_after_an_error_but_its_call_has_failed() -> None:
    error = kserve.streamed(kserve.response(id="r1"), error="one beam died", final=False)
    rpc = Rpc(FakeUpstream([error, token(b"b"), FINAL]))
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == [f"error {NOT_TOLD}", "b"]
    assert rpc.world.outcomes == {"call-1/1": ("failed", "")}
    rpc.world.assert_even()


@pytest.mark.parametrize("final", [True, False])
async def test_where_a_model_raised_is_recorded_and_not_told(final: bool) -> None:
    text = "message: ValueError: no\n\nAt:\n  /opt/models/inner/1/model.py(26): execute\n"
    error = kserve.streamed(kserve.response(id="r1"), error=text, final=final)
    rpc = Rpc(FakeUpstream([error, OK_END]))
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == [f"error {NOT_TOLD}"]
    (sent,) = rpc.client.streamed()
    assert (sent.infer_response.id, sent.infer_response.parameters["triton_final_response"].bool_param) == ("r1", final)
    if final:
        (outcome,) = (entry[2] for kind, entry in rpc.world.ports.entries if kind == "settled")
        assert outcome.quoted.reveal().decode() == text
    rpc.world.assert_even()


async def test_a_crash_of_one_call_leaves_its_neighbours_alone() -> None:
    rpc = Rpc(FakeUpstream([ZeroDivisionError()], [token(b"b"), FINAL]))
    assert await rpc.run(ask("r1"), ask("r2")) == render.OK
    assert sorted(rpc.told) == ["INTERNAL", "b"]
    assert rpc.world.outcomes["call-1/1"] == ("failed", "INTERNAL")
    assert len(rpc.world.crashes) == 1
    rpc.world.assert_even()


async def test_a_crash_after_the_final_response_is_no_second_outcome() -> None:
    rpc = Rpc(FakeUpstream([token(b"a", final=True), ZeroDivisionError()]))
    assert await rpc.run(ask()) == render.OK
    assert (rpc.told, len(rpc.world.crashes)) == (["a"], 1)
    rpc.world.assert_even()


async def test_an_outcome_that_cannot_be_recorded_is_told_instead_of_the_end() -> None:
    rpc = Rpc(FakeUpstream([token(b"a", final=True)]))
    rpc.world.ports.denials["journal settled"] = NO_AUDIT
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == ["AUDIT_UNAVAILABLE"]


async def test_output_that_cannot_be_recorded_cuts_its_call_off_and_no_other() -> None:
    rpc = Rpc(FakeUpstream([token(b"x" * OUTPUT_LAG_BYTES), FINAL], [token(b"b"), FINAL]))
    rpc.world.ports.denials["journal output"] = NO_AUDIT
    assert await rpc.run(ask("r1"), ask("r2")) == render.OK
    assert sorted(rpc.told) == ["AUDIT_UNAVAILABLE", "b"]
    assert rpc.world.outcomes == {"call-1/1": ("failed", "AUDIT_UNAVAILABLE"), "call-1/2": ("completed", "")}
    assert rpc.upstream.calls[0].cancelled == 1
    rpc.world.assert_even()


@pytest.mark.parametrize(("lost", "told"), [(0, ["AUDIT_UNAVAILABLE"]), (1, ["a", "AUDIT_UNAVAILABLE"])])
async def test_a_strict_call_whose_entries_may_be_lost_is_told_so(lost: int, told: list[str]) -> None:
    rpc = Rpc(FakeUpstream([token(b"a"), FINAL]))
    answers = [done(NO_AUDIT if n == lost else None) for n in range(2)]
    rpc.world.durable = lambda _: answers.pop(0)
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == told
    assert len(rpc.upstream.calls) == lost
    rpc.world.assert_even()


async def test_a_strict_calls_bad_end_waits_for_its_outcome_too() -> None:
    """Triton's stream ends without a final response, and the outcome's entry would not outlive power."""
    rpc = Rpc(FakeUpstream([token(b"a"), UpstreamEnd(Code.UNAVAILABLE, "GRPC server is shutting down")]))
    answers = [done(None), done(NO_AUDIT)]
    rpc.world.durable = lambda _: answers.pop(0)
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == ["a", "AUDIT_UNAVAILABLE"]
    rpc.world.assert_even()


# --- refusals -----------------------------------------------------------------------------------------------------


async def test_a_refusal_is_told_in_band_with_the_clients_own_id() -> None:
    ports = FakePorts(denials={"reserve": Denial(Reason.RATE_TOKENS, retry_after=1.5)})
    rpc = Rpc(FakeUpstream([]), ports=ports)
    assert await rpc.run(ask("mine")) == render.OK
    (refusal,) = rpc.client.streamed()
    assert refusal.error_message == "[RATE_TOKENS] token budget exceeded; retry in 1.5s"
    assert refusal.infer_response.id == "mine"
    assert refusal.infer_response.parameters["warden_reason"].string_param == "RATE_TOKENS"
    assert refusal.infer_response.parameters["warden_retry_after_ms"].int64_param == 1500
    assert refusal.infer_response.parameters["triton_final_response"].bool_param
    rpc.world.assert_even()


async def test_refused_messages_leave_room_for_those_behind_them() -> None:
    ports = FakePorts(denials={"reserve": Denial(Reason.CONCURRENCY)})
    rpc = Rpc(FakeUpstream([]), ports=ports, bounds=replace(BOUNDS, calls_per_stream=1))
    assert await asyncio.wait_for(rpc.run(ask("r1"), ask("r2"), ask("r3")), 5) == render.OK
    assert rpc.told == ["CONCURRENCY"] * 3


async def test_a_credential_that_fails_ends_the_rpc_and_the_calls_under_way() -> None:
    rpc = Rpc(FakeUpstream([token(b"a")]))

    async def source(held: Held) -> AsyncIterator[bytes]:
        async for message in sending(ask(), held=held):
            yield message
        await until(lambda: rpc.told)
        rpc.world.ports.denials["identify"] = Denial(Reason.TOKEN_EXPIRED)
        async for message in sending(ask("r2"), held=held, forever=True):
            yield message

    status = await rpc.run(source=source)
    assert status.code == Code.UNAUTHENTICATED
    assert rpc.told == ["a"]
    assert rpc.world.outcomes == {"call-1/1": ("failed", "TOKEN_EXPIRED")}  # not by the client's own will
    assert rpc.upstream.calls[0].cancelled == 1
    rpc.world.assert_even()
    await quiet()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (MalformedRequest("cut short"), Code.INVALID_ARGUMENT),
        (MalformedRequest("big", Reason.REQUEST_TOO_LARGE), Code.INVALID_ARGUMENT),
        (BufferError(), Code.RESOURCE_EXHAUSTED),
        (UnsupportedEncoding("br"), Code.UNIMPLEMENTED),
    ],
)
async def test_bytes_that_are_no_message_end_the_rpc(fault: Exception, code: Code) -> None:
    rpc = Rpc(FakeUpstream([]))
    status = await rpc.run(ask(), fault)
    assert status.code == code
    assert [kind for kind, _ in rpc.world.ports.entries].count("refused") == 1
    assert rpc.world.outcomes["call-1/1"][0] == "failed"
    rpc.world.assert_even()
    await quiet()


async def test_a_crash_of_the_reader_settles_what_was_under_way() -> None:
    rpc = Rpc(FakeUpstream([]))
    with pytest.raises(ZeroDivisionError):
        await rpc.run(ask(), ZeroDivisionError())
    assert rpc.world.outcomes == {"call-1/1": ("failed", "INTERNAL")}
    rpc.world.assert_even()
    await quiet()


# --- bounds -------------------------------------------------------------------------------------------------------


async def test_no_more_calls_than_allowed_are_in_flight_at_once() -> None:
    go_on = asyncio.Event()
    rpc = Rpc(FakeUpstream([go_on, FINAL]), bounds=replace(BOUNDS, calls_per_stream=2))
    task = asyncio.ensure_future(rpc.run(*(ask(f"r{n}") for n in range(5))))
    await until(lambda: len(rpc.upstream.calls) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(rpc.upstream.calls) == 2
    go_on.set()
    assert await task == render.OK
    assert len(rpc.world.outcomes) == 5
    rpc.world.assert_even()


async def test_what_calls_held_is_given_back_as_they_end() -> None:
    """A long stream must not use up the budget by and by."""
    rpc = Rpc(FakeUpstream([FINAL]), bounds=replace(BOUNDS, calls_per_stream=1), buffer=3 * len(ask("r99")))
    assert await rpc.run(*(ask(f"r{n}") for n in range(10, 40))) == render.OK
    assert len(rpc.world.outcomes) == 30


async def test_a_client_that_reads_too_slowly_is_cut_off() -> None:
    rpc = Rpc(FakeUpstream([token(b"x" * 20_000)] * 5))
    rpc.client.blocked = asyncio.Event()
    status = await rpc.run(ask(), forever=True)
    assert (status.code, rpc.world.cut_off) == (Code.RESOURCE_EXHAUSTED, ["MEMORY_TENSOR"])
    assert rpc.world.outcomes == {"call-1/1": ("failed", "MEMORY_TENSOR")}
    rpc.world.assert_even()
    await quiet()


async def test_a_client_that_takes_nothing_for_too_long_is_cut_off() -> None:
    rpc = Rpc(FakeUpstream([token(b"x")]), bounds=replace(BOUNDS, blocked_write=0.02))
    rpc.client.blocked = asyncio.Event()
    status = await rpc.run(ask(), forever=True)
    assert (status.code, rpc.world.cut_off) == (Code.RESOURCE_EXHAUSTED, ["MEMORY_TENSOR"])
    rpc.world.assert_even()
    await quiet()


async def test_a_spent_buffer_cuts_the_stream_off() -> None:
    rpc = Rpc(FakeUpstream([token(b"x" * 2000)]), buffer=len(ask()) + 1000)
    status = await rpc.run(ask(), forever=True)
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert "buffers are full" in status.message
    assert rpc.world.cut_off == [], "that is no fault of this client"
    rpc.world.assert_even()


async def test_a_refusal_that_its_client_cannot_be_told_ends_the_rpc() -> None:
    rpc = Rpc(FakeUpstream([]), buffer=2 * len(ask()) + 10)

    async def source(held: Held) -> AsyncIterator[bytes]:
        async for message in sending(ask(), held=held):
            yield message
        rpc.world.ports.denials["reserve"] = Denial(Reason.RATE_TOKENS)
        async for message in sending(ask("r2"), held=held, forever=True):
            yield message

    status = await rpc.run(source=source)
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert rpc.world.outcomes == {"call-1/1": ("failed", "MEMORY_TENSOR")}
    rpc.world.assert_even()
    await quiet()


async def test_the_deadline_ends_every_call() -> None:
    rpc = Rpc(FakeUpstream([token(b"a")]))
    status = await rpc.run(ask("r1"), ask("r2"), headers=(("grpc-timeout", "20m"),), forever=True)
    assert status.code == Code.DEADLINE_EXCEEDED
    assert set(rpc.world.outcomes.values()) == {("failed", "UPSTREAM_TIMEOUT")}
    assert rpc.world.cut_off == []
    rpc.world.assert_even()
    await quiet()


# --- who leaves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ms", "ended"), [(0, "CLIENT_CANCELLED"), (59_999, "UPSTREAM_TIMEOUT")])
async def test_a_client_that_left_cancels_its_calls(ms: float, ended: str) -> None:
    rpc = Rpc(FakeUpstream([token(b"a")]))

    async def source(held: Held) -> AsyncIterator[bytes]:
        async for message in sending(ask(), held=held):
            yield message
        await until(lambda: rpc.told)
        rpc.world.clock.pass_ms(ms)
        raise ClientGone

    await rpc.run(source=source)
    assert [reason for _, reason in rpc.world.outcomes.values()] == [ended]
    assert rpc.upstream.calls[0].cancelled == 1
    rpc.world.assert_even()
    await quiet()


@pytest.mark.parametrize(("ms", "ended"), [(0, "CLIENT_CANCELLED"), (59_999, "UPSTREAM_TIMEOUT")])
async def test_a_wire_that_cancels_the_rpc_tells_a_deadline_by_the_clock(ms: float, ended: str) -> None:
    rpc = Rpc(FakeUpstream([token(b"a")]))
    task = asyncio.ensure_future(rpc.run(ask(), forever=True))
    await until(lambda: rpc.told)
    rpc.world.clock.pass_ms(ms)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [reason for _, reason in rpc.world.outcomes.values()] == [ended]
    rpc.world.assert_even()
    await quiet()


async def test_a_client_found_gone_while_writing_cancels_its_calls() -> None:
    rpc = Rpc(FakeUpstream([token(b"a")]))
    rpc.client.fault = ClientGone()
    await rpc.run(ask(), forever=True)
    assert rpc.world.outcomes == {"call-1/1": ("cancelled", "CLIENT_CANCELLED")}
    rpc.world.assert_even()
    await quiet()


async def test_an_upstream_that_ended_with_the_client_is_a_cancel() -> None:
    rpc = Rpc(FakeUpstream([UpstreamEnd(14, "server request completed", client_gone=True)]))
    await rpc.run(ask())
    assert rpc.world.outcomes == {"call-1/1": ("cancelled", "CLIENT_CANCELLED")}
    assert rpc.told == []


async def test_a_revoked_credential_ends_every_call_and_says_so() -> None:
    rpc = Rpc(FakeUpstream([token(b"a")]))
    task = asyncio.ensure_future(rpc.run(ask("r1"), ask("r2"), forever=True))
    await until(lambda: len(rpc.told) == 2)
    rpc.live.cut_all(Denial(Reason.KEY_REVOKED))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(rpc.world.outcomes.values()) == {("failed", "KEY_REVOKED")}
    rpc.world.assert_even()
    await quiet()


async def test_a_drain_ends_every_call_as_draining() -> None:
    rpc = Rpc(FakeUpstream([token(b"a")]))
    task = asyncio.ensure_future(rpc.run(ask("r1"), ask("r2"), forever=True))
    await until(lambda: len(rpc.told) == 2)
    rpc.live.cut_all(DRAINED)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(rpc.world.outcomes.values()) == {("failed", "DRAINING")}
    assert len(rpc.live) == 0
    rpc.world.assert_even()
    await quiet()


# --- sequences ----------------------------------------------------------------------------------------------------


def ids(call: FakeCall) -> list[str]:
    """The client's own, told by what each is sent as."""
    own = {isolation().request_id("acme", "chat", each): each for each in "abcd"}
    return [own[ModelInferRequest.FromString(message).id] for message in (call.message, *call.more)]


async def test_the_requests_of_a_sequence_share_an_upstream_stream() -> None:
    first, other = asyncio.Event(), asyncio.Event()
    rpc = Rpc(FakeUpstream([first, FINAL, FINAL], [other, FINAL]))
    task = asyncio.ensure_future(rpc.run(ask("a", sequence=7), ask("b", sequence=8), ask("c", sequence=7)))
    await until(lambda: len(rpc.upstream.calls) == 2 and rpc.upstream.calls[0].more)
    assert [ids(call) for call in rpc.upstream.calls] == [["a", "c"], ["b"]]
    assert EMPTY_FINAL_SUFFIX in rpc.upstream.calls[0].more[0]
    first.set()
    await until(lambda: len(rpc.world.outcomes) == 2)
    assert rpc.world.outcomes == dict.fromkeys(("call-1/1", "call-1/3"), ("completed", ""))
    other.set()
    assert await task == render.OK
    rpc.world.assert_even()


async def test_a_request_of_a_sequence_that_cannot_be_recorded_is_not_sent_and_the_next_is() -> None:
    rpc = Rpc(FakeUpstream([FINAL]))
    answers = iter([done(NO_AUDIT)])
    rpc.world.durable = lambda _: next(answers, None)
    assert await rpc.run(ask("a", sequence=7), ask("c", sequence=7)) == render.OK
    (call,) = rpc.upstream.calls
    assert ids(call) == ["c"]
    assert rpc.world.outcomes == {"call-1/1": ("failed", "AUDIT_UNAVAILABLE"), "call-1/2": ("completed", "")}
    rpc.world.assert_even()


# --- order --------------------------------------------------------------------------------------------------------


class Plain(TritonReader):
    """A reader that knows every model but ``chat`` to be non-decoupled."""

    def isolate(self, *asked: Any) -> Forward | Denial:
        forward = super().isolate(*asked)
        return forward if isinstance(forward, Denial) else structs.replace(forward, ordered=asked[2].model != "chat")


def plain(request_id: str) -> bytes:
    message = ModelInferRequest.FromString(ask(request_id))
    message.model_name = "embed"
    data: bytes = message.SerializeToString()
    return data


async def test_answers_of_ordinary_models_keep_the_order_of_their_requests_and_decoupled_ones_do_not_wait() -> None:
    slow = asyncio.Event()
    rpc = Rpc(
        FakeUpstream(
            [slow, token(b"1", final=True)],
            [token(b"2", final=True)],
            [token(b"s1"), token(b"s2"), FINAL],
            [kserve.streamed(error="model says no")],
            [UpstreamEnd(Code.UNAVAILABLE, "")],
            [token(b"6", final=True)],
        ),
        reader=Plain(isolation()),
    )
    asked = (plain("1"), plain("2"), ask("s"), plain("4"), plain("5"), b"\xff", plain("6"))
    task = asyncio.ensure_future(rpc.run(*asked))
    await until(lambda: len(rpc.world.outcomes) == 5)
    for _ in range(20):
        await asyncio.sleep(0)
    assert rpc.told == ["s1", "s2"]
    slow.set()
    assert await task == render.OK
    assert rpc.told[5].startswith("error [UPSTREAM_UNAVAILABLE]")
    assert rpc.told[2:5] + rpc.told[6:] == ["1", "2", f"error {NOT_TOLD[:-1]}4", "REQUEST_MALFORMED", "6"]
    rpc.world.assert_even()
    await quiet()


async def test_what_waits_in_line_is_bounded_and_then_the_client_is_cut_off_with_the_reason() -> None:
    big = token(b"x" * 20_000, final=True)
    rpc = Rpc(FakeUpstream([], [big]), reader=Plain(isolation()))
    status = await rpc.run(*(plain(str(n)) for n in range(5)), forever=True)
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert "wait for that of an earlier request" in status.message
    assert rpc.world.cut_off == ["MEMORY_TENSOR"]
    rpc.world.assert_even()


async def test_an_answer_that_never_comes_lets_the_others_pass_once_its_call_has_ended() -> None:
    rpc = Rpc(FakeUpstream([ZeroDivisionError()], [token(b"2", final=True)]), reader=Plain(isolation()))
    assert await rpc.run(plain("1"), plain("2")) == render.OK
    assert rpc.told == ["INTERNAL", "2"]
    rpc.world.assert_even()


# --- triton_grpc_error --------------------------------------------------------------------------------------------

ENDS: tuple[tuple[str, str], ...] = (("triton_grpc_error", "true"),)


def erred(text: str, *, model: str = "chat", final: bool | None = True) -> bytes:
    answer = kserve.response(id="r1")
    answer.model_name = model
    return kserve.streamed(answer, error=text, final=final)


async def test_a_models_error_ends_the_rpc_where_the_client_asks_for_that() -> None:
    gate = asyncio.Event()
    rpc = Rpc(FakeUpstream([token(b"a")], [token(b"b"), gate, erred("Cancelled"), token(b"never")]))
    task = asyncio.ensure_future(rpc.run(ask("r1"), ask("r2"), forever=True, headers=ENDS))
    await until(lambda: len(rpc.told) == 2)
    gate.set()
    status = await task
    assert (status.code, status.message) == (Code.UNKNOWN, "Cancelled")
    assert sorted(rpc.told) == ["a", "b"]
    assert rpc.world.outcomes == {"call-1/2": ("failed", ""), "call-1/1": ("cancelled", "CLIENT_CANCELLED")}
    assert all("triton_grpc_error" not in dict(call.metadata) for call in rpc.upstream.calls)
    rpc.world.assert_even()
    await quiet()


async def test_its_status_is_ours_where_the_error_is_one_of_our_reasons() -> None:
    rpc = Rpc(FakeUpstream([erred("Exceeds maximum queue size")]))
    status = await rpc.run(ask(), forever=True, headers=ENDS)
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert b"UPSTREAM_QUEUE_FULL" in status.details
    rpc.world.assert_even()


async def test_an_upstream_that_fails_ends_such_an_rpc_too() -> None:
    rpc = Rpc(FakeUpstream([UpstreamEnd(Code.UNAVAILABLE, "")]))
    status = await rpc.run(ask(), forever=True, headers=ENDS)
    assert status.code == Code.UNAVAILABLE
    rpc.world.assert_even()


async def test_what_was_never_issued_stays_in_band_and_so_does_a_refusal() -> None:
    rpc = Rpc(FakeUpstream([kserve.streamed(kserve_id("r1"), error="classification output tensor too large")], [FINAL]))
    assert await rpc.run(ask("r1"), b"\xff", ask("r3", empty_final=True), headers=ENDS) == render.OK
    assert rpc.told == ["REQUEST_MALFORMED", "error classification output tensor too large", "final"]
    rpc.world.assert_even()


@pytest.mark.parametrize("value", ["false", "TRUE", "1", ""])
async def test_no_other_word_asks_for_it(value: str) -> None:
    rpc = Rpc(FakeUpstream([erred("Cancelled")]))
    assert await rpc.run(ask(), headers=(("triton_grpc_error", value),)) == render.OK
    assert rpc.told == ["error Cancelled"]


async def test_with_its_end_nothing_out_of_order_is_sent() -> None:
    """What waited for the answer of a call that never comes is not shown."""
    gate = asyncio.Event()
    answers = FakeUpstream([], [token(b"2", final=True)], [gate, erred("Cancelled", model="embed")])
    rpc = Rpc(answers, reader=Plain(isolation()))
    task = asyncio.ensure_future(rpc.run(plain("1"), plain("2"), plain("3"), headers=ENDS))
    await until(lambda: len(rpc.world.outcomes) == 1)
    gate.set()
    assert (await task).code == Code.UNKNOWN
    assert rpc.told == []
    rpc.world.assert_even()
    await quiet()


def kserve_id(request_id: str) -> Any:
    return ModelInferResponse(id=request_id)


# --- cancellation -------------------------------------------------------------------------------------------------

SCRIPTS = {
    "answered": ([token(b"a"), FINAL], [token(b"b"), FINAL], [token(b"c", final=True)]),
    "failing": ([token(b"a"), UpstreamEnd(13, "died")], [ZeroDivisionError()], [UpstreamEnd(14, "")]),
    "endless": ([token(b"a")], []),
}


@pytest.mark.parametrize("again", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_cancelling_at_any_step_settles_every_call_once_and_leaves_nothing(
    script: str, again: int | None
) -> None:
    """``again``: a second cancellation, as when a drain meets a client that leaves, that many steps later."""
    reached, step = True, 0
    while reached and step < 60:
        rpc = Rpc(FakeUpstream(*SCRIPTS[script]))
        rpc.world.durable = lambda _: done(None)
        reached = await cancelled_at(
            step, rpc.run(ask("r1", sequence=3), ask("r2"), ask("r3", sequence=3), ask("r4")), again=again
        )
        await quiet()
        rpc.world.assert_even()
        assert {type(fault) for fault in rpc.world.crashes} <= {ZeroDivisionError}  # the script's own
        step += 1
    assert step > 10


async def test_cancelling_while_entries_are_being_made_durable_settles() -> None:
    rpc = Rpc(FakeUpstream([]))
    waiting: list[Future[Denial | None]] = []

    def durable(_: object) -> Future[Denial | None]:
        waiting.append(Future())
        return waiting[-1]

    rpc.world.durable = durable
    task = asyncio.ensure_future(rpc.run(ask()))
    await until(lambda: waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rpc.upstream.calls == []
    rpc.world.assert_even()
    await quiet()


async def test_a_stream_whose_client_has_half_closed_is_never_idle_only_ending() -> None:
    """A drain cuts idle streams at once; one that was all answered was told UNAVAILABLE where it looked just then."""
    last = asyncio.Event()
    world, client = World(), FakeClient()
    with Held(world.budget) as held:
        upstream = FakeUpstream([token(b"a"), last, FINAL])
        relay = StreamRelay(world.services, world.context(STREAM_INFER), upstream, client.send, held, framed=False)
        running = asyncio.ensure_future(relay.run(sending(ask(), held=held)))
        await until(lambda: client.received)
        last.set()
        while not running.done():
            assert not relay.idle()
            await asyncio.sleep(0)
    assert await running == render.OK
    world.assert_even()


@pytest.mark.parametrize("decoupled", [False, True])
async def test_what_a_model_is_the_book_knows_where_the_reader_does_not_say(decoupled: bool) -> None:
    """An empty final response is an ordinary model's answer; of a decoupled one it is shown to who asked for it."""
    slow = asyncio.Event()
    rpc = Rpc(FakeUpstream([slow, FINAL], [token(b"2", final=True)]))
    book = ModelBook(Knowledge(models={"chat": ModelFacts("chat", decoupled=decoupled)}))
    rpc.world.services = replace(rpc.world.services, models=book)
    task = asyncio.ensure_future(rpc.run(ask("1"), ask("2")))
    await until(lambda: len(rpc.world.outcomes) == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert rpc.told == (["2"] if decoupled else [])
    slow.set()
    assert await task == render.OK
    assert rpc.told == (["2"] if decoupled else ["final", "2"])

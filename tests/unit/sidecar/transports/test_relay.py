"""A client's stream: each message its own call; whatever ends it, each call is settled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sidecar.core.model import Denial, MalformedRequest
from sidecar.core.reasons import Code, Reason
from sidecar.core.recorded import OUTPUT_LAG_BYTES
from sidecar.transports import render
from sidecar.transports.budget import Held
from sidecar.transports.exchange import DRAINED, UpstreamEnd
from sidecar.transports.grpc_frames import UnsupportedEncoding
from sidecar.transports.outbox import ClientGone
from sidecar.triton.peek import EMPTY_FINAL_SUFFIX
from sidecar.triton.protos import ModelInferRequest
from tests.support import kserve
from tests.support.core import FakePorts
from tests.support.relay import FINAL, Rpc, ask, token, until
from tests.support.wire import (
    BOUNDS,
    OK_END,
    FakeUpstream,
    done,
    quiet,
    sending,
)

NOT_TOLD = "the model failed; its own words are in the record of call call-1/1"
NO_AUDIT = Denial(Reason.AUDIT_UNAVAILABLE, retry_after=1.0)


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

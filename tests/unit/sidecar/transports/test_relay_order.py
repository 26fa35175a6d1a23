"""A client's stream whose calls belong together: sequences, answers in turn, an error that ends it, its cancel."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from sidecar.core.model import Denial, Forward
from sidecar.core.reasons import Code, Reason
from sidecar.transports import render
from sidecar.transports.budget import Held
from sidecar.transports.exchange import UpstreamEnd
from sidecar.transports.relay import StreamRelay
from sidecar.triton.knowledge import Knowledge, ModelBook, ModelFacts
from sidecar.triton.peek import EMPTY_FINAL_SUFFIX
from sidecar.triton.protos import ModelInferRequest, ModelInferResponse
from sidecar.triton.reader import TritonReader
from tests.support import kserve
from tests.support.reading import isolation
from tests.support.relay import FINAL, Rpc, ask, token, until
from tests.support.wire import (
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

"""The requests of one sequence: one upstream stream, in order of arrival, each with its own end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.core.model import Forward
from sidecar.core.reasons import Code, Reason
from sidecar.transports.exchange import UpstreamEnd
from sidecar.transports.sequences import Seat, Sequences
from sidecar.triton.protos import ModelInferRequest
from tests.support import kserve
from tests.support.wire import STREAM_INFER, FakeUpstream, Item


def asked(request_id: str = "", suffix_id: str = "") -> tuple[bytes, bytes]:
    suffix = ModelInferRequest(id=suffix_id).SerializeToString() if suffix_id else b""
    return kserve.request("counter", id=request_id).SerializeToString(), suffix


def answered(request_id: str = "", *, final: bool = True) -> bytes:
    return kserve.streamed(kserve.response(id=request_id), final=final)


class Desk:
    """A client stream's sequences over scripted upstream streams."""

    def __init__(self, *scripts: list[Item], ordered: bool = True) -> None:
        self.upstream = FakeUpstream(*scripts)
        self.sequences = Sequences(self.upstream)
        self.ordered = ordered

    def join(self, key: object = 7) -> Seat:
        return self.sequences.join(Forward(b"", ordered=self.ordered, sequence=(key,)))

    async def begin(self, seat: Seat, *ids: str) -> None:
        message, suffix = asked(*ids)
        await seat.begin(STREAM_INFER, message, suffix, ())


async def final(seat: Seat) -> bytes:
    """Its next response, which is its last; then it is drained."""
    item = await seat.receive()
    assert isinstance(item, bytes)
    seat.half_close()
    end = await seat.receive()
    assert isinstance(end, UpstreamEnd)
    await seat.cancel()
    return item


async def test_requests_that_overlap_share_a_stream_in_order_of_arrival() -> None:
    desk = Desk([answered("a"), answered("b"), answered("c")])
    seats = [desk.join() for _ in range(3)]
    # Their entries become durable in any order; they are sent in that of their arrival.
    tasks = [asyncio.ensure_future(desk.begin(seat, name)) for seat, name in ((seats[2], "c"), (seats[1], "b"))]
    for _ in range(5):
        await asyncio.sleep(0)
    assert desk.upstream.calls == []
    await desk.begin(seats[0], "a")
    await asyncio.gather(*tasks)
    (call,) = desk.upstream.calls
    assert [ModelInferRequest.FromString(each).id for each in (call.message, *call.more)] == ["a", "b", "c"]
    ends = [asyncio.ensure_future(final(seat)) for seat in reversed(seats)]
    assert [await end for end in reversed(ends)] == [answered("a"), answered("b"), answered("c")]
    assert call.half_closed
    assert len(desk.sequences) == 0


async def test_a_lane_that_is_empty_is_closed_and_the_next_request_opens_another() -> None:
    desk = Desk([answered()], [answered()])
    for _ in range(2):
        seat = desk.join()
        await desk.begin(seat)
        assert await final(seat) == answered()
    assert [call.half_closed for call in desk.upstream.calls] == [True, True]


async def test_other_sequences_have_streams_of_their_own() -> None:
    desk = Desk([answered("a")], [answered("b")])
    one, other = desk.join(1), desk.join(2)
    await desk.begin(other)
    await desk.begin(one)
    assert (await final(other), await final(one)) == (answered("a"), answered("b"))


async def test_a_decoupled_models_responses_are_told_apart_by_the_id_that_triton_was_sent() -> None:
    script: list[Item] = [answered("y", final=False), answered("x", final=False), answered("y"), answered("x")]
    desk = Desk(script, ordered=False)
    one, other = desk.join(), desk.join()
    await desk.begin(one, "a", "x")  # the last id is what counts
    await desk.begin(other, "y")

    async def both(seat: Seat) -> list[bytes]:
        first = await seat.receive()
        assert isinstance(first, bytes)
        return [first, await final(seat)]

    found = await asyncio.gather(both(one), both(other))
    assert found == [[answered("x", final=False), answered("x")], [answered("y", final=False), answered("y")]]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_request_that_is_never_sent_holds_nobody_up(begun: bool) -> None:
    desk = Desk([answered()] * (2 if begun else 1))
    first, second = desk.join(), desk.join()
    waiting = asyncio.ensure_future(desk.begin(second, "b"))
    await asyncio.sleep(0)
    if begun:
        await desk.begin(first, "a")
        await final(first)
    else:
        await first.cancel()
    await waiting
    assert await final(second) == answered()
    assert len(desk.sequences) == 0


async def test_one_that_is_cut_off_takes_those_behind_it_along_and_the_next_begins_anew() -> None:
    desk = Desk([], [answered()])
    first, second = desk.join(), desk.join()
    await desk.begin(first)
    await desk.begin(second)
    waiting = asyncio.ensure_future(second.receive())
    await asyncio.sleep(0)
    await first.cancel()
    end = await waiting
    assert isinstance(end, UpstreamEnd)
    assert end.denial is not None
    assert end.denial.reason is Reason.UPSTREAM_UNAVAILABLE
    third = desk.join()
    await desk.begin(third)
    await second.cancel()
    assert await final(third) == answered()
    assert [call.cancelled > 0 for call in desk.upstream.calls] == [True, True]


async def test_where_the_stream_dies_every_request_on_it_is_told() -> None:
    died = UpstreamEnd(Code.UNAVAILABLE, "died")
    desk = Desk([died], [answered()])
    seats = [desk.join() for _ in range(3)]
    for seat in seats[:2]:
        await desk.begin(seat)
    found: list[Any] = await asyncio.gather(*(seat.receive() for seat in seats[:2]))
    await desk.begin(seats[2])  # its turn comes after the end: it is not sent
    found.append(await seats[2].receive())
    assert found == [died] * 3
    (call,) = desk.upstream.calls
    assert len(call.more) == 1
    for seat in seats:
        await seat.cancel()
    late = desk.join()
    await desk.begin(late)
    assert await final(late) == answered()


async def test_a_seat_is_for_one_request() -> None:
    with pytest.raises(RuntimeError, match="one request"):
        await Desk([]).join().send(b"", b"")

"""Messages on their way to one client: bounded, joined, and cut off where it does not read."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.transports.budget import Budget, Held
from sidecar.transports.exchange import BLOCKED, DRAINED, NO_BUFFER
from sidecar.transports.grpc_frames import FrameReader, frame
from sidecar.transports.outbox import WRITE_BYTES, ClientGone, Outbox, pieces
from tests.support.wire import FakeClient, cancelled_at, quiet


class Desk:
    """An outbox, its client and its budget."""

    def __init__(self, *, limit: int = 100, buffer: int = 10**7, framed: bool = True, blocked: float = 30.0) -> None:
        self.client = FakeClient()
        self.budget = Budget(buffer)
        self.held = Held(self.budget)
        self.outbox = Outbox(self.client.send, self.held, limit=limit, blocked_write=blocked, framed=framed)

    def messages(self) -> list[bytes]:
        frames = FrameReader(10**7)
        return [message for data in self.client.received for message in frames.feed(data)]


async def test_messages_are_written_in_order_and_joined_while_a_write_is_under_way() -> None:
    desk = Desk()
    for message in (b"a", b"", b"bc"):
        assert desk.outbox.put(message) is None
    assert desk.budget.used == 3
    desk.outbox.close()
    assert await desk.outbox.pump() is None
    assert desk.client.received == [frame(b"a") + frame(b"") + frame(b"bc")]
    assert desk.budget.used == 0


async def test_without_frames_each_message_is_one_write() -> None:
    desk = Desk(framed=False)
    desk.outbox.put(b"a")
    desk.outbox.put(b"b")
    desk.outbox.close()
    await desk.outbox.pump()
    assert desk.client.received == [b"a", b"b"]


async def test_writes_are_bounded_and_the_messages_whole() -> None:
    desk = Desk(limit=10**7)
    sent = [b"x" * (WRITE_BYTES * 2 + 1), b"y", b"z" * WRITE_BYTES, b"w" * (WRITE_BYTES - 1), b"v"]
    for message in sent:
        assert desk.outbox.put(message) is None
    desk.outbox.close()
    await desk.outbox.pump()
    assert desk.messages() == sent
    # A join may add a prefix for each message in it; here there are at most two.
    assert max(map(len, desk.client.received)) <= WRITE_BYTES + 10


@pytest.mark.parametrize(
    ("size", "count", "writes"),
    [(WRITE_BYTES // 2, 4, 2), (WRITE_BYTES // 2 + 1, 4, 4), (WRITE_BYTES // 4, 6, 2), (WRITE_BYTES // 3, 4, 2)],
)
async def test_as_many_messages_are_joined_as_fit_into_one_write(size: int, count: int, writes: int) -> None:
    desk = Desk(limit=10**7)
    for _ in range(count):
        desk.outbox.put(b"x" * size)
    desk.outbox.close()
    await desk.outbox.pump()
    assert len(desk.client.received) == writes
    assert len(desk.messages()) == count


@pytest.mark.parametrize("size", [0, 1, WRITE_BYTES, WRITE_BYTES + 1, 3 * WRITE_BYTES])
def test_the_pieces_of_a_message_are_its_frame(size: int) -> None:
    assert b"".join(pieces(b"x" * size)) == frame(b"x" * size)


async def test_one_message_of_any_size_may_wait_and_then_the_limit_holds() -> None:
    desk = Desk(limit=100)
    assert desk.outbox.put(b"x" * 500) is None
    assert desk.outbox.put(b"y") is BLOCKED
    desk.outbox.close()
    await desk.outbox.pump()
    assert desk.outbox.put(b"x" * 60) is None
    assert desk.outbox.put(b"x" * 40) is None
    assert desk.outbox.put(b"x") is BLOCKED
    assert desk.budget.used == 100


async def test_what_the_budget_has_no_room_for_is_not_queued() -> None:
    desk = Desk(buffer=10)
    assert desk.outbox.put(b"x" * 11) is NO_BUFFER
    assert desk.budget.used == 0


async def test_a_write_that_stays_blocked_cuts_the_client_off() -> None:
    desk = Desk(blocked=0.02)
    desk.client.blocked = asyncio.Event()
    desk.outbox.put(b"a")
    assert await desk.outbox.pump() is BLOCKED
    assert desk.budget.used == 0


async def test_failing_ends_the_write_under_way() -> None:
    desk = Desk()
    desk.client.blocked = asyncio.Event()
    desk.outbox.put(b"a")
    pump = asyncio.ensure_future(desk.outbox.pump())
    for _ in range(5):
        await asyncio.sleep(0)
    desk.outbox.put(b"b")
    desk.outbox.fail(DRAINED)
    desk.outbox.fail(BLOCKED)  # the first stands
    assert await asyncio.wait_for(pump, 5) is DRAINED
    assert desk.client.received == []


async def test_failing_before_anything_was_written_writes_nothing() -> None:
    desk = Desk()
    desk.outbox.put(b"a")
    desk.outbox.fail(BLOCKED)
    assert await desk.outbox.pump() is BLOCKED
    assert desk.client.received == []


async def test_a_client_that_is_gone_is_told_by_the_pump() -> None:
    desk = Desk()
    desk.client.fault = ClientGone()
    desk.outbox.put(b"a")
    with pytest.raises(ClientGone):
        await desk.outbox.pump()
    assert desk.budget.used == 0


async def test_what_comes_while_the_pump_waits_is_written() -> None:
    desk = Desk()
    pump = asyncio.ensure_future(desk.outbox.pump())
    for message in (b"a", b"b"):
        for _ in range(5):
            await asyncio.sleep(0)
        desk.outbox.put(message)
    desk.outbox.close()
    assert await pump is None
    assert desk.messages() == [b"a", b"b"]


async def test_cancelling_at_any_step_leaves_only_what_is_still_queued() -> None:
    reached, step = True, 0
    while reached:
        desk = Desk(limit=10**7)
        for message in (b"a" * WRITE_BYTES, b"b" * WRITE_BYTES, b"c"):
            desk.outbox.put(message)
        desk.outbox.close()
        reached = await cancelled_at(step, desk.outbox.pump())
        await quiet()
        with desk.held:
            assert desk.budget.used == sum(map(len, desk.outbox._queue))
        assert desk.budget.used == 0
        step += 1
    assert step > 3

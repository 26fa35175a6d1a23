"""One upstream stream for the requests of one sequence: in order of arrival, and each with an end of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from sidecar.core.model import Denial, Forward, Method
from sidecar.core.reasons import Code, Reason
from sidecar.transports.exchange import UpstreamEnd
from sidecar.transports.upstream import Metadata, Upstream, UpstreamCall
from sidecar.triton.peek import peek_response_id, sent_request_id

_ENDED: Final = UpstreamEnd(Code.OK)
_BROKEN: Final = UpstreamEnd(
    Code.CANCELLED,
    denial=Denial(Reason.UPSTREAM_UNAVAILABLE, "an earlier request of the same sequence was cut off"),
)


class Sequences:
    """The lanes of one client stream, by sequence. A lane without requests is closed, so none is ever idle."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._lanes: dict[object, _Lane] = {}

    def join(self, forward: Forward) -> Seat:
        """Take the next seat of the sequence. To be called in the order of arrival; then ``Seat.begin``."""
        lane = self._lanes.get(forward.sequence)
        if lane is None or lane.closing or lane.over is not None:
            lane = self._lanes[forward.sequence] = _Lane(self, forward.sequence, ordered=forward.ordered)
        return lane.join(self._upstream)

    def closed(self, key: object, lane: _Lane) -> None:
        if self._lanes.get(key) is lane:
            del self._lanes[key]

    def __len__(self) -> int:
        return len(self._lanes)


class _Lane:
    """One upstream stream and the requests on it that have not ended, oldest first."""

    def __init__(self, sequences: Sequences, key: object, *, ordered: bool) -> None:
        self._sequences = sequences
        self._key = key
        self.ordered = ordered
        self.call: UpstreamCall | None = None
        self.over: UpstreamEnd | None = None
        self.closing = False
        self.seats: deque[Seat] = deque()

    def join(self, upstream: Upstream) -> Seat:
        seat = Seat(self, upstream, self.seats[-1] if self.seats else None)
        self.seats.append(seat)
        return seat

    def owner(self, message: bytes) -> Seat:
        """Whose response it is. A decoupled model may answer a later request meanwhile: then the ids tell, if they do.

        Where two requests have the same id the client can't tell them apart either.
        """
        head = self.seats[0]
        if self.ordered or len(self.seats) == 1:
            return head
        told = peek_response_id(message)
        return next((seat for seat in self.seats if seat.id == told), head)

    def leave(self, seat: Seat) -> bool:
        """Whether it was the last one: then the lane takes no more, and its stream is half-closed."""
        self.seats.remove(seat)
        if self.seats:
            self.seats[0].wake.set()
            return False
        self.closing = True
        self._sequences.closed(self._key, self)
        if self.call is not None:
            self.call.half_close()
        return True

    def end(self, end: UpstreamEnd) -> None:
        self.over = self.over or end
        for seat in self.seats:
            seat.wake.set()


class Seat:
    """One request of a sequence, as an ``UpstreamCall``: ``half_close`` says that it has ended, not its stream."""

    def __init__(self, lane: _Lane, upstream: Upstream, before: Seat | None) -> None:
        self._lane = lane
        self._upstream = upstream
        self._before = before
        self.inbox: deque[bytes] = deque()
        self._begun = self._left = self._last = False
        self.passed = asyncio.Event()  # it was sent, or never will be
        self.wake = asyncio.Event()
        self.id = ""

    async def begin(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> None:
        """Send the request, behind those before it; ``metadata`` is a stream's: that of its first request counts."""
        before, self._before = self._before, None
        if before is not None:
            await before.passed.wait()
        self._begun = True
        lane = self._lane
        self.id = "" if lane.ordered else sent_request_id(message, suffix)
        if lane.call is None:
            lane.call = self._upstream.stream(method, message, suffix, metadata)
        elif lane.over is None:
            await lane.call.send(message, suffix)
        self.passed.set()

    async def receive(self) -> bytes | UpstreamEnd:
        lane = self._lane
        assert lane.call is not None
        while True:
            if self.inbox:
                return self.inbox.popleft()
            if self._last:
                return await lane.call.receive()  # drained to its end
            if self._left:
                return _ENDED
            if lane.over is not None:
                return lane.over
            if lane.seats[0] is not self:
                await self.wake.wait()
                self.wake.clear()
                continue
            item = await lane.call.receive()
            if isinstance(item, UpstreamEnd):
                lane.end(item)
                continue
            owner = lane.owner(item)
            owner.inbox.append(item)
            owner.wake.set()

    async def send(self, message: bytes, suffix: bytes) -> None:  # noqa: ARG002 — the Protocol's shape
        """Each request takes a seat of its own: whoever asks for more broke the contract."""
        raise RuntimeError("a seat carries one request")

    def half_close(self) -> None:
        if not self._left:
            self._left = True
            self._last = self._lane.leave(self)

    async def cancel(self) -> None:
        """Where it has not ended, Triton cancels what waits behind it in its sequence too (facts/triton.md §2)."""
        lane = self._lane
        self.passed.set()
        if not self._left:
            self._left = True
            if self._begun:
                lane.end(_BROKEN)
            lane.leave(self)
            if self._begun and lane.call is not None:
                await lane.call.cancel()
        elif self._last and lane.call is not None:
            await lane.call.cancel()

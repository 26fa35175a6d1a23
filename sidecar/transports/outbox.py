"""Messages on their way to one client: bounded, never blocking who puts, cut off when the client won't read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from sidecar.core.model import Denial
from sidecar.transports.budget import Held
from sidecar.transports.exchange import BEHIND, BLOCKED, NO_BUFFER
from sidecar.transports.grpc_frames import prefix
from sidecar.transports.ordering import Line, Place

# One write at most: Envoy takes a write whole, whatever its watermarks say, so this bounds what it holds for a client.
WRITE_BYTES: Final = 256 * 1024

Send = Callable[[bytes], Awaitable[None]]


class ClientGone(Exception):  # noqa: N818 — an event of the wire, raised by its ``send``
    """The client's end of the RPC is gone."""


class Outbox:
    """One client's messages, those of the line in their order. ``pump`` is the only writer.

    ``framed``: they are written as gRPC frames, joined while a write is under way and cut into bounded pieces.
    """

    def __init__(self, send: Send, held: Held, *, limit: int, blocked_write: float, framed: bool) -> None:
        """``limit``: bytes that wait for this client, or in line, behind the first message.

        ``blocked_write``: seconds of one write.
        """
        self._send = send
        self._held = held
        self._limit = limit
        self._blocked_write = blocked_write
        self._framed = framed
        self._queue: deque[bytes] = deque()
        self._line = Line()
        self._queued = 0  # bytes, with those in line
        self._wake = asyncio.Event()
        self._closing = False
        self._failed: Denial | None = None
        self._writing: asyncio.Timeout | None = None  # of the write under way

    @property
    def idle(self) -> bool:
        """Whether all that was put is written."""
        return self._queued == 0

    def join(self) -> Place:
        """The next place in line: of a request whose answer keeps the order of requests."""
        return self._line.join()

    def put(self, message: bytes, place: Place | None = None) -> Denial | None:
        """Queue a message, at its place. A Denial (too much waits): it was not queued, the stream must be cut off."""
        if self._queued and self._queued + len(message) > self._limit:  # one of any size may always wait
            return BEHIND if self._line.kept > self._queued // 2 else BLOCKED
        if not self._held.take(len(message)):
            return NO_BUFFER
        self._queued += len(message)
        self._let_out((message,) if place is None else self._line.put(place, message))
        return None

    def leave(self, place: Place) -> None:
        """No more comes there: those behind it need not wait for it. Harmless twice."""
        self._let_out(self._line.close(place))

    def scatter(self) -> None:
        """The stream ends with a status: what still waits in line is not sent, for what stood before it never comes."""
        freed = self._line.clear()
        self._queued -= freed
        self._held.give(freed)

    def _let_out(self, messages: Sequence[bytes]) -> None:
        if messages:
            self._queue.extend(messages)
            self._wake.set()

    async def pump(self) -> Denial | None:
        """Write until ``close``; a Denial where the client must be cut off. Raises ``ClientGone``."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and self._failed is None:
                if not await self._write(self._take()):
                    return self._failed or BLOCKED
            if self._closing or self._failed is not None:
                return self._failed

    def _take(self) -> list[bytes]:
        """The next message; where they are framed, with those behind it that still fit into one write."""
        messages = [self._queue.popleft()]
        size = len(messages[0])
        while self._framed and self._queue and size + len(self._queue[0]) <= WRITE_BYTES:
            messages.append(self._queue.popleft())
            size += len(messages[-1])
        return messages

    async def _write(self, messages: list[bytes]) -> bool:
        """False where one piece stayed blocked for too long."""
        try:
            for piece in self._pieces(messages):
                async with asyncio.timeout(self._blocked_write) as self._writing:
                    await self._send(piece)
        except TimeoutError:
            return False
        finally:
            self._writing = None
            size = sum(map(len, messages))
            self._queued -= size
            self._held.give(size)
        return True

    def _pieces(self, messages: list[bytes]) -> Iterator[bytes]:
        if not self._framed:
            yield from messages
        elif len(messages) > 1 or len(messages[0]) <= WRITE_BYTES:
            yield b"".join([part for message in messages for part in (prefix(len(message)), message)])
        else:
            yield from pieces(messages[0])

    def fail(self, denial: Denial) -> None:
        """Write no more, nor wait for the write under way: ``pump`` ends with ``denial``."""
        if self._failed is None:
            self._failed = denial
            self._wake.set()
            if self._writing is not None and not self._writing.expired():
                self._writing.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """No more will be put; ``pump`` ends once it has written what is queued."""
        self._closing = True
        self._wake.set()


def pieces(message: bytes) -> Iterator[bytes]:
    """One message's frame in writes of at most ``WRITE_BYTES`` (and its five bytes of prefix)."""
    if len(message) <= WRITE_BYTES:
        yield prefix(len(message)) + message
        return
    yield prefix(len(message))
    for start in range(0, len(message), WRITE_BYTES):
        yield message[start : start + WRITE_BYTES]

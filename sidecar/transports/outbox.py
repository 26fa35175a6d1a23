"""Frames on their way to one client: never blocks who puts, bounded by the budget, cut off when the client won't read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from sidecar.core.model import Denial
from sidecar.transports.budget import Held
from sidecar.transports.exchange import BLOCKED, NO_BUFFER

Send = Callable[[bytes], Awaitable[None]]


class ClientGone(Exception):  # noqa: N818 — an event of the wire, raised by its ``send``
    """The client's end of the RPC is gone."""


class Outbox:
    """One client's frames, joined while a write is under way. ``pump`` is the only writer."""

    def __init__(self, send: Send, held: Held, *, blocked_write: float) -> None:
        self._send = send
        self._held = held
        self._blocked_write = blocked_write
        self._frames: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._failed: Denial | None = None

    def put(self, frame: bytes) -> Denial | None:
        """Queue a frame. A Denial (the buffers are full): it was not queued and the stream must be cut off."""
        if not self._held.take(len(frame)):
            return NO_BUFFER
        self._frames.append(frame)
        self._wake.set()
        return None

    async def pump(self) -> Denial | None:
        """Write until ``close``; a Denial where one write stayed blocked for too long. Raises ``ClientGone``."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._frames and self._failed is None:
                data = self._frames.popleft() if len(self._frames) == 1 else self._join()
                try:
                    async with asyncio.timeout(self._blocked_write):
                        await self._send(data)
                except TimeoutError:
                    return BLOCKED
                finally:
                    self._held.give(len(data))
            if self._closing or self._failed is not None:
                return self._failed

    def _join(self) -> bytes:
        data = b"".join(self._frames)
        self._frames.clear()
        return data

    def fail(self, denial: Denial) -> None:
        """Write no more: ``pump`` ends with ``denial``."""
        self._failed = denial
        self._wake.set()

    def close(self) -> None:
        """No more will be put; ``pump`` ends once it has written what is queued."""
        self._closing = True
        self._wake.set()

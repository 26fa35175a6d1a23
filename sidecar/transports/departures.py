"""Notices clients that left while Triton works, where Envoy did not end the upstream call with the client's own.

A client that leaves just as its upstream call begins leaves that call running (about one of 200 such cancels, pyvoy
1.3.0): nothing ever comes of it, and what it holds stays held. So each RPC is looked at once a second; those that are
over sooner, nearly all, cost two dictionary operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sidecar.transports.outbox import ClientGone

PERIOD: Final = 1.0  # seconds
_LOOK: Final = 1.0  # seconds for one look, which is answered at once

Gone = Callable[[], Awaitable[bool]]


class _Rpc:
    __slots__ = ("gone", "left")

    def __init__(self, gone: Gone) -> None:
        self.gone = gone
        self.left = False


class Departures:
    """The RPCs of one event loop. The task that looks at them ends when there is none left."""

    def __init__(self, period: float = PERIOD) -> None:
        self._period = period
        self._rpcs: dict[asyncio.Task[object], _Rpc] = {}
        self._watcher: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, gone: Gone) -> Iterator[None]:
        """While inside, a client that ``gone`` tells of ends this task here with ``ClientGone``."""
        task = asyncio.current_task()
        assert task is not None
        rpc = self._rpcs[task] = _Rpc(gone)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._run(), name="departures")
        try:
            yield
        except asyncio.CancelledError as cancelled:
            if rpc.left and task.uncancel() == 0:
                raise ClientGone from cancelled
            raise
        finally:
            del self._rpcs[task]

    async def _run(self) -> None:
        while self._rpcs:
            await asyncio.sleep(self._period)
            for task, rpc in tuple(self._rpcs.items()):
                if not rpc.left and await self._left(rpc) and self._rpcs.get(task) is rpc:
                    rpc.left = True
                    task.cancel()

    @staticmethod
    async def _left(rpc: _Rpc) -> bool:
        try:
            async with asyncio.timeout(_LOOK):
                return await rpc.gone()
        except (TimeoutError, OSError):
            return False

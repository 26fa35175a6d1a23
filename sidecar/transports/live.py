"""The RPCs under way in this process, so that a drain can wait for them and, at the end of its grace, end them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class LiveRpc:
    """One RPC's task; ``drained`` tells its handler that a cancellation came from the drain."""

    __slots__ = ("_idle", "_loop", "_on_drain", "_task", "drained")

    def __init__(
        self, task: asyncio.Task[None], on_drain: Callable[[], None] | None, idle: Callable[[], bool] | None
    ) -> None:
        self._task = task
        self._loop = task.get_loop()
        self._on_drain = on_drain
        self._idle = idle
        self.drained = False

    def cut(self) -> None:
        """End it with DRAINING; callable from any thread."""
        self._loop.call_soon_threadsafe(self._cut)

    def cut_if_idle(self) -> None:
        """End it so where nothing is under way on it: a client may keep a stream open that it no longer uses."""
        if self._idle is not None:
            self._loop.call_soon_threadsafe(self._cut_if_idle)

    def _cut_if_idle(self) -> None:
        if self._idle is not None and self._idle():
            self._cut()

    def _cut(self) -> None:
        if not self._task.done() and not self.drained:
            self.drained = True
            if self._on_drain is not None:
                self._on_drain()
            self._task.cancel()


class LiveRpcs:
    """All of them, over every listener's loop."""

    def __init__(self) -> None:
        self._rpcs: set[LiveRpc] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rpcs)

    @contextmanager
    def track(
        self, on_drain: Callable[[], None] | None = None, idle: Callable[[], bool] | None = None
    ) -> Iterator[LiveRpc]:
        task = asyncio.current_task()
        assert task is not None
        rpc = LiveRpc(task, on_drain, idle)
        with self._lock:
            self._rpcs.add(rpc)
        try:
            yield rpc
        finally:
            with self._lock:
                self._rpcs.discard(rpc)

    def cut_all(self) -> None:
        for rpc in self._all():
            rpc.cut()

    def cut_idle(self) -> None:
        """End the streams on which nothing is under way."""
        for rpc in self._all():
            rpc.cut_if_idle()

    def _all(self) -> tuple[LiveRpc, ...]:
        with self._lock:
            return tuple(self._rpcs)

"""The RPCs under way in this process, so that a drain can wait for them, and it or a revocation can end them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from sidecar.core.model import Credential, Denial


class LiveRpc:
    """One RPC's task; ``ending`` tells its handler why we cancelled it, and is None where the client did.

    It can be ended while it is entered.
    """

    __slots__ = ("_all", "_idle", "_loop", "_on_end", "_task", "credential", "ending")

    def __init__(
        self,
        rpcs: LiveRpcs,
        task: asyncio.Task[None],
        credential: Credential | Denial | None,
        on_end: Callable[[Denial], None] | None,
        idle: Callable[[], bool] | None,
    ) -> None:
        self._all = rpcs
        self._task = task
        self._loop = task.get_loop()
        self._on_end = on_end
        self._idle = idle
        self.credential = credential
        self.ending: Denial | None = None

    def __enter__(self) -> LiveRpc:
        self._all.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._all.discard(self)

    def cut(self, denial: Denial) -> None:
        """End it with ``denial``; callable from any thread."""
        self._loop.call_soon_threadsafe(self._cut, denial)

    def cut_if_idle(self, denial: Denial) -> None:
        """End it so where nothing is under way on it: a client may keep a stream open that it no longer uses."""
        if self._idle is not None:
            self._loop.call_soon_threadsafe(self._cut_if_idle, denial)

    def _cut_if_idle(self, denial: Denial) -> None:
        if self._idle is not None and self._idle():
            self._cut(denial)

    def _cut(self, denial: Denial) -> None:
        if not self._task.done() and self.ending is None:
            self.ending = denial
            if self._on_end is not None:
                self._on_end(denial)
            self._task.cancel()


class LiveRpcs:
    """All of them, over every listener's loop."""

    def __init__(self) -> None:
        self._rpcs: set[LiveRpc] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rpcs)

    def track(
        self,
        credential: Credential | Denial | None = None,
        on_end: Callable[[Denial], None] | None = None,
        idle: Callable[[], bool] | None = None,
    ) -> LiveRpc:
        """Within it the RPC can be ended. Its credential must be looked at (again) only after it is tracked."""
        task = asyncio.current_task()
        assert task is not None
        return LiveRpc(self, task, credential, on_end, idle)

    def add(self, rpc: LiveRpc) -> None:
        with self._lock:
            self._rpcs.add(rpc)

    def discard(self, rpc: LiveRpc) -> None:
        with self._lock:
            self._rpcs.discard(rpc)

    def cut_all(self, denial: Denial) -> None:
        for rpc in self._all():
            rpc.cut(denial)

    def cut_idle(self, denial: Denial) -> None:
        """End the streams on which nothing is under way."""
        for rpc in self._all():
            rpc.cut_if_idle(denial)

    def end_withdrawn(self, why: Callable[[Credential | Denial], Denial | None]) -> None:
        """End every RPC whose credential ``why`` gives a Denial for."""
        for rpc in self._all():
            denial = None if rpc.credential is None else why(rpc.credential)
            if denial is not None:
                rpc.cut(denial)

    def _all(self) -> tuple[LiveRpc, ...]:
        with self._lock:
            return tuple(self._rpcs)

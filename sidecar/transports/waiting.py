"""Where calls wait for room in a quota, a moment, instead of being refused: in the order they came, and bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sidecar.core.governor import Recorded, Refused
from sidecar.core.model import Instant
from sidecar.core.reasons import Reason

if TYPE_CHECKING:
    from sidecar.core.governor import Governor

__all__ = ["WAITING", "WaitingRoom"]

WAITING: Final = 1024  # calls at most; more are refused as if nobody could wait
_OF_TIME: Final = frozenset({Reason.RATE_REQUESTS, Reason.RATE_TOKENS, Reason.RATE_COMPUTE})
_LEAST: Final = 0.001  # seconds


class WaitingRoom:
    """One for a process; ``wake`` is called by whoever gives something back, from whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}  # in the order they came
        self._count = 0

    def __len__(self) -> int:
        """Calls that wait now."""
        return self._count

    def wake(self) -> None:
        """Something was given back: each who waits may ask again."""
        if not self._waiting:
            return
        with self._lock:
            woken, self._waiting = self._waiting, {}
        for future, loop in woken.items():
            loop.call_soon_threadsafe(_tell, future)

    async def admit(
        self, governor: Governor, refused: Refused, now: Callable[[], Instant], deadline_ns: int
    ) -> Recorded | Refused:
        """Ask again whenever there may be room, until ``queue_ns`` has passed; then the refusal is recorded.

        Cancelled while it waits, the call is recorded as refused: nothing was forwarded.
        """
        at = now()
        until_ns = min(at.mono_ns + refused.denial.queue_ns, deadline_ns)
        if self._count >= WAITING:
            return governor.refuse(refused, at)
        self._count += 1
        try:
            while (left := (until_ns - now().mono_ns) / 1e9) > 0 and _may_help(refused, left):
                await self._room(refused, left)
                found = governor.try_open(refused.call, now())
                if isinstance(found, Recorded) or not found.denial.queue_ns:
                    return found
                refused = found
        except asyncio.CancelledError:
            governor.refuse(refused, now())
            raise
        finally:
            self._count -= 1
        return governor.refuse(refused, now())

    async def _room(self, refused: Refused, left: float) -> None:
        """Until there may be room: a limit of time says when, the others when somebody gives something back."""
        if refused.denial.reason in _OF_TIME:
            await asyncio.sleep(max(_LEAST, refused.denial.retry_after or left))
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiting[future] = loop
        try:
            await asyncio.wait({future}, timeout=left)
        finally:
            future.cancel()
            with self._lock:
                self._waiting.pop(future, None)


def _may_help(refused: Refused, left: float) -> bool:
    """Whether waiting ``left`` seconds can do any good: a limit of time says when it will have room."""
    denial = refused.denial
    return denial.reason not in _OF_TIME or (denial.retry_after is not None and denial.retry_after <= left)


def _tell(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

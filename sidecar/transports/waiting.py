"""Where calls wait a moment for room in a quota instead of being refused: in bounded lines, in the order they came."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sidecar.core.governor import Recorded, Refused
from sidecar.core.model import Call, Denial, Instant
from sidecar.core.reasons import Reason

if TYPE_CHECKING:
    from sidecar.core.governor import Governor

__all__ = ["LINE", "WAITING", "Line", "WaitingRoom"]

WAITING: Final = 1024  # calls at most; more are refused as if nobody could wait
LINE: Final = 512  # of one tenant, in all its lines: none takes all of it
_OF_TIME: Final = frozenset({Reason.RATE_REQUESTS, Reason.RATE_TOKENS, Reason.RATE_COMPUTE})
_LEAST: Final = 0.001  # seconds
_GONE: Final = Denial(Reason.CLIENT_CANCELLED, internal="it left while it waited behind others for room")

Line = tuple[str, str]
"""A tenant's calls of one model wait in one line: whoever comes later is not let in before them."""


class _Waiter:
    """One call in a line. ``tell`` may be called from any thread."""

    __slots__ = ("_loop", "_told", "queue_ns")

    def __init__(self, queue_ns: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        self.queue_ns = queue_ns

    def tell(self) -> None:
        self._loop.call_soon_threadsafe(self._told.set)

    async def told(self, seconds: float) -> None:
        """Until it is told to look again, ``seconds`` at most."""
        waits = asyncio.ensure_future(self._told.wait())
        try:
            await asyncio.wait({waits}, timeout=seconds)
        finally:
            waits.cancel()
            self._told.clear()


class WaitingRoom:
    """One for a process; ``wake`` is called by whoever gives something back, from whatever thread.

    Only the first of each line asks again; it makes way for the next by getting in, or leaving.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Line, deque[_Waiter]] = {}
        self._of: dict[str, int] = {}  # by tenant
        self._count = 0

    def __len__(self) -> int:
        """Calls that wait now."""
        return self._count

    def wake(self) -> None:
        """Something was given back: the first of each line may ask again."""
        if not self._lines:
            return
        with self._lock:
            firsts = [line[0] for line in self._lines.values()]
        for first in firsts:
            first.tell()

    def ahead(self, line: Line) -> int:
        """How long (ns) those who wait in ``line`` may; 0: nobody does."""
        with self._lock:
            waiters = self._lines.get(line)
            return waiters[0].queue_ns if waiters else 0

    async def admit(
        self, governor: Governor, call: Call, line: Line, now: Callable[[], Instant], deadline_ns: int, *,
        refused: Refused | None, queue_ns: int,
    ) -> Recorded | Refused:  # fmt: skip
        """Wait in line until there is room, until ``queue_ns`` has passed or the deadline; then it is refused.

        ``refused``: what the call was told already; None: it has not asked, because others were ahead of it.
        Cancelled while it waits, the call is recorded as refused: nothing was forwarded.
        """
        at = now()
        waiter = self._join(line, queue_ns)
        if waiter is None:
            return governor.open(call, at) if refused is None else governor.refuse(refused, at)
        found: Recorded | Refused | None = None
        try:
            found = await self._wait(
                governor, call, line, waiter, now, min(at.mono_ns + queue_ns, deadline_ns), refused
            )
        except asyncio.CancelledError:
            self._left(governor, call, refused, now())
            raise
        finally:
            self._leave(line, waiter)
        return found

    async def _wait(
        self, governor: Governor, call: Call, line: Line, waiter: _Waiter, now: Callable[[], Instant], until_ns: int,
        refused: Refused | None,
    ) -> Recorded | Refused:  # fmt: skip
        first = self._first(line) is waiter
        while (left := (until_ns - now().mono_ns) / 1e9) > 0 and (refused is None or _may_help(refused, left)):
            if first and refused is not None and refused.denial.reason in _OF_TIME:
                left = max(_LEAST, refused.denial.retry_after or left)
            await waiter.told(left)
            first = self._first(line) is waiter
            if not first:
                continue
            found = governor.try_open(call, now())
            if isinstance(found, Recorded) or not found.denial.queue_ns:
                return found
            refused = found
        return governor.open(call, now()) if refused is None else governor.refuse(refused, now())

    @staticmethod
    def _left(governor: Governor, call: Call, refused: Refused | None, at: Instant) -> None:
        """Its client left: it is recorded with what kept it waiting."""
        if refused is not None:
            governor.refuse(refused, at)
        else:
            governor.reject(call, _GONE, at)

    def _join(self, line: Line, queue_ns: int) -> _Waiter | None:
        """The last place of the line; None where no more may wait."""
        tenant, _ = line
        with self._lock:
            waiters, own = self._lines.get(line), self._of.get(tenant, 0)
            if self._count >= WAITING or own >= LINE:
                return None
            self._of[tenant] = own + 1
            if waiters is None:
                waiters = self._lines[line] = deque()
            waiters.append(waiter := _Waiter(queue_ns))
            self._count += 1
            return waiter

    def _first(self, line: Line) -> _Waiter:
        return self._lines[line][0]

    def _leave(self, line: Line, waiter: _Waiter) -> None:
        """Whoever is the first now may ask."""
        tenant, _ = line
        with self._lock:
            self._of[tenant] -= 1
            if not self._of[tenant]:
                del self._of[tenant]
            waiters = self._lines[line]
            was_first = waiters[0] is waiter
            waiters.remove(waiter)
            self._count -= 1
            following = waiters[0] if waiters else None
            if following is None:
                del self._lines[line]
        if was_first and following is not None:
            following.tell()


def _may_help(refused: Refused, left: float) -> bool:
    """Whether waiting ``left`` seconds can do any good: a limit of time says when it will have room."""
    denial = refused.denial
    return denial.reason not in _OF_TIME or (denial.retry_after is not None and denial.retry_after <= left)

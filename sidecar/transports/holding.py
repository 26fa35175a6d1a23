"""One call's responses between its guards and its client: passed on, held, let go when their time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar.core.model import Denial
from sidecar.transports.exchange import CRASHED, NO_BUFFER, Exchange

if TYPE_CHECKING:
    from sidecar.core.holdback import HoldBack
    from sidecar.transports.budget import Held
    from sidecar.transports.context import Services

__all__ = ["Holding"]


class Holding:
    """``put`` queues a response for the client (a Denial: too much waits for it); ``cut`` ends the call from outside.

    What is held counts in the buffers' budget. Nothing here awaits: an alarm goes off in the event loop.
    """

    __slots__ = ("_alarm", "_budget", "_cut", "_exchange", "_held", "_put", "_services")

    def __init__(
        self,
        services: Services,
        exchange: Exchange,
        held: HoldBack,
        budget: Held,
        *,
        put: Callable[[bytes], Denial | None],
        cut: Callable[[Denial], None],
    ) -> None:
        self._services = services
        self._exchange = exchange
        self._held = held
        self._budget = budget
        self._put = put
        self._cut = cut
        self._alarm: asyncio.TimerHandle | None = None

    def take(self, message: bytes) -> Denial | None:
        """Queue a response, or hold it until guards have seen enough of what follows it."""
        too_much = self._held.nbytes + len(message) > self._services.bounds.stream_bytes
        if too_much or not self._budget.take(len(message)):
            return NO_BUFFER
        self._held.put(message, self._services.now().mono_ns)
        full = self._let_go(self._held.cleared())
        self._wait()
        return full

    def flush(self) -> Denial | None:
        """No output follows: what is held goes out. A Denial ends the call: guards deny it, or too much waits."""
        found = self._exchange.flushed()
        return found if isinstance(found, Denial) else self._let_go(found)

    def close(self) -> None:
        """The call is over: what is still held of it is never sent."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._budget.give(self._held.nbytes)
        self._held.all()

    def _let_go(self, messages: list[bytes]) -> Denial | None:
        self._budget.give(sum(map(len, messages)))
        for message in messages:
            full = self._put(message)
            if full is not None:
                return full
        return None

    def _wait(self) -> None:
        due_ns = self._held.due_ns()
        if due_ns is not None and self._alarm is None:
            delay = max(0, due_ns - self._services.now().mono_ns) / 1e9
            self._alarm = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        """Something may wait no longer. The crash barrier of the call doesn't reach here, so here is one of its own."""
        self._alarm = None
        if not self._exchange.unsettled:
            return
        try:
            found = self._exchange.due()
            denial = found if isinstance(found, Denial) else self._let_go(found)
        except Exception as fault:  # noqa: BLE001 — DESIGN rule 7: crash the call, closed
            self._services.crashed(self._exchange.call.id, fault)
            denial = CRASHED
        if denial is None:
            self._wait()
        elif self._exchange.unsettled:
            self._cut(denial)

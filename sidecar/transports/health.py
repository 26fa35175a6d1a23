"""What the sidecar answers itself, to anyone, on either wire: is it alive, is it ready. Never recorded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from sidecar.core.model import Denial
from sidecar.core.reasons import Reason
from sidecar.transports.context import RpcContext, Services
from sidecar.transports.live import LiveRpc, LiveRpcs
from sidecar.triton import answers

POLL: Final = 1.0  # seconds between two looks of a Watch: health changes at the pace of its own checks
WATCHES: Final = 64  # open at once in this process: anyone may open one, and it holds a task until its client leaves
REQUEST_BYTES: Final = 64 * 1024  # of a Watch's request, which names a service
TOO_MANY: Final = Denial(Reason.CONCURRENCY, f"{WATCHES} health watches are open", retry_after=1.0, rule="health")
TOO_LARGE: Final = Denial(Reason.REQUEST_TOO_LARGE, f"at most {REQUEST_BYTES} bytes are accepted")
ENDED: Final = Denial(Reason.DRAINING, retry_after=1.0)


def answer(services: Services, context: RpcContext) -> bytes:
    """The one response message of ServerLive, ServerReady and Health/Check."""
    match context.method.name:
        case "ServerLive":
            return answers.server_live(live=True)
        case "ServerReady":
            return answers.server_ready(ready=services.ready())
        case _:
            return answers.health(serving=services.ready())


class Watches:
    """Those open in this process, over every listener's loop; a drain ends them at once, as nothing is under way."""

    def __init__(self, live: LiveRpcs, most: int = WATCHES) -> None:
        self._live = live
        self._free = threading.BoundedSemaphore(most)

    @contextmanager
    def one(self) -> Iterator[LiveRpc | None]:
        """A place for one more; None where there is none."""
        if not self._free.acquire(blocking=False):
            yield None
            return
        try:
            with self._live.track(idle=lambda: True) as live:
                yield live
        finally:
            self._free.release()


async def changes(services: Services, context: RpcContext) -> AsyncIterator[bytes]:
    """Health/Watch: the state now, then each change, until the deadline."""
    told: bool | None = None
    while context.remaining(services.now()) > 0:
        serving = services.ready()
        if serving is not told:
            told = serving
            yield answers.health(serving=serving)
        await asyncio.sleep(POLL)

"""What the sidecar answers itself, to anyone, on either wire: is it alive, is it ready. Never recorded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from sidecar.core.model import Denial, MalformedRequest
from sidecar.core.reasons import Code, Reason
from sidecar.transports import render
from sidecar.transports.context import RpcContext, Services
from sidecar.transports.live import LiveRpc, LiveRpcs
from sidecar.triton import answers, methods, wire

POLL: Final = 1.0  # seconds between two looks of a Watch: health changes at the pace of its own checks
WATCHES: Final = 64  # open at once in this process: anyone may open one, and it holds a task until its client leaves
REQUEST_BYTES: Final = 64 * 1024  # of a Check's or Watch's request, which names a service
PATIENCE: Final = 5.0  # seconds that such a request may take to come: anyone may begin one
# grpc/grpc doc/health-checking.md: "" is the server; a service that it hasn't is NOT_FOUND to a Check, and to a Watch
# SERVICE_UNKNOWN, which goes on.
SERVICES: Final = frozenset({"", methods.KSERVE.strip("/")})
TOO_MANY: Final = Denial(Reason.CONCURRENCY, f"{WATCHES} health watches are open", retry_after=1.0, rule="health")
TOO_LARGE: Final = Denial(Reason.REQUEST_TOO_LARGE, f"at most {REQUEST_BYTES} bytes are accepted", rule="health")
ENDED: Final = Denial(Reason.DRAINING, retry_after=1.0)


_ASKED: Final = wire.Spec(  # HealthCheckRequest{string service = 1}
    "HealthCheckRequest",
    tags={0x0A: wire.Field(1, "service", bit=1, text=True, packed=False, message=None)},
    names={1: "service"},
    entry=False,
)


def answer(services: Services, context: RpcContext) -> bytes:
    """The one response message of ServerLive and ServerReady, whatever was sent."""
    if context.method.name == "ServerLive":
        return answers.server_live(live=True)
    return answers.server_ready(ready=services.ready())


def names_service(context: RpcContext) -> bool:
    """Whether the request says whose health is asked for, and so must be read: Health/Check and Watch."""
    return context.method.path.startswith(methods.HEALTH)


def patience(services: Services, context: RpcContext) -> float:
    """Seconds that its request may still take to come."""
    return min(PATIENCE, context.remaining(services.now()))


def check(services: Services, context: RpcContext, message: bytes) -> bytes | render.Status:
    """Health/Check's response message, or the status in its stead."""
    served = known(message)
    if isinstance(served, Denial):
        return render.status(served, context.id)
    return answers.health(serving=services.ready()) if served else render.Status(Code.NOT_FOUND, "unknown service")


def known(message: bytes) -> bool | Denial:
    """Whether a HealthCheckRequest asks for what is served here; why it can't be read."""
    try:
        named = [wire.text(message, found, _ASKED) for found in wire.scan(message, _ASKED, most=1)]
    except MalformedRequest as fault:
        return Denial(fault.reason, fault.detail, rule="health")
    return (named or [""])[0] in SERVICES


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


async def changes(services: Services, context: RpcContext, *, served: bool = True) -> AsyncIterator[bytes]:
    """Health/Watch: the state now, then each change, until the deadline. ``served``: whether the service is ours."""
    told: bytes | None = None
    while context.remaining(services.now()) > 0:
        state = answers.health(serving=services.ready()) if served else answers.SERVICE_UNKNOWN
        if state != told:
            told = state
            yield state
        await asyncio.sleep(POLL)

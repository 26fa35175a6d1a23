"""What a wire needs of Triton's side: RPCs over bytes, one at a time, each of which can be cancelled alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from sidecar.core.model import Admission, Denial, Method, Secret
from sidecar.transports.context import Services
from sidecar.transports.exchange import Exchange, UpstreamEnd

Metadata = tuple[tuple[str, str], ...]
RESTRICTED_PREFIX: Final = "triton-grpc-protocol-"


@dataclass(frozen=True, slots=True)
class Restricted:
    """What Triton's restricted protocols want to see with every RPC: ``key`` names the header (facts/triton.md §1)."""

    key: str
    secret: Secret

    def metadata(self) -> Metadata:
        """To be sent to Triton, and shown nowhere."""
        return ((RESTRICTED_PREFIX + self.key, self.secret.reveal().decode("ascii")),)


class UpstreamCall(Protocol):
    """One RPC to Triton. ``receive`` gives its messages, then its end, and never raises but on task cancellation."""

    async def receive(self) -> bytes | UpstreamEnd: ...

    async def send(self, message: bytes, suffix: bytes) -> None:
        """One more request message, ``message + suffix``, on a stream that is not half-closed. One at a time."""
        ...

    def half_close(self) -> None:
        """No more request messages: Triton may end the RPC."""
        ...

    async def cancel(self) -> None:
        """Reset the RPC so that Triton stops; harmless after its end, and twice."""
        ...


class Upstream(Protocol):
    """Opens RPCs to Triton; ``metadata`` is the whole of what Triton is sent beside the message."""

    def unary(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        """A unary RPC of the request ``message + suffix``."""
        ...

    def stream(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        """A ModelStreamInfer RPC whose first request message is ``message + suffix``; half-closed only when told."""
        ...


async def durable(services: Services, exchange: Exchange) -> Denial | None:
    """Wait, for a strict call, until its entries so far outlive power. A Denial: they don't."""
    assert exchange.recorded is not None
    future = services.durable(exchange.recorded)
    return None if future is None else await asyncio.wrap_future(future)


def upstream_metadata(admission: Admission) -> Metadata:
    """The allow-list, whole: what isolation states, and the trace where it is sampled (facts/triton.md §0.4, §5).

    Not of a call whose telemetry residency holds back: Triton's own span would bear the trace's name to its collector.
    """
    trace = admission.call.trace
    if trace is None or not trace.sampled or not admission.verdict.may_trace:
        return admission.forward.metadata
    # No tracestate: Triton reads a header's value past its end (facts/triton.md §5); traceparent has a fixed length.
    return (*admission.forward.metadata, ("traceparent", trace.traceparent))

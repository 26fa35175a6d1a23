"""What a wire tells of one RPC before any message is read: read once from its headers, the same on both wires."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from sidecar.core.governor import Governor, Recorded
from sidecar.core.model import (
    Call,
    Credential,
    Denial,
    Disposition,
    Instant,
    MalformedRequest,
    Method,
    TraceContext,
    replace,
)
from sidecar.core.reasons import Reason
from sidecar.identity import credentials
from sidecar.transports import grpc_frames
from sidecar.triton.knowledge import ModelBook

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sidecar.transports.budget import Budget
    from sidecar.transports.waiting import WaitingRoom

Header = tuple[str, bytes | str]

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACESTATE: Final = re.compile(r"[\x20-\x7e]{1,512}")
_DATA_CLASS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}(?:, ?[A-Za-z0-9_.-]{1,64}){0,7}")  # several: each must allow
_READ: Final = frozenset(
    {
        "grpc-timeout",
        "grpc-encoding",
        "triton_grpc_error",
        "traceparent",
        "tracestate",
        "x-data-class",
        "x-warden-subject",
        "x-warden-conversation",
    }
)
_LABEL: Final = re.compile(r"[\x20-\x7e]{1,256}")  # gRPC's metadata is ASCII; beyond it each wire would read its own

NO_MODELS: Final = ModelBook()
FIRST_WORD: Final = 1.0  # seconds a stream that is to be refused may keep silent before it is told
CANCELLED: Final = Denial(Reason.CLIENT_CANCELLED)
EXPIRED: Final = Denial(Reason.UPSTREAM_TIMEOUT)


class Ids(Protocol):
    """Where ids come from (``sidecar.runtime.ids``); counted in tests."""

    def call(self, at: Instant) -> str:
        """A UUIDv7."""
        ...

    def trace(self) -> str:
        """32 hex digits."""
        ...

    def span(self) -> str:
        """16 hex digits."""
        ...

    def sampled(self) -> bool:
        """Whether a trace that begins here is sampled (by ratio)."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a wire holds a client to; sizes in bytes, times in seconds (warden.yaml ``bounds``)."""

    message_bytes: int
    stream_bytes: int  # queued for one client that reads slowly
    calls_per_stream: int
    blocked_write: float
    call_timeout: float


@dataclass(frozen=True, slots=True)
class Services:
    """What both wires are given by the composition root."""

    governor: Governor
    now: Callable[[], Instant]
    ids: Ids
    bounds: Bounds
    budget: Budget
    durable: Callable[[Recorded], Future[Denial | None] | None]  # strict calls: done once their entries outlive power
    ready: Callable[[], bool]
    crashed: Callable[[str, BaseException], None]  # the crash barrier's witness: counts and logs
    cut_off: Callable[[str], None]  # counts clients cut off, by why
    waiting: WaitingRoom
    models: ModelBook = NO_MODELS  # what is public of each model to those who may use it


@dataclass(frozen=True, slots=True)
class RpcContext:
    """One RPC's headers, read. ``fault`` is what is wrong with them; it refuses every call of the RPC."""

    id: str
    method: Method
    arrived: Instant
    credential: Credential | Denial
    peer: str
    trace: TraceContext
    deadline_ns: int
    encoding: str = "identity"
    data_class: str = ""
    subject: str = ""
    conversation: str = ""
    fault: Denial | None = None
    ends_on_error: bool = False  # triton_grpc_error: true: a stream's first error of a model ends the RPC

    def call(self, message: bytes) -> Call:
        """The only call of a unary RPC."""
        return self._call(self.id, self.arrived, self.trace, message, None)

    def streamed(self, n: int, message: bytes, at: Instant, span_id: str) -> Call:
        """Message ``n`` (from 1) of a stream, with a span of its own beside its neighbours'."""
        return self._call(f"{self.id}/{n}", at, replace(self.trace, span_id=span_id), message, self.id)

    def _call(self, call_id: str, at: Instant, trace: TraceContext, message: bytes, stream: str | None) -> Call:
        return Call(
            id=call_id,
            method=self.method,
            arrived=at,
            message=message,
            credential=self.credential,
            peer=self.peer,
            data_class=self.data_class,
            subject=self.subject,
            conversation=self.conversation,
            trace=trace,
            deadline_ns=self.deadline_ns,
            stream=stream,
            fault=self.fault,
        )

    def gone(self, now: Instant) -> Denial:
        """The client has left: by its own deadline (10 ms of slack for its clock and the wire), or of its own will."""
        return EXPIRED if self.deadline_ns - now.mono_ns < 10_000_000 else CANCELLED

    def remaining(self, now: Instant) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, (self.deadline_ns - now.mono_ns) / 1e9)


def governed(method: Method) -> bool:
    """Whether calls of ``method`` pass through the governor; health is answered to anyone."""
    return method.disposition is not Disposition.ANSWER


def read(
    services: Services,
    method: Method,
    pairs: Sequence[Header],
    peer: str,
    *,
    certificate: Sequence[str] = (),
    listener: str = "",
    timeout: int | None = None,
) -> RpcContext:
    """Read one RPC's headers (names in lower case). Never raises: what can't be read becomes the context's ``fault``.

    ``certificate``: the URIs of the client's certificate, verified by the wire. ``listener``: the address of the bound
    listener it came in on, "" for the tenants' port. ``timeout`` is in ns, for a wire whose library reads
    ``grpc-timeout`` itself.
    """
    at = services.now()
    single = _Single(pairs)
    fault: Denial | None = None
    try:
        raw = single.get("grpc-timeout")
        timeout = grpc_frames.parse_timeout(raw) if raw is not None else timeout
        data_class = single.matching("x-data-class", _DATA_CLASS)
        subject = single.matching("x-warden-subject", _LABEL)
        conversation = single.matching("x-warden-conversation", _LABEL)
    except MalformedRequest as malformed:
        fault = Denial(malformed.reason, malformed.detail, rule="headers")
        data_class = subject = conversation = ""
    longest = int(services.bounds.call_timeout * 1e9)
    return RpcContext(
        id=services.ids.call(at),
        method=method,
        arrived=at,
        credential=credentials.extract(pairs, certificate, listener),
        peer=peer,
        trace=_trace(services.ids, single),
        deadline_ns=at.mono_ns + (longest if timeout is None else min(timeout, longest)),
        encoding=single.first("grpc-encoding") or "identity",
        data_class=data_class,
        subject=subject,
        conversation=conversation,
        fault=fault,
        ends_on_error=single.first("triton_grpc_error") == "true",  # that word alone, as Triton reads it
    )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


class _Single:
    """Headers that count once; those in ``_READ`` are found in one pass, as most calls have none of them."""

    __slots__ = ("_found",)

    def __init__(self, pairs: Sequence[Header]) -> None:
        self._found: dict[str, list[bytes | str]] = {}
        for name, value in pairs:
            if name in _READ:
                self._found.setdefault(name, []).append(value)

    def first(self, name: str) -> str | None:
        values = self._found.get(name)
        return _text(values[0]) if values else None

    def get(self, name: str) -> str | None:
        values = self._found.get(name)
        if not values:
            return None
        if len(values) > 1:
            raise MalformedRequest(f"{name} is given {len(values)} times", Reason.REQUEST_AMBIGUOUS)
        return _text(values[0])

    def matching(self, name: str, pattern: re.Pattern[str]) -> str:
        value = self.get(name)
        if value is None:
            return ""
        if pattern.fullmatch(value) is None:
            raise MalformedRequest(f"{name} does not match {pattern.pattern}")
        return value


def _trace(ids: Ids, single: _Single) -> TraceContext:
    """W3C trace context; what is not valid starts a trace of our own, as the specification asks (§4.3)."""
    match = _TRACEPARENT.fullmatch(single.first("traceparent") or "")
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return TraceContext(ids.trace(), ids.span(), None, ids.sampled())
    state = single.first("tracestate") or ""
    return TraceContext(
        trace_id=match[1],
        span_id=ids.span(),
        parent_id=match[2],
        sampled=bool(int(match[3], 16) & 1),
        tracestate=state if _TRACESTATE.fullmatch(state) else "",
    )

"""What is asked: one call as received, the method that it calls, and what its messages say.

Here and in ``model`` nothing refers back to what it is part of, so the garbage collector need not look (``gc=False``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Literal

from msgspec import Struct, field

from sidecar.core.denial import Denial
from sidecar.core.reasons import Reason

__all__ = [
    "NO_FACTS",
    "NO_HEAD",
    "RESTRICTED",
    "STAFF",
    "TOKENS_MAX",
    "Action",
    "Call",
    "Credential",
    "Disposition",
    "Head",
    "InferenceFacts",
    "Instant",
    "MalformedRequest",
    "Method",
    "Network",
    "ParameterValue",
    "ResponseFacts",
    "Secret",
    "TensorFacts",
    "TraceContext",
]

# Of one call, as its backend counts them: what says more counts something else, or lies. The sum of 8 million such
# calls fits 64 bits, so no answer can keep the records of others from being summed up.
TOKENS_MAX: Final = 2**40

ParameterValue = bool | int | float | str
Network = IPv4Network | IPv6Network


class Instant(Struct, frozen=True, gc=False):
    """One moment on both clocks: ``wall_ns`` since the UNIX epoch (to show), ``mono_ns`` monotonic (to subtract)."""

    wall_ns: int
    mono_ns: int

    @property
    def wall(self) -> float:
        """Seconds since the UNIX epoch."""
        return self.wall_ns / 1e9


class Secret:
    """Bytes that never show themselves: no repr, no str, no pickle; ``reveal`` is the one way out (DESIGN rule 8)."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled")


class MalformedRequest(Exception):  # noqa: N818 — h11's naming: the peer's mistake, not an error of ours
    """The peer broke the protocol: REQUEST_MALFORMED, _AMBIGUOUS or _TOO_LARGE; ``detail`` names the field.

    PARAMETER_NOT_ALLOWED where a parameter that nobody may set keeps the rest from being read.
    """

    def __init__(self, detail: str, reason: Reason = Reason.REQUEST_MALFORMED) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = reason


class Action(StrEnum):
    """What a method does, as policies name it."""

    HEALTH = "health"
    INFER = "infer"
    METADATA = "metadata"
    MANAGE = "manage"
    UNKNOWN = "unknown"  # no such method in the table


RESTRICTED: Final = "triton.restricted-protocol"  # an outcome's rule: Triton's secret header, the sidecar's to send
STAFF: Final = frozenset({"operator", "admin"})  # the roles that are shown the whole server


class Disposition(StrEnum):
    """Who answers a method: the sidecar itself, Triton, or nobody."""

    ANSWER = "answer"
    FORWARD = "forward"
    REFUSE = "refuse"


class Method(Struct, frozen=True, gc=False):
    """One RPC of the method table. ``roles`` may call it (empty: nobody); ``by_model``: its message names a model.

    ``instead``: what to do instead of calling what nobody may.
    ``whole``: the roles that are shown all of the server, where the others are shown what their tenant may use.
    ``all_models``: a message that names no model means all of them.
    """

    path: str  # "/inference.GRPCInferenceService/ModelInfer"
    action: Action
    disposition: Disposition
    roles: frozenset[str]
    by_model: bool = False
    streaming: bool = False
    instead: str = ""
    whole: frozenset[str] = frozenset()
    all_models: bool = False

    def shows_all(self, roles: frozenset[str]) -> bool:
        """Whether a caller of these roles sees, and may ask for, more than what its tenant may use."""
        return not self.whole.isdisjoint(roles)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def rpc(self) -> str:
        """The fully qualified name without the leading slash (RPC conventions' ``rpc.method``)."""
        return self.path[1:]


class TraceContext(Struct, frozen=True, gc=False):
    """The W3C trace context of one call: ``span_id`` is the sidecar's own span, ``parent_id`` the client's (hex)."""

    trace_id: str
    span_id: str
    parent_id: str | None
    sampled: bool
    tracestate: str = ""

    @property
    def traceparent(self) -> str:
        """What Triton is sent: exactly 55 characters (facts/triton.md §5)."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


class Credential(Struct, frozen=True, gc=False):
    """The one credential a caller sent, by kind; ``listener`` is none sent, on a listener bound to one principal."""

    # A certificate's secret is its URI, a listener's its address: neither is one.
    kind: Literal["jwt", "api_key", "certificate", "listener"]
    secret: Secret


class Call(Struct, frozen=True, gc=False):
    """One inference request or one other RPC, as received; nothing in it has been judged yet.

    ``message`` is the protobuf message without gRPC framing. ``credential`` is a ``Denial`` where the caller sent none,
    several, or something that is neither kind. ``deadline_ns`` is on the monotonic clock.
    """

    id: str  # UUIDv7, or "<stream id>/<n>" for message n (from 1) of a ModelStreamInfer
    method: Method
    arrived: Instant
    message: bytes
    credential: Credential | Denial
    peer: str = ""
    data_class: str = ""
    subject: str = ""
    conversation: str = ""
    trace: TraceContext | None = None
    deadline_ns: int | None = None
    stream: str | None = None
    fault: Denial | None = None  # what is wrong with its headers


class Head(Struct, frozen=True, gc=False):
    """All that is read of a message before its call is authorised."""

    model: str = ""
    version: str = ""  # "" = latest; canonical decimal otherwise
    parts: object = None  # the reader's own: where it found what else is there, so that it needn't look again


NO_HEAD: Final = Head()


class TensorFacts(Struct, frozen=True, gc=False):
    """One input tensor: its KServe v2 datatype, its shape, and its payload in bytes as it came over the wire."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int


class InferenceFacts(Struct, frozen=True, gc=False):
    """What a ModelInferRequest asks for, read through its model's contract.

    ``prompts`` are the raw bytes of the prompt tensor's elements (maybe not UTF-8); empty for ``generic``.
    ``prompt_tokens`` is per call (all prompts), an estimate unless ``prompt_tokens_exact``.
    ``requested_tokens`` is the most the model may generate per sequence; ``sequences`` is n, beams or best_of.
    ``parameters`` holds request parameters and sampling parameters that were read, by name; ``flags`` the inputs that
    are true or false and mean something here; ``loras`` the adapters asked for; ``raw``: its payloads are raw.
    """

    request_id: str = ""
    model: str = ""
    version: str = ""
    inputs: tuple[TensorFacts, ...] = ()
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    prompts: tuple[bytes, ...] = ()
    prompt_tokens: int = 0
    prompt_tokens_exact: bool = False
    requested_tokens: int = 0
    sequences: int = 1
    streaming: bool = False
    tensor_bytes: int = 0
    flags: Mapping[str, bool] = field(default_factory=dict)
    loras: tuple[str, ...] = ()
    raw: bool = True


NO_FACTS: Final = InferenceFacts()


class ResponseFacts(Struct, frozen=True, gc=False):
    """What one response message says. ``error`` is a stream's in-band ``error_message``; token counts are deltas."""

    request_id: str = ""
    model: str = ""
    model_version: str = ""
    texts: tuple[bytes, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    final: bool = False
    empty: bool = False  # carries no output tensors
    error: str | None = None
    nbytes: int = 0
    withheld: bool = False  # it can't be read, so nobody can say whether the caller may see it
    message: bytes = b""  # what the client is sent: this response, with what isolation changed put back

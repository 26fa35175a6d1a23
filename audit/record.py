"""What the journal holds: a call's admission, output and outcome as separate entries, and everything else as events.

Entries are MessagePack arrays: fields may be appended, never reordered or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

import msgspec

from sidecar.core.model import Finding, Redaction

__all__ = [
    "Admitted",
    "CallFacts",
    "Content",
    "Digested",
    "Entry",
    "Event",
    "Output",
    "Refused",
    "Responded",
    "Settled",
    "Tensor",
    "decode",
    "encode",
    "store_of",
]


class Tensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One input tensor: KServe v2 datatype, shape, payload bytes."""

    name: str
    datatype: str
    shape: list[int]
    nbytes: int


class Digested(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor whose bytes were to be kept and are too many: as above, and their SHA-256."""

    name: str
    datatype: str
    shape: list[int]
    nbytes: int
    sha256: bytes


class Content(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A text as evidence: its length in bytes and SHA-256 always, the bytes where the audit level keeps them.

    ``parts`` may be cut at the configured bound; ``nbytes`` and ``sha256`` are of the whole.
    """

    nbytes: int = 0
    sha256: bytes = b""
    parts: list[bytes] | None = None


class CallFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything known of a call when it was admitted or refused. Times are ns since the UNIX epoch."""

    call_id: str
    started_ns: int
    decided_ns: int
    method: str
    tenant: str = ""
    principal: str = ""
    principal_kind: str = ""
    issuer: str = ""
    key_id: str = ""
    subject: str = ""
    conversation: str = ""
    model: str = ""
    version: str = ""  # as requested
    request_id: str = ""
    data_class: str = ""
    rule: str = ""
    bundle: str = ""
    level: str = "full"
    retention_days: int | None = None
    peer: str = ""
    trace_id: str = ""
    span_id: str = ""
    parent_id: str = ""
    sampled: bool = False
    parameters: dict[str, bool | int | float | str] = {}
    tensors: list[Tensor] = []
    request_bytes: int = 0
    prompt_tokens: int = 0
    requested_tokens: int = 0
    prompt: Content = Content()
    would_refuse: str = ""  # the reason that mode observe or a shadow rule did not enforce
    may_trace: bool = False  # whether its span may be exported: residency allowed it, or nobody is named
    alias: str = ""  # what the caller called the model, where its plan gives it another for that name
    routed_version: str = ""  # that the sidecar picked; "": it picked none
    route: str = ""  # who picked the version of a model that has a canary: client | canary | stable
    route_why: str = ""
    redact: tuple[Redaction, ...] = ()  # what it is to be stored without
    roles: list[str] = []
    narrowed: list[str] | None = None  # models that the credential itself was for; None: all of its tenant's
    classes: list[str] = []  # data classes as the call and its credential said them
    would_rule: str = ""  # that did not enforce ``would_refuse``
    findings: tuple[Finding, ...] = ()  # of the guards on prompts
    searchable: bool = False  # whether its words may be indexed
    reserved: tuple[int, int, int] = (0, 0, 0)  # tokens, KV-cache bytes, tensor bytes
    store: str = ""  # the jurisdiction whose database keeps it; "": that of the journal's segment, here as below
    actor: str = ""  # who had the credential made, as it says itself (a token's `act`)
    keeps: int = 0  # bytes of its request's tensors that are kept; 0: it was not asked for
    request: bytes | None = None  # the message as it was judged; None: not kept, or larger than that
    digested: list[Digested] = []  # what was in it, where it is larger


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted", gc=False):
    """Written before the call is forwarded."""

    call: CallFacts


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused", gc=False):
    """A refusal, whole."""

    call: CallFacts
    reason: str
    status: int  # gRPC code
    detail: str = ""  # as told to the caller
    internal: str = ""


class Output(msgspec.Struct, frozen=True, array_like=True, tag="output", gc=False):
    """A run of output text, at byte ``offset`` of the call's output. Level ``full`` only."""

    call_id: str
    at_ns: int
    offset: int
    texts: list[bytes]
    store: str = ""


class Responded(msgspec.Struct, frozen=True, array_like=True, tag="responded", gc=False):
    """One of the messages that answered a call whose answers' tensors are kept; ``index``: which, from 0.

    ``message`` is None where it is beyond what is kept; ``tensors`` then says what was in it.
    """

    call_id: str
    at_ns: int
    index: int
    message: bytes | None
    tensors: list[Digested] = []
    store: str = ""


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="settled", gc=False):
    """How an admitted call ended, with the last of its output (``texts`` at ``offset``; empty below level ``full``)."""

    call_id: str
    at_ns: int
    outcome: str  # completed | failed | cancelled | aborted (written by recovery: what a crash cut off)
    status: int
    reason: str
    internal: str
    offset: int
    texts: list[bytes]
    output_bytes: int
    output_sha256: bytes
    input_tokens: int
    output_tokens: int
    input_exact: bool
    output_exact: bool
    responses: int
    response_bytes: int
    first_response_ns: int | None  # after started_ns
    duration_ns: int
    model_version: str = ""  # that answered
    model_digest: str = ""  # of that version's directory; "": not known
    quoted: Content = Content()  # Triton's words that the client was not told; the bytes at level ``full`` only
    findings: tuple[Finding, ...] = ()  # of the guards on outputs
    holds_until_ns: int = 0  # Triton may be working on it until then, and it holds what it held; 0: it has ended there
    kv_byte_ms: int = 0  # bytes of KV cache held × ms
    store: str = ""


class Event(msgspec.Struct, frozen=True, array_like=True, tag="event", gc=False):
    """Whatever else belongs in the log: bundle loads, posture changes, recoveries, officer actions."""

    id: str
    at_ns: int
    kind: str
    actor: str = ""
    detail: dict[str, bool | int | float | str] = {}
    store: str = ""


Entry = Admitted | Refused | Output | Responded | Settled | Event

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Entry)


# By type: asked of every entry that is shipped, and a match over these types takes five times as long.
_STORE: Final[Mapping[type, Callable[[Any], str]]] = {
    Admitted: attrgetter("call.store"),
    Refused: attrgetter("call.store"),
    **dict.fromkeys((Output, Responded, Settled, Event), attrgetter("store")),
}


def store_of(entry: Entry) -> str:
    """The jurisdiction whose database keeps it; "": that of the segment it stands in."""
    return _STORE[type(entry)](entry)


encode: Final[Callable[[Entry], bytes]] = _ENCODER.encode


def decode(data: bytes) -> Entry:
    """Raises ``msgspec.DecodeError`` or ``msgspec.ValidationError`` for bytes that are not an entry."""
    return _DECODER.decode(data)

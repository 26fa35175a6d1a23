"""The nouns of the data plane: a call, who makes it, what was decided, what it holds, how it ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from sidecar.core.calls import (
    NO_FACTS,
    NO_HEAD,
    RESTRICTED,
    STAFF,
    TOKENS_MAX,
    Action,
    Call,
    Credential,
    Disposition,
    Head,
    InferenceFacts,
    Instant,
    MalformedRequest,
    Method,
    Network,
    ParameterValue,
    ResponseFacts,
    Secret,
    TensorFacts,
    TraceContext,
)
from sidecar.core.denial import Denial
from sidecar.core.reasons import Code, Reason
from sidecar.core.routing import NO_ROUTE, Route
from sidecar.core.terms import (
    Allowance,
    AuditLevel,
    AuditRule,
    Contract,
    Durability,
    KvProfile,
    Limits,
    LivePool,
    ModelProfile,
    OnPressure,
    PoolSize,
    Quantity,
    Redaction,
    RequestRate,
    Share,
    TensorRule,
)
from sidecar.core.watch import Finding, Guards

__all__ = [
    "NO_FACTS",
    "NO_HEAD",
    "PROOF",
    "RESTRICTED",
    "STAFF",
    "TOKENS_MAX",
    "Action",
    "Admission",
    "Allowance",
    "AuditLevel",
    "AuditRule",
    "Call",
    "Contract",
    "Credential",
    "Demand",
    "Denial",
    "Disposition",
    "Durability",
    "Finding",
    "Forward",
    "Head",
    "InferenceFacts",
    "Instant",
    "KvProfile",
    "Limits",
    "LivePool",
    "MalformedRequest",
    "Method",
    "ModelProfile",
    "Network",
    "OnPressure",
    "Outcome",
    "OutcomeKind",
    "ParameterValue",
    "PoolSize",
    "Principal",
    "Quantity",
    "Redaction",
    "Refused",
    "RequestRate",
    "Reservation",
    "ResponseFacts",
    "Secret",
    "Share",
    "TensorFacts",
    "TensorRule",
    "TraceContext",
    "Undo",
    "Usage",
    "Verdict",
    "counted_as",
    "replace",
]
# --- who and whether ----------------------------------------------------------------------------------------------


class Principal(Struct, frozen=True, gc=False):
    """Who calls. ``name``: the JWT's subject or the key's name.

    ``models`` narrows the tenant's, ``methods`` what its roles may call (names such as ModelInfer), ``networks`` whence
    (None: all).
    """

    tenant: str
    name: str
    kind: Literal["jwt", "api_key", "certificate", "listener", "observed"]
    roles: frozenset[str] = frozenset({"tenant"})
    issuer: str = ""
    key_id: str = ""
    models: tuple[str, ...] | None = None
    expires_at: float | None = None
    subject: str = ""
    conversation: str = ""
    methods: tuple[str, ...] | None = None
    networks: tuple[Network, ...] | None = None
    data_classes: tuple[str, ...] = ()  # of whatever is sent with this credential, beside what the call itself says
    actor: str = ""  # who had the token made out to ``name`` (RFC 8693 §4.1: `act`)

    @property
    def counted_as(self) -> str:
        """Whom a tenant's ``per_key`` limits count apart."""
        return counted_as(self.key_id, self.kind, self.issuer, self.name)


def counted_as(key_id: str, kind: str, issuer: str, name: str) -> str:
    """An API key by its id, any other credential by its kind, issuer and name: whoever chooses a name becomes no key by
    it, and nobody whom another issuer calls the same.
    """
    return key_id or f"{kind}:{issuer}:{name}"


class Verdict(Struct, frozen=True, gc=False):
    """An allow: the rule that decided, and what the bundle says of this tenant and model.

    ``may_trace``: residency was looked at and allows the call's span where this pod's telemetry goes.
    ``would_refuse``: what a rule in shadow would have answered instead. ``alias``: what the client called the model,
    where its plan gives it another for that name. ``route``: the version it gets, and why.
    """

    rule: str
    bundle: str
    profile: ModelProfile
    limits: Limits
    audit: AuditRule
    data_class: str = ""
    may_trace: bool = False
    would_refuse: Denial | None = None
    alias: str = ""
    route: Route = NO_ROUTE
    model_limits: Limits | None = None  # of this tenant and this model together, beside ``limits``
    key_limits: Limits | None = None  # of the API key that asks, in place of ``limits.per_key``
    guards: Guards | None = None  # what the prompt and the output may hold; None: whatever they like
    loras: frozenset[str] = frozenset()  # the adapters that this tenant may use, by name or id
    store: str = ""  # the jurisdiction whose database keeps the record; "": the pod's own


class Refused(Struct, frozen=True, gc=False):
    """A call that was refused, with all that was known of it by then (for its record)."""

    call: Call
    denial: Denial
    bundle: str
    principal: Principal | None = None
    head: Head = NO_HEAD
    verdict: Verdict | None = None
    facts: InferenceFacts = NO_FACTS
    findings: tuple[Finding, ...] = ()
    store: str = ""  # the jurisdiction whose database keeps the record; "": the pod's own


# --- what it holds and how it ends --------------------------------------------------------------------------------


class Demand(Struct, frozen=True, gc=False):
    """What a call asks of the quotas, worst case: tokens (prompt + requested × sequences), bytes of KV and tensors.

    ``prompt_tokens`` is the part of ``tokens`` that is known beforehand. ``timed``: a call without tokens, which is
    charged for the time its model takes.
    """

    tokens: int = 0
    kv_bytes: int = 0
    tensor_bytes: int = 0
    prompt_tokens: int = 0
    timed: bool = False
    kv_block: KvProfile | None = None  # in what steps its KV cache grows


class Reservation(Struct, frozen=True, gc=False):
    """What a call holds until settled. ``over`` is the refusal it would have met, where limits are only observed."""

    tenant: str
    model: str
    demand: Demand
    at: Instant
    over: Denial | None = None


class Undo(Struct, frozen=True, gc=False):
    """What isolation changed and every response has put back.

    ``request_id``: the client's own, for which Triton was sent ``sent`` (None: it stands). ``strip``: outputs that only
    the sidecar asked for. ``beams``: so many times the prompt's tokens stand in the output's count (0: they don't).
    ``sequence``: the one that the response ends, as (client's id, epoch).
    """

    request_id: str | None = None
    strip: frozenset[str] = frozenset()
    sent: str = ""
    beams: int = 0
    sequence: tuple[int | str, int] | None = None


class Forward(Struct, frozen=True, gc=False):
    """What Triton is sent: the judged message, ``suffix`` behind it, and metadata from the allow-list.

    ``suffix`` holds whole protobuf fields: the last of a scalar, and of a map's entries with one key, is what counts,
    so a rewrite copies no payload. ``answer``: the sidecar's own; nothing is forwarded. ``ordered``: responses to such
    calls of a stream come in the order of their requests, as from Triton. ``decoupled``: its model may answer any
    number of times, and an empty final response is none of its own. Where neither is said the model is unknown.
    ``sequence``: calls that share it share one upstream stream. ``begins``: what it takes to forget the sequence that
    the call would have begun, where it is refused after all.
    """

    message: bytes
    metadata: tuple[tuple[str, str], ...] = ()
    suffix: bytes = b""
    undo: Undo | None = None
    answer: bytes | None = None
    ordered: bool = False
    decoupled: bool = False
    sequence: tuple[object, ...] | None = None
    begins: tuple[int | str, int] | None = None  # the client's id, and the epoch (``sidecar.triton.sequences``)


PROOF: Final = object()  # the governor's; nobody else may use it


class Admission(Struct, frozen=True, gc=False):
    """Proof that a call was identified, authorised, in region and within quota. Only ``Governor.admit`` makes one.

    ``would_refuse`` is the refusal that mode ``observe`` (or a shadow rule) did not enforce.
    """

    call: Call
    principal: Principal
    verdict: Verdict
    facts: InferenceFacts
    forward: Forward
    reservation: Reservation
    would_refuse: Denial | None
    proof: object
    findings: tuple[Finding, ...] = ()  # of the guards on prompts

    def __post_init__(self) -> None:
        if self.proof is not PROOF:
            raise TypeError("only Governor.admit makes an Admission")

    def __repr__(self) -> str:
        return f"Admission({self.call.id})"  # neither the proof nor what the caller wrote


class OutcomeKind(StrEnum):
    """How a call ended; ``aborted`` is for crashes, a client's cancel is ``cancelled``."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABORTED = "aborted"


class Outcome(Struct, frozen=True, gc=False):
    """How a forwarded call ended: ``status`` is the gRPC code the client is given.

    ``internal`` is plain: our own words, or such of Triton's as the client may read. ``quoted`` are Triton's words
    where it may not, because a model's exception may quote other tenants' input: kept sealed in the record, and in no
    span, log or metric. ``rule``: as a denial's, where one ended the call, or what is amiss.
    """

    kind: OutcomeKind
    status: Code = Code.OK
    reason: Reason | None = None
    internal: str = ""
    rule: str = ""
    quoted: Secret | None = None


class Usage(Struct, frozen=True, gc=False):
    """What a call really used. Token counts are estimates unless marked exact; times are ns after arrival."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_exact: bool = False
    output_exact: bool = False
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    first_response_ns: int | None = None
    duration_ns: int = 0
    model_version: str = ""
    kv_byte_ms: int = 0  # bytes of KV cache held × ms

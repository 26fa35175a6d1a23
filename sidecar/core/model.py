"""The nouns of the data plane: a call, who makes it, what was decided, what it holds, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from sidecar.core.reasons import REASONS, Code, Reason

if TYPE_CHECKING:
    from sidecar.core.ports import Guards
from sidecar.core.routing import NO_ROUTE, Canary, Route

__all__ = [
    "NO_FACTS",
    "NO_HEAD",
    "PROOF",
    "RESTRICTED",
    "STAFF",
    "Action",
    "Admission",
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
    "MalformedRequest",
    "Method",
    "ModelProfile",
    "Network",
    "Outcome",
    "OutcomeKind",
    "ParameterValue",
    "PoolSize",
    "Principal",
    "Quantity",
    "Redaction",
    "RequestRate",
    "Reservation",
    "ResponseFacts",
    "Secret",
    "Share",
    "TensorFacts",
    "TraceContext",
    "Undo",
    "Usage",
    "Verdict",
    "replace",
]

ParameterValue = bool | int | float | str
Network = IPv4Network | IPv6Network


class Instant(Struct, frozen=True):
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


# --- the call -----------------------------------------------------------------------------------------------------


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


class Method(Struct, frozen=True):
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


class TraceContext(Struct, frozen=True):
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


class Credential(Struct, frozen=True):
    """The one credential a caller sent, by kind; ``listener`` is none sent, on a listener bound to one principal."""

    # A certificate's secret is its URI, a listener's its address: neither is one.
    kind: Literal["jwt", "api_key", "certificate", "listener"]
    secret: Secret


class Call(Struct, frozen=True):
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


class Head(Struct, frozen=True):
    """All that is read of a message before its call is authorised."""

    model: str = ""
    version: str = ""  # "" = latest; canonical decimal otherwise


NO_HEAD: Final = Head()


class Contract(StrEnum):
    """How a model's tensors are to be understood."""

    VLLM = "vllm"
    TRTLLM = "trtllm"
    GENERIC = "generic"


class TensorFacts(Struct, frozen=True):
    """One input tensor: its KServe v2 datatype, its shape, and its payload in bytes as it came over the wire."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int


class InferenceFacts(Struct, frozen=True):
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


class ResponseFacts(Struct, frozen=True):
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


# --- who and whether ----------------------------------------------------------------------------------------------


class Principal(Struct, frozen=True):
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


class Denial(Struct, frozen=True):
    """A refusal. ``detail`` is shown to the caller; ``internal`` goes to the record and the log only.

    ``retry_after`` is in seconds. ``rule`` names what decided: a policy's id, a document's path, or a limit.
    ``resident``: residency was looked at and lets this tenant's data be here, whatever else refuses the call.
    ``always``: enforced in mode observe too, because the call could end the server that everybody uses.
    """

    reason: Reason
    detail: str = ""
    retry_after: float | None = None
    rule: str = ""
    internal: str = ""
    metadata: tuple[tuple[str, str], ...] = ()  # extra ErrorInfo metadata
    queue_ns: int = 0  # how long the call may wait for room instead of being refused at once
    policy: tuple[int, int] = (0, 0)  # the quota and its window (s), as the RateLimit-Policy field states them
    resident: bool = False
    always: bool = False

    @property
    def public(self) -> str:
        """The text a caller reads: the table's sentence and this refusal's detail."""
        text = REASONS[self.reason].public
        return f"{text}: {self.detail}" if self.detail else text


class RequestRate(Struct, frozen=True):
    """``rate`` requests a second on average, ``burst`` at once."""

    rate: float
    burst: int


class Quantity(StrEnum):
    """What a quota counts, in the order it is tried."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    COMPUTE = "compute"
    CONCURRENCY = "concurrency"
    KV_BYTES = "kv_bytes"
    TENSOR_BYTES = "tensor_bytes"


class Share(Struct, frozen=True):
    """A tenant's part of each model's pool, in thousandths: what it always gets back first, and the most it may hold.

    Between the two it borrows what others leave idle.
    """

    guaranteed: int = 0
    burst: int = 1000


class Limits(Struct, frozen=True):
    """The quotas of one account on this pod: a tenant, a tenant's model, or a key; None is "not limited".

    ``expected``: of tokens, reserve what nineteen of twenty such calls use, not the most a call may use.
    ``shadow``: decided and counted, not enforced. ``queue_ns``: how long a call may wait for room before it is refused.
    ``models`` (globs, the first that fits) and ``per_key`` are further limits, each with balances of its own.

    ``priority``: the best (lowest) queue priority it may ask Triton for; ``queue_timeout_us``: the longest its request
    may ask to wait in Triton's queue. None of these two: what a request asks for is left to the model's default.
    """

    requests: RequestRate | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    kv_bytes: int | None = None
    tensor_bytes: int | None = None
    priority: int | None = None
    queue_timeout_us: int | None = None
    compute_per_minute: int | None = None  # ms of the model's time
    expected: bool = False
    shadow: frozenset[Quantity] = frozenset()
    queue_ns: int = 0
    share: Share = Share()
    models: tuple[tuple[str, Limits], ...] = ()
    per_key: Limits | None = None


class PoolSize(Struct, frozen=True):
    """What a model has to share among its tenants; None is "not known", and then not shared out."""

    kv_bytes: int | None = None
    concurrency: int | None = None


class KvProfile(Struct, frozen=True):
    """Bytes of KV cache a token takes over all ranks, and the block the cache is given out in (tokens)."""

    bytes_per_token: int
    tokens_per_block: int = 1
    window: int | None = None  # tokens of a sequence that are kept, where not all are


class ModelProfile(Struct, frozen=True):
    """What models.yaml states of a model. ``max_tokens`` bounds, ``default_tokens`` replaces an absent request's.

    ``classification``: its outputs may be asked for as classes, because each of them is numeric. ``digests``: what is
    stated of its versions' directories. ``stated``: the bundle names the model; one that it doesn't is read by the
    contract that its tensors speak.

    ``stops_ns``: how long after a cancel the model may still hold what the call held. ``runs_on``: it looks at no
    cancel, and that is the longest that it goes on; what the call's own pace makes more likely counts where known.
    """

    name: str
    contract: Contract = Contract.GENERIC
    kv: KvProfile | None = None
    default_tokens: int = 16
    max_tokens: int = 4096
    groups: tuple[str, ...] = ()
    classification: bool = False
    canary: Canary | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    pool: PoolSize = PoolSize()
    stops_ns: int = 500_000_000
    runs_on: bool = False
    stated: bool = True


class AuditLevel(StrEnum):
    """How much of a call its record keeps."""

    METADATA = "metadata"
    PROMPT = "prompt"
    FULL = "full"


class Durability(StrEnum):
    """``batch`` outlives the process, ``strict`` outlives power (DESIGN rule 2)."""

    BATCH = "batch"
    STRICT = "strict"


class Redaction(Struct, frozen=True, array_like=True):
    """One class of personal identifiers that a record is stored without.

    ``pattern`` (RE2) makes a class of its own; ``regions`` (ISO 3166): phone numbers as written there too.
    """

    kind: str
    by: Literal["replace", "hash", "drop"] = "replace"
    pattern: str = ""
    regions: tuple[str, ...] = ()


class AuditRule(Struct, frozen=True):
    """How a tenant's calls are recorded; ``retention_days`` None is "kept until a bundle says otherwise"."""

    level: AuditLevel = AuditLevel.FULL
    durability: Durability | None = None  # None: the sidecar's configured mode
    retention_days: int | None = None
    redact: tuple[Redaction, ...] = ()
    searchable: bool = False
    two_people: bool = False  # an erasure needs a second person's word


class Finding(Struct, frozen=True, array_like=True):
    """What a guard found in a call's content. ``enforced`` stands apart: "none" in shadow and in mode ``observe``."""

    guard: str
    on: str  # prompt | output
    verdict: str  # deny | flag
    enforced: str  # deny | flag | none


class Verdict(Struct, frozen=True):
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
    guards: Guards | None = None  # what the prompt and the output may hold; None: whatever they like
    loras: frozenset[str] = frozenset()  # the adapters that this tenant may use, by name or id


# --- what it holds and how it ends --------------------------------------------------------------------------------


class Demand(Struct, frozen=True):
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


class Reservation(Struct, frozen=True):
    """What a call holds until settled. ``over`` is the refusal it would have met, where limits are only observed."""

    tenant: str
    model: str
    demand: Demand
    at: Instant
    over: Denial | None = None


class Undo(Struct, frozen=True):
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


class Forward(Struct, frozen=True):
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


class Admission(Struct, frozen=True):
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


class Outcome(Struct, frozen=True):
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


class Usage(Struct, frozen=True):
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

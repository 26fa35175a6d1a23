"""What a bundle grants: limits, a model's profile, and how calls are recorded.

Unknown to the garbage collector (``gc=False``): none can be part of a cycle, and a bundle holds tens of thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from sidecar.core.routing import Canary

__all__ = [
    "Allowance",
    "AuditLevel",
    "AuditRule",
    "Contract",
    "Durability",
    "KvProfile",
    "Limits",
    "LivePool",
    "ModelProfile",
    "OnPressure",
    "PoolSize",
    "Quantity",
    "Redaction",
    "RequestRate",
    "Share",
    "TensorRule",
]


class Contract(StrEnum):
    """How a model's tensors are to be understood."""

    VLLM = "vllm"
    TRTLLM = "trtllm"
    GENERIC = "generic"


class RequestRate(Struct, frozen=True, gc=False):
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


class Allowance(Struct, frozen=True, gc=False):
    """What a tenant has left of one of its own limits of time: ``quota`` units in ``window`` seconds.

    ``full_s``: seconds until all of it is there again. Nothing of anybody else can be read from it.
    """

    quantity: Quantity
    quota: int
    window: int
    left: int
    full_s: int


class Share(Struct, frozen=True, gc=False):
    """A tenant's part of each model's pool, in thousandths: what it always gets back first, and the most it may hold.

    Between the two it borrows what others leave idle.
    """

    guaranteed: int = 0
    burst: int = 1000


class Limits(Struct, frozen=True, gc=False):
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


class PoolSize(Struct, frozen=True, gc=False):
    """What a model has to share among its tenants; None is "not known", and then not shared out.

    ``live``: the engine's own metrics say how large the KV cache is; ``kv_bytes`` is what counts while they don't.
    ``engine``: the model whose engine it is, where several stand in front of one and share what it has; "": its own.
    """

    kv_bytes: int | None = None
    concurrency: int | None = None
    live: bool = False
    engine: str = ""


class LivePool(Struct, frozen=True, gc=False):
    """A model's KV cache as its engine tells it: bytes in all, given out, and given out to nobody known here."""

    capacity: int
    used: int
    foreign: int = 0

    def beside(self, held: int) -> LivePool:
        """``held``: the most that calls of ours had reserved since the engine may have counted.

        What the engine has given out beyond that is another's: a client past the sidecar, a call it has lost sight of.
        So what is let in is bounded by the worse of the two counts.
        """
        return LivePool(self.capacity, self.used, max(0, self.used - held))


class KvProfile(Struct, frozen=True, gc=False):
    """Bytes of KV cache a token takes over all ranks, and the block the cache is given out in (tokens)."""

    bytes_per_token: int
    tokens_per_block: int = 1
    window: int | None = None  # tokens of a sequence that are kept, where not all are


class ModelProfile(Struct, frozen=True, gc=False):
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


class OnPressure(StrEnum):
    """What becomes of a tenant's records once the journal is short of space."""

    SHED = "shed"  # prompts and outputs are kept as lengths and digests
    REFUSE = "refuse"  # they are kept whole, as long as there is space; then calls are refused


class Redaction(Struct, frozen=True, array_like=True, gc=False):
    """One class of personal identifiers that a record is stored without.

    ``pattern`` (RE2) makes a class of its own; ``regions`` (ISO 3166): phone numbers as written there too.
    """

    kind: str
    by: Literal["replace", "hash", "drop"] = "replace"
    pattern: str = ""
    regions: tuple[str, ...] = ()


class TensorRule(Struct, frozen=True, gc=False):
    """Of which calls tensors' bytes are kept, outside the database: ``nbytes`` of a call's request, and of its answers.

    ``models``: globs.
    """

    nbytes: int
    inputs: bool = True
    outputs: bool = True
    models: tuple[str, ...] = ("*",)


class AuditRule(Struct, frozen=True, gc=False):
    """How a tenant's calls are recorded; ``retention_days`` None is "kept until a bundle says otherwise".

    ``copies``: the stores outside the node that a call waits for, by their names in the sidecar's configuration; "":
    its first one. Where there is none of that name it is refused. Empty: it never waits. None: a strict one does, where
    there is a store.
    """

    level: AuditLevel = AuditLevel.FULL
    durability: Durability | None = None  # None: the sidecar's configured mode
    retention_days: int | None = None
    redact: tuple[Redaction, ...] = ()
    searchable: bool = False
    two_people: bool = False  # an erasure needs a second person's word
    on_pressure: OnPressure = OnPressure.REFUSE
    copies: tuple[str, ...] | None = None
    tensors: TensorRule | None = None  # None: no tensor's bytes

"""The bundle's documents as written: one pydantic model a kind of file; unknown keys are refused."""

from __future__ import annotations

import importlib
import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    RootModel,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from policies.units import Duration, Moment, Part, Rate, Size, parse_duration
from policies.versions import CanaryDoc, Digest, PrefixCacheDoc, Version
from sidecar.core.model import Contract, Quantity
from sidecar.core.reasons import Reason

__all__ = [
    "AuditDoc",
    "BundleDoc",
    "CaseDoc",
    "CasesDoc",
    "ClassDoc",
    "DataClassDoc",
    "GrantDoc",
    "GuardDoc",
    "KeyDoc",
    "KvDoc",
    "LimitsDoc",
    "ModelDoc",
    "ModelsDoc",
    "NarrowDoc",
    "PlanDoc",
    "PlansDoc",
    "RedactDoc",
    "RegionDoc",
    "RequestsDoc",
    "ResidencyDoc",
    "TenantDoc",
]

MODEL_NAME_LENGTH: Final = 256  # characters; Triton's own names are directory names
DATA_CLASS_LENGTH: Final = 64
LONGEST_RUN: Final = 3600.0  # seconds
QUEUE_MAX: Final = 10.0  # seconds: longer, callers should be told to come back
_RETENTION: Final = re.compile(r"([1-9][0-9]{0,4})d")

# What `authorise` can answer; the other reasons are not a policy's to give.
DECIDABLE: Final = (
    Reason.TENANT_UNKNOWN,
    Reason.TENANT_SUSPENDED,
    Reason.MODEL_NOT_FOUND,
    Reason.POLICY_FORBIDS,
    Reason.RESIDENCY_PROCESSING,
    Reason.RESIDENCY_STORAGE,
    Reason.RESIDENCY_TELEMETRY,
)


def _limit(value: Any) -> Any:
    """``unlimited`` is the only way to say so: an empty value is a mistake, not a wish."""
    if value is None:
        raise ValueError("is empty; write a limit, or unlimited")
    return None if value == "unlimited" else value


def _on_limit(value: Any) -> float:
    """``refuse``, or ``queue 200ms``: seconds to wait."""
    if value == "refuse":
        return 0.0
    verb, _, written = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if verb != "queue":
        raise ValueError("should be refuse, or queue and how long, such as queue 200ms")
    seconds = parse_duration(written)
    if not 0 < seconds <= QUEUE_MAX:
        raise ValueError(f"a call may be queued for more than nothing and at most {QUEUE_MAX:g}s")
    return seconds


def _stated(value: Any) -> Any:
    """``live``, what Triton's metrics say, is read by nothing here: taken, it would silently share out nothing."""
    if value == "live":
        raise ValueError("is not read from Triton; write the size of the model's KV cache, such as 32GiB")
    return value


def _days(value: Any) -> int | None:
    if value == "unlimited":
        return None
    match = _RETENTION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("is not a retention; write whole days such as 400d, or unlimited")
    return int(match[1])


def _redaction(value: object) -> object:
    """A class's name alone is short for replacing it."""
    return {"class": value} if isinstance(value, str) else value


def _searchable(value: bool) -> bool:  # noqa: FBT001 — pydantic calls it
    """Nothing is indexed by its text yet: the same."""
    if value:
        raise ValueError("this version makes nothing searchable; leave it out")
    return value


def _as_grant(value: Any) -> Any:
    """A model's name alone is a grant of it for good."""
    return {"model": value} if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    """One mapping stands for a list of it."""
    return [value] if isinstance(value, dict) else value


def _as_class(value: Any) -> Any:
    """A list alone narrows processing."""
    return {"processing": value} if isinstance(value, list) else value


def _telemetry(value: Any) -> Any:
    """``withheld``: no span of this tenant leaves any pod, and no call is refused for where the collector is."""
    if value == "withheld":
        return None
    if not isinstance(value, list):
        raise ValueError("should be a list of jurisdictions, or withheld")  # noqa: TRY004 — pydantic tells ValueErrors
    return value


def _expectation(value: Any) -> Any:
    if value != "allow" and value not in DECIDABLE:
        raise ValueError(f"should be allow, or one of {', '.join(DECIDABLE)}")
    return value


Count = Annotated[int, Field(strict=True, gt=0, le=2**53)]
Priority = Annotated[int, Field(strict=True, ge=1, le=2**32 - 1)]


class _Limited:
    """Reads ``unlimited`` as None, and says so in the JSON Schema."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_limit, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        told = handler(schema)
        told["anyOf"] = [{"const": "unlimited"} if each == {"type": "null"} else each for each in told["anyOf"]]
        return told


Limited = _Limited()
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]  # of a region, jurisdiction, plan, group
TenantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
ModelName = Annotated[str, Field(pattern=r"^[^\s/*?\[\]]{1,256}$")]
ModelPattern = Annotated[str, Field(pattern=r"^[^\s/\[\]]{1,256}$")]  # * and ? stand for any text, any character
LoraName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,256}$")]
DataClass = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class _Doc(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Dated(_Doc):
    """In force from ``from`` (included) until ``until`` (not included); each left out: without that end."""

    begins: Moment | None = Field(default=None, alias="from")
    ends: Moment | None = Field(default=None, alias="until")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.begins is not None and self.ends is not None and self.begins >= self.ends:
            raise ValueError("until is not after from, so it is never in force")
        return self


# --- bundle.yaml ---------------------------------------------------------------------------------------------------


class RegionDoc(_Doc):
    """A place, and the legal area it lies in."""

    jurisdiction: Name


class DataClassDoc(_Doc):
    """A data class that tenants may declare, in words."""

    about: Annotated[str, Field(max_length=1000)] = ""


class ChangeDoc(_Doc):
    """Who made this bundle what it is, and where that was reviewed: kept with each record of its load."""

    author: Annotated[str, Field(min_length=1, max_length=200)]
    reference: Annotated[str, Field(max_length=200)] = ""  # a commit, a pull request


class BundleDoc(_Doc):
    """bundle.yaml: every region of the bundle, and every data class (left out: each tenant names its own)."""

    regions: dict[Name, RegionDoc] = Field(min_length=1)
    classes: dict[DataClass, DataClassDoc] | None = Field(default=None, max_length=256)
    change: ChangeDoc | None = None


# --- models.yaml ---------------------------------------------------------------------------------------------------


class KvDoc(_Doc):
    """What a token takes in the KV cache: stated, or read from a TensorRT-LLM engine's or a checkpoint's config.json.

    A checkpoint doesn't know how its server runs it: ``dtype`` (its own), ``tensor_parallel`` (1) and
    ``tokens_per_block`` (vLLM's 16) say so where it is otherwise.
    """

    engine_config: str | None = None  # engines/….json
    checkpoint: str | None = None  # engines/….json
    bytes_per_token: Count | None = None  # over all ranks
    tokens_per_block: Count | None = None
    dtype: Literal["float32", "float16", "bfloat16", "fp8", "int8", "nvfp4", "fp8_ds_mla"] | None = None
    tensor_parallel: Annotated[Count, Field(le=1024)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> KvDoc:
        ways = [self.engine_config is not None, self.checkpoint is not None, self.bytes_per_token is not None]
        if sum(ways) != 1 or (self.bytes_per_token is not None and self.tokens_per_block is None):
            raise ValueError("write one of engine_config, checkpoint, or bytes_per_token and tokens_per_block")
        if self.engine_config is not None and self.tokens_per_block is not None:
            raise ValueError("the engine states its tokens_per_block itself")
        if self.checkpoint is None and (self.dtype is not None or self.tensor_parallel is not None):
            raise ValueError("dtype and tensor_parallel are for a checkpoint")
        return self

    @property
    def file(self) -> str | None:
        return self.engine_config or self.checkpoint


class PoolDoc(_Doc):
    """What the model has to share among its tenants, by each one's plan. Without it nothing is shared out."""

    kv_memory: Annotated[Size, BeforeValidator(_stated, json_schema_input_type=Size)] | None = None
    concurrency: Count | None = None


class OnCancelDoc(_Doc):
    """What the model does when a call is cancelled: it stops within a time, or goes on, at most for a time."""

    stops_within: Duration | None = None
    runs_on: Duration | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.stops_within is None) == (self.runs_on is None):
            raise ValueError("write either stops_within or runs_on")
        if max(self.stops_within or 0, self.runs_on or 0) > LONGEST_RUN:
            raise ValueError(f"a call holds what it held for at most {LONGEST_RUN:g}s after its cancel")
        return self


class ModelDoc(_Doc):
    """How one model is to be read and what it takes. Models that the file doesn't name are ``generic``."""

    contract: Contract
    kv: KvDoc | None = None
    default_tokens: Count = 16  # vLLM's own default for an absent max_tokens
    max_tokens: Count = 4096
    groups: tuple[Name, ...] = Field(default=(), max_length=32)
    pool: PoolDoc = PoolDoc()
    on_cancel: OnCancelDoc = OnCancelDoc(stops_within="500ms")
    classification: Annotated[bool, Field(strict=True)] = False  # true only where every output is numeric
    canary: CanaryDoc | None = None
    # By version, of its directory: for records where the sidecar can't read triton.model_repository itself.
    digests: dict[Version, Digest] = Field(default={}, max_length=1000)
    prefix_cache: PrefixCacheDoc = PrefixCacheDoc()

    @model_validator(mode="after")
    def _consistent(self) -> ModelDoc:
        if self.default_tokens > self.max_tokens:
            raise ValueError("default_tokens is more than max_tokens")
        if self.contract is Contract.GENERIC and self.kv is not None:
            raise ValueError("a generic model has no tokens, so kv means nothing")
        if self.contract is Contract.GENERIC and "prefix_cache" in self.model_fields_set:
            raise ValueError("a generic model has no prefix cache, so prefix_cache means nothing")
        if self.kv is None and self.pool.kv_memory is not None:
            raise ValueError("pool.kv_memory can't be shared out without kv: nobody knows what a call takes")
        if self.contract is not Contract.GENERIC and self.classification:
            raise ValueError("a language model's output is text, and Triton dies when asked to classify text")
        return self


class ModelsDoc(RootModel[dict[ModelName, ModelDoc]]):
    """models.yaml."""

    model_config = ConfigDict(frozen=True)


# --- plans.yaml ----------------------------------------------------------------------------------------------------


class RequestsDoc(_Doc):
    """``rate`` on average, ``burst`` at once."""

    rate: Annotated[Rate, Field(le=1e6)]
    burst: Annotated[Count, Field(le=10**7)]


class TokensDoc(_Doc):
    """Prompt and requested output tokens, reserved up front.

    ``reserve: expected``: what nineteen of twenty of the tenant's calls to the model use, and more as a call needs it;
    a call for which the budget then has no more is ended.
    """

    per_minute: Annotated[Count, Field(le=10**12)]
    reserve: Literal["full", "expected"] = "full"


class ComputeDoc(_Doc):
    """The time that models without tokens work for the tenant."""

    seconds_per_minute: Annotated[float, Field(gt=0, le=10**6)]


class ShareDoc(_Doc):
    """Of each model's pool: what is given back to the tenant first, and the most it may borrow up to."""

    guaranteed: Part = 0
    burst: Part = 1000

    @model_validator(mode="after")
    def _not_beyond(self) -> Self:
        if self.burst == 0:
            raise ValueError("a burst of nothing admits nothing")
        if self.guaranteed > self.burst:
            raise ValueError("guaranteed is more than burst")
        return self


Shadow = Annotated[tuple[Quantity, ...], Field(max_length=len(Quantity))]


class NarrowDoc(_Doc):
    """Limits of one model, or of each key, beside the tenant's own; what isn't written isn't limited."""

    requests: Annotated[RequestsDoc | None, Limited] = None
    tokens: Annotated[TokensDoc | None, Limited] = None
    compute: Annotated[ComputeDoc | None, Limited] = None
    concurrency: Annotated[Count | None, Limited] = None
    kv_memory: Annotated[Size | None, Limited] = None
    tensor_memory: Annotated[Size | None, Limited] = None
    shadow: Shadow = ()

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not self.model_fields_set - {"shadow"}:
            raise ValueError("limits nothing")
        return self


NarrowByModel = Annotated[dict[ModelPattern, NarrowDoc], Field(max_length=256)]
OnLimit = Annotated[
    float, BeforeValidator(_on_limit, json_schema_input_type=Annotated[str, Field(pattern="^(refuse|queue .+)$")])
]  # seconds that a call may wait for room


class PlanDoc(_Doc):
    """A plan states the first five quotas; what isn't limited says ``unlimited``. The rest may be left out.

    ``priority`` and ``queue_timeout`` bound what a request may ask of Triton's queue: 1 is its best priority. Left out,
    a request may ask for neither, and gets the model's defaults.
    """

    requests: Annotated[RequestsDoc | None, Limited]
    tokens: Annotated[TokensDoc | None, Limited]
    concurrency: Annotated[Count | None, Limited]
    kv_memory: Annotated[Size | None, Limited]
    tensor_memory: Annotated[Size | None, Limited]
    priority: Priority | None = None
    queue_timeout: Duration | None = None
    aliases: dict[ModelName, ModelName] = Field(default={}, max_length=100)  # what a tenant asks for → what answers
    compute: Annotated[ComputeDoc | None, Limited] = None
    share: ShareDoc = ShareDoc()
    shadow: Shadow = ()
    on_limit: OnLimit = 0.0
    per_model: NarrowByModel = {}
    per_key: NarrowDoc | None = None


class LimitsDoc(_Dated):
    """A tenant's exceptions from its plan, for good or for a while; what isn't written is the plan's."""

    requests: Annotated[RequestsDoc | None, Limited] = None
    tokens: Annotated[TokensDoc | None, Limited] = None
    concurrency: Annotated[Count | None, Limited] = None
    kv_memory: Annotated[Size | None, Limited] = None
    tensor_memory: Annotated[Size | None, Limited] = None
    priority: Priority | None = None
    queue_timeout: Duration | None = None
    compute: Annotated[ComputeDoc | None, Limited] = None
    share: ShareDoc = ShareDoc()
    shadow: Shadow = ()
    on_limit: OnLimit = 0.0
    per_model: NarrowByModel = {}
    per_key: NarrowDoc | None = None


class PlansDoc(RootModel[dict[Name, PlanDoc]]):
    """plans.yaml."""

    model_config = ConfigDict(frozen=True)


# --- tenants/*.yaml ------------------------------------------------------------------------------------------------


Telemetry = Annotated[
    tuple[Name, ...] | None, BeforeValidator(_telemetry, json_schema_input_type=list[Name] | Literal["withheld"])
]


class ClassDoc(_Doc):
    """What one data class narrows, within what the tenant allows; what isn't written is the tenant's own."""

    processing: tuple[Name, ...] | None = None
    storage: tuple[Name, ...] | None = None
    telemetry: Telemetry = ()

    @model_validator(mode="after")
    def _narrows(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("is empty; write what it narrows: processing, storage or telemetry")
        return self


class ResidencyDoc(_Doc):
    """Where a tenant's data may be: jurisdictions or regions, all stated, none meant by leaving it out.

    ``storage`` and ``telemetry`` take jurisdictions only: that is all a sidecar knows of its database and collector.
    ``classes`` names the data classes the tenant uses, and narrows the three for each (a list alone: ``processing``).
    """

    processing: tuple[Name, ...]
    storage: tuple[Name, ...]
    telemetry: Telemetry
    classes: dict[
        DataClass, Annotated[ClassDoc, BeforeValidator(_as_class, json_schema_input_type=list[Name] | ClassDoc)]
    ] = Field(default={}, max_length=64)


_Days = Annotated[str, Field(pattern=rf"^({_RETENTION.pattern}|unlimited)$")]


class RedactDoc(_Doc):
    """Identifiers of one class that are taken out before a record is stored.

    ``class`` is one of ours or, with ``pattern`` (RE2), a name of your own; ``regions`` (ISO 3166) are for phone
    numbers without a country code.
    """

    kind: Annotated[str, Field(alias="class", pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    by: Literal["replace", "hash", "drop"] = "replace"
    pattern: str = ""
    regions: tuple[Annotated[str, Field(pattern=r"^[A-Z]{2}$")], ...] = Field((), max_length=16)

    @model_validator(mode="after")
    def _known(self) -> Self:
        # Loaded where a bundle redacts: the numbering plans are 13 MB that most sidecars needn't hold.
        fault = importlib.import_module("audit.redact").rule_fault(self.kind, self.pattern, self.regions)
        if fault is not None:
            raise ValueError(fault)
        return self


class AuditDoc(_Doc):
    """How a tenant's calls are recorded. ``durability`` absent: the sidecar's own mode.

    ``retention`` is kept with each record, and ends it (`warden audit retain`). ``two_people``: an erasure needs a
    second person's word.
    """

    level: Literal["full", "prompt", "metadata"]
    retention: Annotated[int | None, BeforeValidator(_days, json_schema_input_type=_Days)]  # days
    durability: Literal["batch", "strict"] | None = None
    redact: tuple[Annotated[RedactDoc, BeforeValidator(_redaction)], ...] = Field((), max_length=32)
    searchable: Annotated[bool, Field(strict=True), AfterValidator(_searchable)] = False
    two_people: Annotated[bool, Field(strict=True)] = False


class GrantDoc(_Dated):
    """A model, or the models of a glob. ``shadow``: to be taken away; calls go on, their records say what will be."""

    model: ModelPattern
    shadow: Annotated[bool, Field(strict=True)] = False


Grant = Annotated[GrantDoc, BeforeValidator(_as_grant, json_schema_input_type=ModelPattern | GrantDoc)]


class GuardDoc(_Doc):
    """Finds something in a tenant's prompts or outputs: an identifier of a class, a pattern (RE2), or a long prompt.

    ``then: deny`` refuses the call, or cuts the output off; ``flag`` says so on its record. ``shadow``: recorded only.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    on: Literal["prompt", "output"]
    classes: tuple[str, ...] = Field((), max_length=16)
    patterns: tuple[str, ...] = Field((), max_length=64)
    longer_than: Annotated[int, Field(gt=0, strict=True)] | None = None  # characters
    then: Literal["deny", "flag"]
    shadow: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if not (self.classes or self.patterns or self.longer_than):
            raise ValueError("looks for nothing; give it classes, patterns or longer_than")
        if self.longer_than is not None and self.on == "output":
            raise ValueError("longer_than is for prompts; how long an output may be is the request's max_tokens")
        if self.classes or self.patterns:
            rule_fault = importlib.import_module("audit.redact").rule_fault  # as RedactDoc
            faults = [rule_fault(kind, "", ()) for kind in self.classes]
            faults += [rule_fault(self.id, pattern, ()) for pattern in self.patterns]
            for fault in filter(None, faults):
                raise ValueError(fault)
        return self


def _ids_once(guards: tuple[GuardDoc, ...]) -> tuple[GuardDoc, ...]:
    ids = [guard.id for guard in guards]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"the id {twice[0]} stands twice")
    return guards


class KeyDoc(_Dated):
    """What one API key, by its name, is narrowed to; what isn't written is the tenant's."""

    models: tuple[Grant, ...] | None = Field(default=None, max_length=1000)
    data_class: DataClass | None = None  # of whatever is sent with it


class TenantDoc(_Dated):
    """One tenant, in the file that bears its name."""

    tenant: TenantName
    plan: Name
    status: Literal["active", "suspended"]
    models: tuple[Grant, ...] = Field(max_length=1000)
    limits: Annotated[
        tuple[LimitsDoc, ...], BeforeValidator(_as_list, json_schema_input_type=LimitsDoc | list[LimitsDoc])
    ] = Field(default=(), max_length=16)
    loras: tuple[LoraName, ...] = Field(default=(), max_length=256)  # adapters it may use, by name or id; none else
    keys: dict[Annotated[str, Field(min_length=1, max_length=256)], KeyDoc] = Field(default={}, max_length=1000)
    residency: ResidencyDoc
    audit: AuditDoc
    guards: Annotated[tuple[GuardDoc, ...], AfterValidator(_ids_once)] = Field((), max_length=64)


# --- tests/*.yaml --------------------------------------------------------------------------------------------------


_Expected = Annotated[str, Field(pattern=f"^(allow|{'|'.join(DECIDABLE)})$")]


class CaseDoc(_Doc):
    """One question and the answer it must get; ``storage`` and ``telemetry`` default to the region's jurisdiction.

    ``at`` is asked where dates or hours decide, ``source`` where addresses do, ``key`` (an API key's name) in place of
    a token's ``principal``; ``shadow`` is the rule that must be found not enforced.
    """

    name: str = ""
    tenant: str
    model: str = ""
    region: Name
    data_class: str = ""
    action: Literal["infer", "metadata", "manage"] = "infer"
    roles: tuple[str, ...] = ("tenant",)
    principal: str = ""
    key: str = ""
    method: str = ""
    source: str = ""
    at: Moment | None = None
    storage: Name | None = None
    telemetry: Name | None = None
    shadow: str | None = None
    expect: Annotated[str, BeforeValidator(_expectation, json_schema_input_type=_Expected)]
    rule: str | None = None


class CasesDoc(RootModel[list[CaseDoc]]):
    """A file of cases: a list."""

    model_config = ConfigDict(frozen=True)

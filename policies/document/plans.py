"""plans.yaml as written: quotas, shares, priorities, aliases."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, RootModel, model_validator

from policies.document.content import GuardDocs, HoldBackDoc, RedactDocs
from policies.document.fields import Count, Dated, Doc, Limited, ModelName, ModelPattern, Name, Priority
from policies.units import Duration, Part, Rate, Size, parse_duration
from sidecar.core.model import Quantity

__all__ = [
    "ComputeDoc",
    "LimitsDoc",
    "NarrowByModel",
    "NarrowDoc",
    "OnLimit",
    "PlanDoc",
    "PlansDoc",
    "RequestsDoc",
    "Shadow",
    "ShareDoc",
    "TokensDoc",
]

QUEUE_MAX: Final = 10.0  # seconds: longer, callers should be told to come back


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


class RequestsDoc(Doc):
    """``rate`` on average, ``burst`` at once."""

    rate: Annotated[Rate, Field(le=1e6)]
    burst: Annotated[Count, Field(le=10**7)]


class TokensDoc(Doc):
    """Prompt and requested output tokens, reserved up front.

    ``reserve: expected``: what nineteen of twenty of the tenant's calls to the model use, and more as a call needs it;
    a call for which the budget then has no more is ended.
    """

    per_minute: Annotated[Count, Field(le=10**12)]
    reserve: Literal["full", "expected"] = "full"


class ComputeDoc(Doc):
    """The time that models without tokens work for the tenant."""

    seconds_per_minute: Annotated[float, Field(gt=0, le=10**6)]


class ShareDoc(Doc):
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


class NarrowDoc(Doc):
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


class PlanDoc(Doc):
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
    per_model: NarrowByModel = Field(default={})
    per_key: NarrowDoc | None = None
    # Of all its tenants; each may add to them, and change none that isn't replaceable.
    guards: GuardDocs = ()
    hold_back: HoldBackDoc | None = None
    redact: RedactDocs = ()


class LimitsDoc(Dated):
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
    per_model: NarrowByModel = Field(default={})
    per_key: NarrowDoc | None = None


class PlansDoc(RootModel[dict[Name, PlanDoc]]):
    """plans.yaml."""

    model_config = ConfigDict(frozen=True)

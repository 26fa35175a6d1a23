"""tenants/*.yaml as written: one tenant each, with its grants, residency, audit, guards and keys."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from policies.document.content import GuardDocs, HoldBackDoc, RedactDocs
from policies.document.fields import DataClass, Dated, Doc, LoraName, ModelPattern, Name, TenantName, as_list
from policies.document.plans import LimitsDoc, NarrowDoc
from policies.units import Size

__all__ = [
    "AuditClassDoc",
    "AuditDoc",
    "ClassDoc",
    "GrantDoc",
    "KeyDoc",
    "ResidencyDoc",
    "TenantDoc",
    "TensorsDoc",
]

TENSOR_BYTES_MOST: Final = 16 * 2**20  # of one side of a call; a journal entry takes 64 MiB
_RETENTION: Final = re.compile(r"([1-9][0-9]{0,4})d")


def _days(value: Any) -> int | None:
    if value == "unlimited":
        return None
    match = _RETENTION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("is not a retention; write whole days such as 400d, or unlimited")
    return int(match[1])


def _as_grant(value: Any) -> Any:
    """A model's name alone is a grant of it for good."""
    return {"model": value} if isinstance(value, str) else value


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


Telemetry = Annotated[
    tuple[Name, ...] | None, BeforeValidator(_telemetry, json_schema_input_type=list[Name] | Literal["withheld"])
]


class ClassDoc(Doc):
    """What one data class narrows, within what the tenant allows; what isn't written is the tenant's own."""

    processing: tuple[Name, ...] | None = None
    storage: tuple[Name, ...] | None = None
    records: Annotated[tuple[Name, ...] | None, Field(min_length=1)] = None
    telemetry: Telemetry = ()

    @model_validator(mode="after")
    def _narrows(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("is empty; write what it narrows: processing, storage, records or telemetry")
        return self


class ResidencyDoc(Doc):
    """Where a tenant's data may be: jurisdictions or regions, all stated, none meant by leaving it out.

    ``storage`` and ``telemetry`` take jurisdictions only: that is all a sidecar knows of its database and collector.
    ``records``: of ``storage``, those whose database may keep the records; the rest of it is for pods' journals only.
    ``classes`` names the data classes the tenant uses, and narrows all for each (a list alone: ``processing``).
    """

    processing: tuple[Name, ...]
    storage: tuple[Name, ...]
    records: Annotated[tuple[Name, ...] | None, Field(min_length=1)] = None
    telemetry: Telemetry
    classes: dict[
        DataClass, Annotated[ClassDoc, BeforeValidator(_as_class, json_schema_input_type=list[Name] | ClassDoc)]
    ] = Field(default={}, max_length=64)


_Days = Annotated[str, Field(pattern=rf"^({_RETENTION.pattern}|unlimited)$")]


# none, required, or a store's name in warden.yaml's ``audit.journal.copy``, or in that of the database concerned.
CopyWord = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]


class TensorsDoc(Doc):
    """Whose tensors' bytes are kept, in the sidecar's object store: ``keep`` bytes at most of a call's request, and of
    its answers. ``of``: which of the two; ``models``: names or globs. Inputs need the level prompt, outputs full.
    """

    keep: Annotated[Size, Field(le=TENSOR_BYTES_MOST)]
    of: Annotated[tuple[Literal["inputs", "outputs"], ...], Field(min_length=1, max_length=2)] = ("inputs", "outputs")
    models: Annotated[tuple[ModelPattern, ...], Field(min_length=1, max_length=64)] = ("*",)


class AuditClassDoc(Doc):
    """What is different for calls of one data class; a call of several gets the strictest of each.

    ``tensors``: how much of them is kept at most, or none; of several classes the least.
    """

    durability: Literal["batch", "strict"] | None = None
    on_pressure: Literal["shed", "refuse"] | None = None
    copies: Annotated[CopyWord | None, Field(alias="copy")] = None
    tensors: Literal["none"] | Annotated[Size, Field(le=TENSOR_BYTES_MOST)] | None = None


class AuditDoc(Doc):
    """How a tenant's calls are recorded. ``durability`` absent: the sidecar's own mode.

    ``retention`` is kept with each record, and ends it (`warden audit retain`). ``searchable``: keyed hashes of the
    words that are kept find a call, until its key is destroyed. ``two_people``: an erasure needs a second person's
    word. ``on_pressure``: once the journal is short of space, whether prompts and outputs may be kept as lengths and
    digests (shed) or calls are rather refused when it is full. ``copy``: whether calls wait until their entries are
    outside the node, in the sidecar's first store (required) or the one of that name, or don't (none); absent: strict
    ones do, where the sidecar copies. ``tensors``: whose bytes are kept; absent: nobody's.
    """

    level: Literal["full", "prompt", "metadata"]
    retention: Annotated[int | None, BeforeValidator(_days, json_schema_input_type=_Days)]  # days
    durability: Literal["batch", "strict"] | None = None
    redact: RedactDocs = ()
    searchable: Annotated[bool, Field(strict=True)] = False
    two_people: Annotated[bool, Field(strict=True)] = False
    on_pressure: Literal["shed", "refuse"] = "refuse"
    copies: Annotated[CopyWord | None, Field(alias="copy")] = None
    tensors: TensorsDoc | None = None
    classes: dict[DataClass, AuditClassDoc] = Field({}, max_length=64)

    @model_validator(mode="after")
    def _content_is_kept(self) -> Self:
        if self.tensors is None:
            return self
        kept = {"full": {"inputs", "outputs"}, "prompt": {"inputs"}, "metadata": set()}[self.level]
        lost = [each for each in self.tensors.of if each not in kept]
        if lost:
            raise ValueError(f"tensors: the level {self.level} keeps no {' and no '.join(lost)}; write another level")
        return self


class GrantDoc(Dated):
    """A model, or the models of a glob. ``shadow``: to be taken away; calls go on, their records say what will be."""

    model: ModelPattern
    shadow: Annotated[bool, Field(strict=True)] = False


Grant = Annotated[GrantDoc, BeforeValidator(_as_grant, json_schema_input_type=ModelPattern | GrantDoc)]


class KeyDoc(Dated):
    """What one API key, by its name, is narrowed to; what isn't written is the tenant's."""

    models: tuple[Grant, ...] | None = Field(default=None, max_length=1000)
    data_class: DataClass | None = None  # of whatever is sent with it
    limits: NarrowDoc | None = None  # in place of what per_key says of those that it writes


class TenantDoc(Dated):
    """One tenant, in the file that bears its name."""

    tenant: TenantName
    plan: Name
    status: Literal["active", "suspended"]
    models: tuple[Grant, ...] = Field(max_length=1000)
    limits: Annotated[
        tuple[LimitsDoc, ...], BeforeValidator(as_list, json_schema_input_type=LimitsDoc | list[LimitsDoc])
    ] = Field(default=(), max_length=16)
    loras: tuple[LoraName, ...] = Field(default=(), max_length=256)  # adapters it may use, by name or id; none else
    keys: dict[Annotated[str, Field(min_length=1, max_length=256)], KeyDoc] = Field(default={}, max_length=1000)
    residency: ResidencyDoc
    audit: AuditDoc
    guards: GuardDocs = ()
    hold_back: HoldBackDoc | None = None

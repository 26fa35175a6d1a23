"""What the documents' models share: names, counts, limits that may be lifted, and dates."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from policies.units import Moment

__all__ = [
    "DATA_CLASS_LENGTH",
    "MODEL_NAME_LENGTH",
    "Count",
    "DataClass",
    "Dated",
    "Doc",
    "Limited",
    "LoraName",
    "ModelName",
    "ModelPattern",
    "Name",
    "Priority",
    "TenantName",
    "as_list",
]

MODEL_NAME_LENGTH: Final = 256  # characters; Triton's own names are directory names
DATA_CLASS_LENGTH: Final = 64
Count = Annotated[int, Field(strict=True, gt=0, le=2**53)]
Priority = Annotated[int, Field(strict=True, ge=1, le=2**32 - 1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]  # of a region, jurisdiction, plan, group
TenantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
ModelName = Annotated[str, Field(pattern=r"^[^\s/*?\[\]]{1,256}$")]
ModelPattern = Annotated[str, Field(pattern=r"^[^\s/\[\]]{1,256}$")]  # * and ? stand for any text, any character
LoraName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,256}$")]
DataClass = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


def as_list(value: Any) -> Any:
    """One mapping stands for a list of it."""
    return [value] if isinstance(value, dict) else value


def _limit(value: Any) -> Any:
    """``unlimited`` is the only way to say so: an empty value is a mistake, not a wish."""
    if value is None:
        raise ValueError("is empty; write a limit, or unlimited")
    return None if value == "unlimited" else value


class _Limited:
    """Reads ``unlimited`` as None, and says so in the JSON Schema."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_limit, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        told = handler(schema)
        told["anyOf"] = [{"const": "unlimited"} if each == {"type": "null"} else each for each in told["anyOf"]]
        return told


Limited = _Limited()


class Doc(BaseModel):
    """A mapping of exactly the keys it names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Dated(Doc):
    """In force from ``from`` (included) until ``until`` (not included); each left out: without that end."""

    begins: Moment | None = Field(default=None, alias="from")
    ends: Moment | None = Field(default=None, alias="until")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.begins is not None and self.ends is not None and self.begins >= self.ends:
            raise ValueError("until is not after from, so it is never in force")
        return self

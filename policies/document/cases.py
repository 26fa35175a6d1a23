"""tests/*.yaml as written: questions, and the answers they must get."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, RootModel, model_validator

from policies.document.fields import Doc, Name
from policies.units import Moment
from sidecar.core.reasons import Reason

__all__ = ["DECIDABLE", "CaseDoc", "CasesDoc"]

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


def _expectation(value: Any) -> Any:
    if value not in ("allow", "cut", *DECIDABLE):
        raise ValueError(f"should be allow, cut (of an output), or one of {', '.join(DECIDABLE)}")
    return value


_Expected = Annotated[str, Field(pattern=f"^(allow|cut|{'|'.join(DECIDABLE)})$")]
_OF_CONTENT: Final = (
    "prompt_tokens",
    "max_tokens",
    "sequences",
    "streaming",
    "temperature",
    "top_p",
    "finds",
    "redacts",
)


class CaseDoc(Doc):
    """One question and the answer it must get; ``storage`` and ``telemetry`` default to the region's jurisdiction.

    ``at`` is asked where dates or hours decide, ``source`` where addresses do, ``issuer`` (a token's) where issuers do;
    ``key`` (an API key's name) stands in place of a token's ``principal``; ``shadow`` is the rule that must be found
    not enforced.

    ``prompt`` and ``output`` are put to the guards and to redaction. ``finds``: exactly which guards find something,
    and what they do; ``redacts``: how many identifiers of which class the record is stored without.
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
    issuer: str = ""
    at: Moment | None = None
    storage: Name | None = None
    telemetry: Name | None = None
    shadow: str | None = None
    expect: Annotated[str, BeforeValidator(_expectation, json_schema_input_type=_Expected)]
    rule: str | None = None
    prompt: str | None = None
    output: str | None = None
    prompt_tokens: Annotated[int, Field(ge=0, strict=True)] | None = None  # left out: estimated
    max_tokens: Annotated[int, Field(gt=0, strict=True)] | None = None  # left out: the model's default
    sequences: Annotated[int, Field(gt=0, strict=True)] = 1
    streaming: Annotated[bool, Field(strict=True)] = False
    temperature: float | None = None
    top_p: float | None = None
    finds: dict[str, Literal["deny", "cut", "flag", "shadow"]] | None = Field(default=None, max_length=64)
    redacts: dict[str, Annotated[int, Field(gt=0, strict=True)]] | None = Field(default=None, max_length=32)

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        written = [name for name in _OF_CONTENT if name in self.model_fields_set]
        if self.prompt is None and self.output is None and written:
            raise ValueError(f"{written[0]} means nothing without a prompt or an output")
        if self.output is None and self.expect == "cut":
            raise ValueError("only an output can be cut; write one")
        if self.action != "infer" and (self.prompt is not None or self.output is not None):
            raise ValueError("only an infer has a prompt or an output")
        return self


class CasesDoc(RootModel[list[CaseDoc]]):
    """A file of cases: a list."""

    model_config = ConfigDict(frozen=True)

"""tests/*.yaml as written: questions, and the answers they must get."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, RootModel

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
    if value != "allow" and value not in DECIDABLE:
        raise ValueError(f"should be allow, or one of {', '.join(DECIDABLE)}")
    return value


_Expected = Annotated[str, Field(pattern=f"^(allow|{'|'.join(DECIDABLE)})$")]


class CaseDoc(Doc):
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

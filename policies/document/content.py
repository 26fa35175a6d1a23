"""What plans and tenants say of content: guards on prompts and outputs, how far those hold back, and redaction."""

from __future__ import annotations

import importlib
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from policies.document.fields import Doc
from policies.units import Duration

__all__ = ["GuardDoc", "GuardDocs", "HoldBackDoc", "RedactDoc", "RedactDocs"]

HOLD_BYTES: Final = 16_384
HOLD_SECONDS: Final = 10.0


def _redaction(value: object) -> object:
    """A class's name alone is short for replacing it."""
    return {"class": value} if isinstance(value, str) else value


class RedactDoc(Doc):
    """Identifiers of one class that are taken out before a record is stored.

    ``class`` is one of ours or, with ``pattern`` (RE2), a name of your own; ``regions`` (ISO 3166) are for phone
    numbers without a country code.
    """

    kind: Annotated[str, Field(alias="class", pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    by: Literal["replace", "hash", "drop"] = "replace"
    pattern: str = ""
    regions: tuple[Annotated[str, Field(pattern=r"^[A-Z]{2}$")], ...] = Field((), max_length=16)
    replaceable: Annotated[bool, Field(strict=True)] = False  # in a plan: a tenant's of the class stands in its place

    @model_validator(mode="after")
    def _known(self) -> Self:
        # Loaded where a bundle redacts: the numbering plans are 13 MB that most sidecars needn't hold.
        fault = importlib.import_module("audit.redact").rule_fault(self.kind, self.pattern, self.regions)
        if fault is not None:
            raise ValueError(fault)
        return self


class GuardDoc(Doc):
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
    replaceable: Annotated[bool, Field(strict=True)] = False  # in a plan: a tenant's of the same id stands in its place

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


class HoldBackDoc(Doc):
    """How far a stream stays behind the model, where a guard on outputs denies.

    ``bytes``: of a forbidden text no longer than that, nothing is sent (half as much again may be held). ``within``:
    no token waits longer, so a slower stream may have been sent the beginning of such a text when its end is found.
    """

    nbytes: Annotated[int, Field(alias="bytes", strict=True, gt=0, le=HOLD_BYTES)]
    within: Duration

    @model_validator(mode="after")
    def _soon(self) -> Self:
        if not 0 < self.within <= HOLD_SECONDS:
            raise ValueError(f"within should be more than nothing and at most {HOLD_SECONDS:g}s: readers wait for it")
        return self


def _ids_once(guards: tuple[GuardDoc, ...]) -> tuple[GuardDoc, ...]:
    ids = [guard.id for guard in guards]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"the id {twice[0]} stands twice")
    return guards


RedactDocs = Annotated[
    tuple[Annotated[RedactDoc, BeforeValidator(_redaction, json_schema_input_type=str | RedactDoc)], ...],
    Field(max_length=32),
]
GuardDocs = Annotated[tuple[GuardDoc, ...], AfterValidator(_ids_once), Field(max_length=64)]

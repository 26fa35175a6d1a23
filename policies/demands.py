"""A tenant's guards and redactions: its plan's, which it can't lessen, and what it adds to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from policies.document import GuardDoc, HoldBackDoc, PlanDoc, RedactDoc, TenantDoc
from policies.yamlfile import Document, Problem

__all__ = ["content_faults", "guards_of", "hold_of", "redactions_of"]

# How much of an identifier is left: a hash can be told again, a replaced one says of which class it was.
_STRICTER: Final = ("hash", "replace", "drop")


def guards_of(doc: TenantDoc, plan: PlanDoc | None) -> tuple[GuardDoc, ...]:
    """The plan's, in whose place one of the same id stands where that may be, and then the tenant's."""
    own = {guard.id for guard in doc.guards}
    return (*(guard for guard in (plan.guards if plan else ()) if guard.id not in own), *doc.guards)


def redactions_of(doc: TenantDoc, plan: PlanDoc | None) -> tuple[RedactDoc, ...]:
    """As ``guards_of``, by their classes; phone numbers as written in both one's regions."""
    ours = {each.kind: each for each in (plan.redact if plan else ())}
    found = dict(ours)
    for each in doc.audit.redact:
        known = ours.get(each.kind)
        regions = () if known is None or known.replaceable else known.regions
        found[each.kind] = each.model_copy(update={"regions": tuple(dict.fromkeys((*regions, *each.regions)))})
    return tuple(found.values())


def hold_of(doc: TenantDoc, plan: PlanDoc | None) -> HoldBackDoc | None:
    return doc.hold_back or (plan.hold_back if plan else None)


def content_faults(document: Document, doc: TenantDoc, plan: PlanDoc | None) -> Iterator[Problem]:
    """Where a tenant would have less than its plan demands."""
    yield from _guard_faults(document, doc, plan.guards if plan else ())
    yield from _redaction_faults(document, doc, plan.redact if plan else ())
    least, own = plan.hold_back if plan else None, doc.hold_back
    if least is not None and own is not None and (own.nbytes < least.nbytes or own.within < least.within):
        message = f"holds back less than its plan ({least.nbytes} bytes, {least.within:g}s)"
        yield document.problem(("hold_back",), message, at_key=True)


def _guard_faults(document: Document, doc: TenantDoc, demanded: Sequence[GuardDoc]) -> Iterator[Problem]:
    fixed = {guard.id for guard in demanded if not guard.replaceable}
    for index, guard in enumerate(doc.guards):
        if guard.replaceable:
            yield document.problem(("guards", index), "replaceable is for a plan's guards")
        if guard.id in fixed:
            message = f"its plan has a guard {guard.id} that isn't replaceable; give this one another id"
            yield document.problem(("guards", index, "id"), message)


def _redaction_faults(document: Document, doc: TenantDoc, demanded: Sequence[RedactDoc]) -> Iterator[Problem]:
    fixed = {each.kind: each for each in demanded if not each.replaceable}
    for index, own in enumerate(doc.audit.redact):
        path, asked = ("audit", "redact", index), fixed.get(own.kind)
        if own.replaceable:
            yield document.problem(path, "replaceable is for a plan's redactions")
        if asked is not None and asked.pattern != own.pattern:
            yield document.problem(path, f"its plan redacts {own.kind} by another pattern")
        elif asked is not None and _STRICTER.index(own.by) < _STRICTER.index(asked.by):
            yield document.problem(path, f"{own.by} leaves more of {own.kind} than its plan's {asked.by}")

"""Which rules of a bundle no test case touches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from policies.bundle import Bundle
from policies.cases import CaseResult
from policies.document import CaseDoc
from policies.tenant import Grant, Period, Tenant

__all__ = ["rules", "touched", "untouched"]


def rules(bundle: Bundle) -> list[str]:
    """Everything that can decide, or that an answer goes by: every document's, and each Cedar policy.

    Of tenants: status, dates, grants, own limits, keys, residency and its classes, guards and what is redacted. Of the
    others: regions, data classes, models, plans and their aliases, rules on content.
    """
    found = [f"bundle.yaml:regions.{name}" for name in bundle.regions]
    found += (f"bundle.yaml:classes.{name}" for name in bundle.classes or ())
    found += (f"models.yaml:{name}" for name in bundle.models)
    plans = {tenant.plan: tenant for tenant in bundle.tenants.values()}
    for name, tenant in plans.items():
        found.append(f"plans.yaml:{name}")
        found += (f"plans.yaml:{name}.aliases.{alias}" for alias in tenant.aliases)
    for tenant in bundle.tenants.values():
        found += _of_tenant(tenant)
    content = bundle.rules.rules if bundle.rules is not None else ()
    return [*found, *bundle.access.statements, *(f"guards.{name}" for name in content)]


def _of_tenant(tenant: Tenant) -> Iterator[str]:
    document = tenant.document
    yield f"{document}:status"
    yield from _ends(f"{document}:", tenant.period)
    yield from _of_grants(f"{document}:models", tenant.grants)
    yield from (f"{document}:limits[{index}]" for index in range(len(tenant.overrides)))
    for key, rule in (tenant.keys or {}).items():
        yield f"{document}:keys.{key}"
        yield from _ends(f"{document}:keys.{key}.", rule.period)
        yield from _of_grants(f"{document}:keys.{key}.models", rule.grants or ())
    yield f"{document}:residency"
    yield from (f"{document}:residency.classes.{name}" for name in tenant.residency.classes)
    yield from (f"{document}:{name}" for name in _guards(tenant))
    yield from (f"{document}:audit.redact.{rule.kind}" for rule in tenant.audit.redact)


def _guards(tenant: Tenant) -> list[str]:
    return [f"guards.{guard.name}" for guard in (tenant.guards.guards if tenant.guards is not None else ())]


def _of_grants(place: str, grants: Iterable[Grant]) -> Iterator[str]:
    for index, grant in enumerate(grants):
        yield f"{place}[{index}]"
        yield from _ends(f"{place}[{index}].", grant.period)


def _ends(place: str, period: Period) -> Iterator[str]:
    if math.isfinite(period.begins):
        yield f"{place}from"
    if math.isfinite(period.ends):
        yield f"{place}until"


# --- what a case touches -------------------------------------------------------------------------------------------


def touched(bundle: Bundle, results: Iterable[CaseResult], at: float = 0.0) -> set[str]:
    """The rules that some case's answer went by; ``at``: when those were asked that name no moment."""
    found: set[str] = set()
    for result in results:
        found |= set(_by(bundle, result, at))
    return found


def _by(bundle: Bundle, result: CaseResult, now: float) -> Iterator[str]:
    case, tenant = result.case.case, bundle.tenants.get(result.case.case.tenant)
    yield f"bundle.yaml:regions.{case.region}"
    if tenant is None:
        return
    at = now if case.at is None else case.at
    model = tenant.aliases.get(case.model, case.model)
    yield from (f"bundle.yaml:classes.{name}" for name in _classes(case))
    yield from _outside(tenant, case, model, at)
    if case.key:
        yield f"{tenant.document}:keys.{case.key}"
    own = {*_guards(tenant), *(f"audit.redact.{rule.kind}" for rule in tenant.audit.redact)}
    for step in result.explanation.steps:
        yield from (f"{tenant.document}:{rule}" if rule in own else rule for rule in step.rules or (step.rule,))
        if step.step == "status":
            yield f"{tenant.document}:status"
        if step.step == "model" and step.outcome != "deny":
            yield f"models.yaml:{model}"
            yield from _of_key(tenant, case.key, model, at)
        if step.step == "residency" and step.outcome != "skip":
            yield f"{tenant.document}:residency"
            yield from (f"{tenant.document}:residency.classes.{name}" for name in _classes(case))
    if result.explanation.allowed:  # then its limits go with it
        yield f"plans.yaml:{tenant.plan}"
        yield from (f"{tenant.document}:limits[{n}]" for n, each in enumerate(tenant.overrides) if each.covers(at))


def _classes(case: CaseDoc) -> list[str]:
    return [name.strip() for name in case.data_class.split(",") if name.strip()]


def _of_key(tenant: Tenant, key: str, model: str, at: float) -> Iterator[str]:
    """The key's grant that the call went by."""
    rule = (tenant.keys or {}).get(key)
    for index, grant in enumerate((rule.grants if rule is not None else None) or ()):
        if grant.names(model) and grant.period.covers(at):
            yield f"{tenant.document}:keys.{key}.models[{index}]"
            return


def _outside(tenant: Tenant, case: CaseDoc, model: str, at: float) -> Iterator[str]:
    """A date is touched by a case on its far side: before a ``from``, or at an ``until`` and after it."""
    document, key = tenant.document, (tenant.keys or {}).get(case.key)
    dated = [(f"{document}:", tenant.period)]
    dated += ((f"{document}:models[{n}].", grant.period) for n, grant in enumerate(tenant.grants) if grant.names(model))
    if key is not None:
        place = f"{document}:keys.{case.key}"
        dated.append((f"{place}.", key.period))
        dated += (
            (f"{place}.models[{n}].", grant.period) for n, grant in enumerate(key.grants or ()) if grant.names(model)
        )
    for where, period in dated:
        if at < period.begins:
            yield f"{where}from"
        if at >= period.ends:
            yield f"{where}until"


def untouched(bundle: Bundle, results: Iterable[CaseResult], at: float = 0.0) -> list[str]:
    """In the bundle's order."""
    seen = touched(bundle, results, at)
    return [rule for rule in rules(bundle) if rule not in seen]

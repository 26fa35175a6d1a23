"""Which rules of a bundle no test case touches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from policies.bundle import Bundle
from policies.explain import CaseResult

__all__ = ["rules", "touched", "untouched"]


def rules(bundle: Bundle) -> list[str]:
    """Everything that can decide: each tenant's status, grants, keys, residency and its classes; each Cedar policy."""
    found: list[str] = []
    for tenant in bundle.tenants.values():
        document = tenant.document
        found.append(f"{document}:status")
        found += (f"{document}:models[{index}]" for index in range(len(tenant.grants)))
        found += (f"{document}:keys.{key}" for key in tenant.keys or ())
        found.append(f"{document}:residency")
        found += (f"{document}:residency.classes.{name}" for name in tenant.residency.classes)
    return [*found, *bundle.access.statements]


def touched(bundle: Bundle, results: Iterable[CaseResult]) -> set[str]:
    """The rules that some case's answer went by."""
    found: set[str] = set()
    for result in results:
        found |= set(_by(bundle, result))
    return found


def _by(bundle: Bundle, result: CaseResult) -> Iterator[str]:
    case, tenant = result.case.case, bundle.tenants.get(result.case.case.tenant)
    if tenant is None:
        return
    if case.key:
        yield f"{tenant.document}:keys.{case.key}"
    for step in result.explanation.steps:
        yield from step.rules or (step.rule,)
        if step.step == "status" and step.rule.rpartition(":")[2] in ("from", "until"):
            yield f"{tenant.document}:status"
        if step.step == "residency" and step.outcome != "skip":
            yield f"{tenant.document}:residency"
            yield from (f"{tenant.document}:residency.classes.{name.strip()}" for name in case.data_class.split(","))


def untouched(bundle: Bundle, results: Iterable[CaseResult]) -> list[str]:
    """In the bundle's order."""
    seen = touched(bundle, results)
    return [rule for rule in rules(bundle) if rule not in seen]

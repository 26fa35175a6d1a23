"""What a bundle's documents may not say, given one another: each check yields the problems it finds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from policies import limits
from policies.document import CaseDoc, ClassDoc, ResidencyDoc, TenantDoc
from policies.residency import within
from policies.tenant import Tenant
from policies.yamlfile import Document, KeyPath, Problem, suggest
from sidecar.core.model import Limits, ModelProfile

__all__ = ["case_places", "declared_classes", "limit_faults", "pool_guarantees", "residency_places"]


def residency_places(document: Document, doc: ResidencyDoc, regions: Mapping[str, str]) -> Iterator[Problem]:
    """Places that bundle.yaml doesn't know, and classes that allow nothing."""
    places = set(regions) | set(regions.values())
    base: KeyPath = ("residency",)
    yield from _all(document, base, (doc.processing, doc.storage, doc.telemetry, doc.records), regions)
    yield from _unstored(document, base, doc.records, doc.storage, regions)
    for name, narrowed in doc.classes.items():
        path = (*base, "classes", name)
        # A list alone stands where the mapping's `processing` would.
        at_list = (*path, "processing") not in document.values and "processing" in narrowed.model_fields_set
        inner = path if at_list else (*path, "processing")
        yield from _all(document, path, (None, narrowed.storage, narrowed.telemetry, narrowed.records), regions)
        yield from _unstored(document, path, narrowed.records, narrowed.storage or doc.storage, regions)
        yield from _unknown(document, inner, narrowed.processing or (), places, "region or jurisdiction")
        yield from _outside(document, path, inner, narrowed, doc, regions)


def _all(
    document: Document, path: KeyPath, lists: tuple[tuple[str, ...] | None, ...], regions: Mapping[str, str]
) -> Iterator[Problem]:
    jurisdictions = set(regions.values())
    kinds = (jurisdictions | set(regions), "region or jurisdiction"), *[(jurisdictions, "jurisdiction")] * 3
    keys = ("processing", "storage", "telemetry", "records")
    for key, entries, (known, what) in zip(keys, lists, kinds, strict=True):
        yield from _unknown(document, (*path, key), entries or (), known, what)


def _unstored(
    document: Document,
    path: KeyPath,
    records: tuple[str, ...] | None,
    storage: tuple[str, ...],
    regions: Mapping[str, str],
) -> Iterator[Problem]:
    for index, entry in enumerate(records or ()):
        if entry in set(regions.values()) and entry not in storage:
            yield document.problem((*path, "records", index), "lies outside storage, so it allows nothing")


def _unknown(
    document: Document, path: KeyPath, entries: tuple[str, ...], known: set[str], what: str
) -> Iterator[Problem]:
    for index, entry in enumerate(entries):
        if entry not in known:
            yield document.problem((*path, index), f"no such {what} in bundle.yaml{suggest(entry, known)}")


def _outside(
    document: Document,
    path: KeyPath,
    processing: KeyPath,
    narrowed: ClassDoc,
    doc: ResidencyDoc,
    regions: Mapping[str, str],
) -> Iterator[Problem]:
    """A class narrows what its tenant allows: what lies outside allows nothing."""
    for index, entry in enumerate(narrowed.processing or ()):
        inner = {region: area for region, area in regions.items() if entry in (region, area)}
        if inner and not any(within(region, area, doc.processing) for region, area in inner.items()):
            yield document.problem((*processing, index), "lies outside processing, so it allows nothing")
    for key, entries, own in (
        ("storage", narrowed.storage, doc.storage),
        ("telemetry", narrowed.telemetry, doc.telemetry),
    ):
        for index, entry in enumerate(entries or ()):
            if entry in set(regions.values()) and entry not in (own or ()):
                yield document.problem((*path, key, index), f"lies outside {key}, so it allows nothing")


def declared_classes(document: Document, doc: TenantDoc, classes: Collection[str] | None) -> Iterator[Problem]:
    """Data classes: the tenant's among the bundle's (None: any), its keys' among its own."""
    if classes is not None:
        for name in doc.residency.classes:
            if name not in classes:
                message = f"no such data class in bundle.yaml{suggest(name, classes)}"
                yield document.problem(("residency", "classes", name), message, at_key=True)
    for key, rule in doc.keys.items():
        if rule.data_class is not None and rule.data_class not in doc.residency.classes:
            message = f"not among residency.classes{suggest(rule.data_class, doc.residency.classes)}"
            yield document.problem(("keys", key, "data_class"), message)


def limit_faults(
    document: Document, doc: TenantDoc, resolved: Limits, models: Mapping[str, ModelProfile]
) -> Iterator[Problem]:
    """Limits that contradict one another, or leave no room for one call of a model that is granted."""
    for message in limits.contradictions(resolved):
        yield document.problem(("limits",), message)
    for index, grant in enumerate(doc.models):
        for message in limits.too_small(resolved, models.values(), grant.model):
            yield document.problem(("models", index), message)


def key_limits(document: Document, tenant: Tenant) -> Iterator[Problem]:
    """Limits of a key that its tenant's own make meaningless."""
    for name, rule in (tenant.keys or {}).items():
        for own in rule.limits:
            for limit, message in limits.wider(tenant.limits_at(own.begins), own.limits):
                yield document.problem(("keys", name, "limits", limit), f"{limit} {message}")


def pool_guarantees(tenants: Mapping[str, Tenant], models: Mapping[str, ModelProfile]) -> Iterator[Problem]:
    """More than the whole of a pool can't be guaranteed, at whatever time."""
    moments = sorted({those.begins for tenant in tenants.values() for those in tenant.later})
    active = [tenant for tenant in tenants.values() if tenant.active]
    for model in models.values():
        users = [each for each in active if any(fnmatchcase(model.name, pattern) for pattern in each.models)]
        for moment in (float("-inf"), *moments):
            shares = [each.limits_at(moment).share.guaranteed for each in users]
            message = limits.overcommitted(model, [share for share in shares if share])
            if message is not None:
                yield Problem("models.yaml", 1, 1, f"{model.name}.pool", message)
                break


def case_places(document: Document, index: int, case: CaseDoc, regions: Mapping[str, str]) -> Iterator[Problem]:
    """Places of a test case that bundle.yaml doesn't know."""
    jurisdictions = set(regions.values())
    checks: tuple[tuple[str, str | None, Collection[str], str], ...] = (
        ("region", case.region, set(regions), "region"),
        ("storage", case.storage, jurisdictions, "jurisdiction"),
        ("telemetry", case.telemetry, jurisdictions, "jurisdiction"),
    )
    for key, value, known, what in checks:
        if value is not None and value not in known:
            yield document.problem((index, key), f"no such {what} in bundle.yaml{suggest(value, known)}")

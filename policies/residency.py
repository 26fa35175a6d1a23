"""Whether a tenant's data may be processed, stored and traced at this pod: pure, deny by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from sidecar.core.model import Denial, replace
from sidecar.core.reasons import Reason

__all__ = [
    "Place",
    "Residency",
    "Rules",
    "allowed_regions",
    "decide",
    "directed",
    "kept_in",
    "label",
    "store_of",
    "traced",
    "within",
]

# Names told in one refusal: it travels in gRPC trailers, of which many clients take 8 KB in all.
MAX_TOLD: Final = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod is and where what it records goes. ``telemetry_jurisdiction`` None: no telemetry leaves the pod.

    ``storage_jurisdiction`` is its own database's; ``further`` are the others that it has a database in.
    ``doubt`` says why it isn't certain where the pod is; then nobody's data may be processed there.
    """

    region: str
    jurisdiction: str
    storage_jurisdiction: str
    telemetry_jurisdiction: str | None
    doubt: str = ""
    further: tuple[str, ...] = ()

    @property
    def stores(self) -> tuple[str, ...]:
        """The jurisdictions that it has a database in, its own first."""
        return (self.storage_jurisdiction, *self.further)


class Rules(Struct, frozen=True, gc=False):
    """Where data may be: jurisdictions or regions for processing, jurisdictions for the rest; nothing else is allowed.

    ``telemetry`` None: it is withheld, so no collector's place matters. ``records``: of ``storage``, those whose
    database may keep the records; None: all of them.
    """

    processing: tuple[str, ...]
    storage: tuple[str, ...]
    telemetry: tuple[str, ...] | None
    records: tuple[str, ...] | None = None

    @property
    def databases(self) -> tuple[str, ...]:
        """Where a database may keep the records, in the order that they are written in."""
        if self.records is None:
            return self.storage
        return tuple(name for name in self.records if name in self.storage)


class Residency(Struct, frozen=True, gc=False):
    """A tenant's ``own`` rules, and those of every data class it may name, which hold beside them."""

    own: Rules
    classes: Mapping[str, Rules]


def decide(residency: Residency, classes: Sequence[str], place: Place, document: str) -> Denial | None:
    """None where all three are allowed under every class given; ``document`` is the tenant's file.

    The journal lies on the pod itself, so the pod's own jurisdiction must be one that the tenant may be stored in,
    whatever database comes after it; and there must be a database for the record (``store_of``).
    """
    rule = f"{document}:residency"
    if place.doubt:
        told = "where this is is not certain"
        return Denial(Reason.RESIDENCY_PROCESSING, told, rule="location", internal=place.doubt)
    unknown = next((name for name in classes if name not in residency.classes), None)
    if unknown is not None:
        return Denial(
            Reason.RESIDENCY_PROCESSING,
            "the data class is not one this tenant has declared",
            rule=f"{rule}.classes",
            metadata=(("known_data_classes", ",".join(sorted(residency.classes)[:MAX_TOLD])),),
        )
    named = [("", residency.own), *((f".classes.{name}", residency.classes[name]) for name in classes)]
    return _processed(rule, named, place) or _stored(rule, named, place) or _sent(rule, named, place)


_Named = Sequence[tuple[str, Rules]]  # by the end of the rule's name; "": the tenant's own


def _processed(rule: str, named: _Named, place: Place) -> Denial | None:
    for suffix, rules in named:
        if not within(place.region, place.jurisdiction, rules.processing):
            detail = f"this is {place.region} ({place.jurisdiction})"
            metadata = (("region", place.region),)
            return Denial(
                Reason.RESIDENCY_PROCESSING, detail, rule=f"{rule}{suffix or '.processing'}", metadata=metadata
            )
    return None


def _stored(rule: str, named: _Named, place: Place) -> Denial | None:
    for suffix, rules in named:
        if place.jurisdiction not in rules.storage:
            where = f"{rule}{suffix or '.storage'}"
            return _elsewhere(Reason.RESIDENCY_STORAGE, where, (place.jurisdiction,), rules.storage)
    left = set(place.stores)
    for suffix, rules in named:
        left &= set(rules.databases)
        if not left:
            by = ".storage" if rules.records is None else ".records"
            return _elsewhere(Reason.RESIDENCY_STORAGE, f"{rule}{suffix or by}", place.stores, rules.databases)
    return None


def store_of(residency: Residency, classes: Sequence[str], place: Place) -> str | None:
    """The jurisdiction whose database keeps the records: the pod's own where it may, else the first that the tenant
    names and that the pod has one in. None: no database here may; there is no default.
    """
    named = [residency.classes[name] for name in classes if name in residency.classes]
    allowed = [
        name
        for name in residency.own.databases
        if name in place.stores and all(name in rules.databases for rules in named)
    ]
    return place.jurisdiction if place.jurisdiction in allowed else next(iter(allowed), None)


def kept_in(residency: Residency, classes: Sequence[str], place: Place) -> str:
    """As ``store_of``; where no database here may, the pod's own: for a refusal's record, which holds no content."""
    return store_of(residency, classes, place) or place.storage_jurisdiction


def _sent(rule: str, named: _Named, place: Place) -> Denial | None:
    sent_to = place.telemetry_jurisdiction
    if sent_to is None or any(rules.telemetry is None for _, rules in named):
        return None
    for suffix, rules in named:
        allowed = rules.telemetry or ()
        if sent_to not in allowed:
            return _elsewhere(Reason.RESIDENCY_TELEMETRY, f"{rule}{suffix or '.telemetry'}", (sent_to,), allowed)
    return None


def traced(residency: Residency, classes: Sequence[str], place: Place) -> bool:
    """Whether a call's span may leave for where this pod's telemetry goes."""
    sent_to = place.telemetry_jurisdiction
    known = [residency.own, *(residency.classes[name] for name in classes if name in residency.classes)]
    return all(rules.telemetry is not None and (sent_to is None or sent_to in rules.telemetry) for rules in known)


def within(region: str, jurisdiction: str, allowed: Iterable[str]) -> bool:
    """Whether a list of jurisdictions and regions covers a region."""
    return any(entry in (region, jurisdiction) for entry in allowed)


def allowed_regions(residency: Residency, classes: Sequence[str], regions: Mapping[str, str]) -> tuple[str, ...]:
    """The bundle's regions whose pods, with database and collector of their own jurisdiction, would take it; sorted."""
    found = []
    for region, jurisdiction in sorted(regions.items()):
        place = Place(region, jurisdiction, jurisdiction, jurisdiction)
        if decide(residency, classes, place, "") is None:
            found.append(region)
    return tuple(found)


def label(residency: Residency, classes: Sequence[str], regions: Mapping[str, str]) -> str:
    """What a record calls the data of several classes: the strictest of them, or, where none is, all of them."""
    names = sorted(set(classes))
    if len(names) > 1 and all(name in residency.classes for name in names):
        rules = [(name, residency.classes[name]) for name in names]
        for name, own in rules:
            if all(_no_wider(own, other, regions) for _, other in rules):
                return name
    return "+".join(names)


def _no_wider(rules: Rules, other: Rules, regions: Mapping[str, str]) -> bool:
    narrower = all(
        within(region, jurisdiction, other.processing)
        for region, jurisdiction in regions.items()
        if within(region, jurisdiction, rules.processing)
    )
    silent = rules.telemetry is None or (other.telemetry is not None and set(rules.telemetry) <= set(other.telemetry))
    stored = set(rules.storage) <= set(other.storage) and set(rules.databases) <= set(other.databases)
    return narrower and silent and stored


def _elsewhere(reason: Reason, rule: str, here: tuple[str, ...], allowed: tuple[str, ...]) -> Denial:
    allowed = tuple(sorted(allowed))
    detail = f"here it would go to {' or '.join(here)}; allowed: {_listed(allowed)}"
    metadata = (("jurisdiction", ",".join(here)), ("allowed_jurisdictions", ",".join(allowed[:MAX_TOLD])))
    return Denial(reason, detail, rule=rule, metadata=metadata)


def directed(denial: Denial, allowed: Sequence[str]) -> Denial:
    """The denial with the regions where the call may go instead."""
    metadata = (*denial.metadata, ("allowed_regions", ",".join(allowed[:MAX_TOLD])))
    told = denial.reason is Reason.RESIDENCY_PROCESSING
    detail = f"{denial.detail}; allowed: {_listed(tuple(allowed))}" if told else denial.detail
    return replace(denial, detail=detail, metadata=metadata)


def _listed(allowed: tuple[str, ...]) -> str:
    more = f" and {len(allowed) - MAX_TOLD} more" if len(allowed) > MAX_TOLD else ""
    return ", ".join(allowed[:MAX_TOLD]) + more or "nowhere"

"""Whether a tenant's data may be processed, stored and traced at this pod: pure, deny by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.core.model import Denial
from sidecar.core.reasons import Reason

__all__ = ["Place", "Residency", "decide"]

# Names told in one refusal: it travels in gRPC trailers, of which many clients take 8 KB in all.
MAX_TOLD: Final = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod is and where what it records goes. ``telemetry_jurisdiction`` None: no telemetry leaves the pod."""

    region: str
    jurisdiction: str
    storage_jurisdiction: str
    telemetry_jurisdiction: str | None


@dataclass(frozen=True, slots=True)
class Residency:
    """A tenant's rules: jurisdictions or regions for processing, jurisdictions for the rest; nothing else is allowed.

    ``classes`` holds every data class the tenant may name, each with where it may be processed (within ``processing``).
    """

    processing: tuple[str, ...]
    storage: tuple[str, ...]
    telemetry: tuple[str, ...]
    classes: Mapping[str, tuple[str, ...]]


def decide(
    residency: Residency, data_class: str, place: Place, regions: Mapping[str, str], document: str
) -> Denial | None:
    """None where all three are allowed. ``regions`` maps region → jurisdiction; ``document`` is the tenant's file."""
    rule = f"{document}:residency"
    if data_class and data_class not in residency.classes:
        return Denial(
            Reason.RESIDENCY_PROCESSING,
            "the data class is not one this tenant has declared",
            rule=f"{rule}.classes",
            metadata=(("known_data_classes", ",".join(sorted(residency.classes)[:MAX_TOLD])),),
        )
    narrowed = residency.classes.get(data_class)
    if not within(place.region, place.jurisdiction, residency.processing):
        return _processing(f"{rule}.processing", place, allowed_regions(residency, data_class, regions))
    if narrowed is not None and not within(place.region, place.jurisdiction, narrowed):
        return _processing(f"{rule}.classes.{data_class}", place, allowed_regions(residency, data_class, regions))
    if place.storage_jurisdiction not in residency.storage:
        return _elsewhere(Reason.RESIDENCY_STORAGE, f"{rule}.storage", place.storage_jurisdiction, residency.storage)
    sent_to = place.telemetry_jurisdiction
    if sent_to is not None and sent_to not in residency.telemetry:
        return _elsewhere(Reason.RESIDENCY_TELEMETRY, f"{rule}.telemetry", sent_to, residency.telemetry)
    return None


def within(region: str, jurisdiction: str, allowed: Iterable[str]) -> bool:
    """Whether a list of jurisdictions and regions covers a region."""
    return any(entry in (region, jurisdiction) for entry in allowed)


def allowed_regions(residency: Residency, data_class: str, regions: Mapping[str, str]) -> tuple[str, ...]:
    """The bundle's regions in which data of this class may be processed, sorted."""
    narrowed = residency.classes.get(data_class)
    return tuple(
        sorted(
            region
            for region, jurisdiction in regions.items()
            if within(region, jurisdiction, residency.processing)
            and (narrowed is None or within(region, jurisdiction, narrowed))
        )
    )


def _processing(rule: str, place: Place, allowed: tuple[str, ...]) -> Denial:
    detail = f"this is {place.region} ({place.jurisdiction}); allowed: {_listed(allowed)}"
    metadata = (("region", place.region), ("allowed_regions", ",".join(allowed[:MAX_TOLD])))
    return Denial(Reason.RESIDENCY_PROCESSING, detail, rule=rule, metadata=metadata)


def _elsewhere(reason: Reason, rule: str, jurisdiction: str, allowed: tuple[str, ...]) -> Denial:
    allowed = tuple(sorted(allowed))
    detail = f"here it would go to {jurisdiction}; allowed: {_listed(allowed)}"
    metadata = (("jurisdiction", jurisdiction), ("allowed_jurisdictions", ",".join(allowed[:MAX_TOLD])))
    return Denial(reason, detail, rule=rule, metadata=metadata)


def _listed(allowed: tuple[str, ...]) -> str:
    more = f" and {len(allowed) - MAX_TOLD} more" if len(allowed) > MAX_TOLD else ""
    return ", ".join(allowed[:MAX_TOLD]) + more or "nowhere"

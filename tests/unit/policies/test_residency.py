"""Residency: places and classes, deny by default."""

from __future__ import annotations

import pytest

from policies.residency import Place, Residency, decide
from sidecar.core.model import Denial
from sidecar.core.reasons import Reason

REGIONS = {"eu-west-1": "EU", "eu-central-1": "EU", "us-east-1": "US"}
EU = Place("eu-west-1", "EU", "EU", "EU")


def residency(
    processing: tuple[str, ...] = ("EU",),
    storage: tuple[str, ...] = ("EU",),
    telemetry: tuple[str, ...] = ("EU",),
    classes: dict[str, tuple[str, ...]] | None = None,
) -> Residency:
    return Residency(processing, storage, telemetry, classes or {})


PHI = {"phi": ("eu-central-1",), "public": ("EU",), "sealed": ()}


@pytest.mark.parametrize(
    ("rules", "data_class", "place", "reason", "rule"),
    [
        (residency(), "", EU, None, ""),
        (residency(("eu-west-1",)), "", EU, None, ""),
        (residency(("eu-central-1",)), "", EU, Reason.RESIDENCY_PROCESSING, "processing"),
        (residency(("US",)), "", EU, Reason.RESIDENCY_PROCESSING, "processing"),
        (residency(()), "", EU, Reason.RESIDENCY_PROCESSING, "processing"),
        (residency(("EU", "US")), "", Place("us-east-1", "US", "EU", "EU"), None, ""),
        (residency(storage=("US",)), "", EU, Reason.RESIDENCY_STORAGE, "storage"),
        (residency(storage=()), "", EU, Reason.RESIDENCY_STORAGE, "storage"),
        (residency(), "", Place("eu-west-1", "EU", "US", "EU"), Reason.RESIDENCY_STORAGE, "storage"),
        (residency(), "", Place("eu-west-1", "EU", "EU", "US"), Reason.RESIDENCY_TELEMETRY, "telemetry"),
        (residency(telemetry=()), "", EU, Reason.RESIDENCY_TELEMETRY, "telemetry"),
        (residency(telemetry=()), "", Place("eu-west-1", "EU", "EU", None), None, ""),
        (residency(classes=PHI), "", EU, None, ""),
        (residency(classes=PHI), "public", EU, None, ""),
        (residency(classes=PHI), "phi", EU, Reason.RESIDENCY_PROCESSING, "classes.phi"),
        (residency(classes=PHI), "phi", Place("eu-central-1", "EU", "EU", "EU"), None, ""),
        (residency(classes=PHI), "sealed", EU, Reason.RESIDENCY_PROCESSING, "classes.sealed"),
        (residency(classes=PHI), "other", EU, Reason.RESIDENCY_PROCESSING, "classes"),
        (residency(), "phi", EU, Reason.RESIDENCY_PROCESSING, "classes"),
        # A class narrows; it can't widen what the tenant allows.
        (residency(classes={"phi": ("US", "EU")}), "phi", Place("us-east-1", "US", "EU", "EU"),
         Reason.RESIDENCY_PROCESSING, "processing"),
    ],
)  # fmt: skip
def test_decides(rules: Residency, data_class: str, place: Place, reason: Reason | None, rule: str) -> None:
    found = decide(rules, data_class, place, REGIONS, "tenants/t.yaml")
    if reason is None:
        assert found is None
    else:
        assert isinstance(found, Denial)
        assert (found.reason, found.rule) == (reason, f"tenants/t.yaml:residency.{rule}")


def test_a_refusal_says_where_it_would_be_allowed() -> None:
    elsewhere = Place("us-east-1", "US", "US", None)
    found = decide(residency(classes=PHI), "public", elsewhere, REGIONS, "tenants/t.yaml")
    assert found is not None
    assert found.metadata == (("region", "us-east-1"), ("allowed_regions", "eu-central-1,eu-west-1"))
    assert found.detail == "this is us-east-1 (US); allowed: eu-central-1, eu-west-1"
    narrowed = decide(residency(classes=PHI), "phi", EU, REGIONS, "tenants/t.yaml")
    assert narrowed is not None
    assert dict(narrowed.metadata)["allowed_regions"] == "eu-central-1"
    nowhere = decide(residency(()), "", EU, REGIONS, "tenants/t.yaml")
    assert nowhere is not None
    assert nowhere.detail == "this is eu-west-1 (EU); allowed: nowhere"
    stored = decide(residency(storage=("US",)), "", EU, REGIONS, "tenants/t.yaml")
    assert stored is not None
    assert stored.metadata == (("jurisdiction", "EU"), ("allowed_jurisdictions", "US"))


def test_a_refusal_stays_small_enough_for_a_trailer() -> None:
    regions = {f"r{n:03}{'x' * 59}": "EU" for n in range(500)} | {"us-east-1": "US"}
    found = decide(residency(), "", Place("us-east-1", "US", "EU", None), regions, "tenants/t.yaml")
    assert found is not None
    assert found.detail.endswith(" and 484 more")
    assert len(found.detail) + sum(len(value) for _, value in found.metadata) < 3000

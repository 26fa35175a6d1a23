"""Residency: places and classes, deny by default."""

from __future__ import annotations

import pytest

from policies.residency import (
    Place,
    Residency,
    Rules,
    allowed_regions,
    decide,
    directed,
    kept_in,
    label,
    store_of,
    traced,
)
from sidecar.core.model import Denial
from sidecar.core.reasons import Reason

REGIONS = {"eu-west-1": "EU", "eu-central-1": "EU", "us-east-1": "US"}
EU = Place("eu-west-1", "EU", "EU", "EU")


def residency(
    processing: tuple[str, ...] = ("EU",),
    storage: tuple[str, ...] = ("EU",),
    telemetry: tuple[str, ...] | None = ("EU",),
    classes: dict[str, tuple[str, ...]] | None = None,
) -> Residency:
    named = {name: Rules(places, storage, telemetry) for name, places in (classes or {}).items()}
    return Residency(Rules(processing, storage, telemetry), named)


PHI = {"phi": ("eu-central-1",), "public": ("EU",), "sealed": ()}


@pytest.mark.parametrize(
    ("rules", "data_class", "place", "reason", "rule"),
    [
        (residency(), "", EU, None, ""),
        (residency(("eu-west-1",)), "", EU, None, ""),
        (residency(("eu-central-1",)), "", EU, Reason.RESIDENCY_PROCESSING, "processing"),
        (residency(("US",)), "", EU, Reason.RESIDENCY_PROCESSING, "processing"),
        (residency(()), "", EU, Reason.RESIDENCY_PROCESSING, "processing"),
        (residency(("EU", "US"), ("EU", "US")), "", Place("us-east-1", "US", "EU", "EU"), None, ""),
        # The journal lies on the pod, so it is storage too, wherever the database is.
        (residency(("EU", "US")), "", Place("us-east-1", "US", "EU", "EU"), Reason.RESIDENCY_STORAGE, "storage"),
        (residency(storage=("US",)), "", EU, Reason.RESIDENCY_STORAGE, "storage"),
        (residency(storage=()), "", EU, Reason.RESIDENCY_STORAGE, "storage"),
        (residency(), "", Place("eu-west-1", "EU", "US", "EU"), Reason.RESIDENCY_STORAGE, "storage"),
        (residency(), "", Place("eu-west-1", "EU", "EU", "US"), Reason.RESIDENCY_TELEMETRY, "telemetry"),
        (residency(telemetry=()), "", EU, Reason.RESIDENCY_TELEMETRY, "telemetry"),
        (residency(telemetry=()), "", Place("eu-west-1", "EU", "EU", None), None, ""),
        (residency(telemetry=None), "", Place("eu-west-1", "EU", "EU", "US"), None, ""),
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
    found = decide(rules, (data_class,) if data_class else (), place, "tenants/t.yaml")
    if reason is None:
        assert found is None
    else:
        assert isinstance(found, Denial)
        assert (found.reason, found.rule) == (reason, f"tenants/t.yaml:residency.{rule}")


@pytest.mark.parametrize(
    ("classes", "place", "reason"),
    [
        (("public",), EU, None),
        (("public", "phi"), EU, Reason.RESIDENCY_PROCESSING),
        (("phi", "public"), Place("eu-central-1", "EU", "EU", "EU"), None),
        (("sealed", "phi"), Place("eu-central-1", "EU", "EU", "EU"), Reason.RESIDENCY_PROCESSING),
        (("public", "made-up"), EU, Reason.RESIDENCY_PROCESSING),
    ],
)
def test_of_several_classes_each_must_allow_it(classes: tuple[str, ...], place: Place, reason: Reason | None) -> None:
    found = decide(residency(classes=PHI), classes, place, "tenants/t.yaml")
    assert (found.reason if found is not None else None) is reason


def test_a_class_may_narrow_storage_and_withhold_telemetry() -> None:
    own = Rules(("EU", "US"), ("EU", "US"), ("EU", "US"))
    rules = Residency(own, {"phi": Rules(("EU", "US"), ("EU",), None), "pii": Rules(("EU",), ("EU", "US"), ("EU",))})
    us = Place("us-east-1", "US", "US", "US")
    stored = decide(rules, ("phi",), us, "t")
    assert stored is not None
    assert (stored.reason, stored.rule) == (Reason.RESIDENCY_STORAGE, "t:residency.classes.phi")
    sent = decide(rules, ("pii",), Place("eu-west-1", "EU", "EU", "US"), "t")
    assert sent is not None
    assert (sent.reason, sent.rule) == (Reason.RESIDENCY_TELEMETRY, "t:residency.classes.pii")
    assert [traced(rules, classes, EU) for classes in ((), ("pii",), ("phi",), ("pii", "phi"))] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not traced(rules, ("pii",), us)


def test_where_a_pod_is_not_certain_nothing_may_be_processed() -> None:
    found = decide(residency(), (), Place("eu-west-1", "EU", "EU", "EU", doubt="labels say us-east-1"), "t")
    assert found is not None
    assert (found.reason, found.rule, found.internal) == (
        Reason.RESIDENCY_PROCESSING, "location", "labels say us-east-1",
    )  # fmt: skip


def test_a_record_names_the_strictest_class_or_all() -> None:
    rules = residency(classes={**PHI, "pii": ("eu-west-1",)})
    assert label(rules, (), REGIONS) == ""
    assert label(rules, ("phi",), REGIONS) == "phi"
    assert label(rules, ("public", "phi"), REGIONS) == "phi"
    assert label(rules, ("public", "phi", "sealed"), REGIONS) == "sealed"
    assert label(rules, ("pii", "phi"), REGIONS) == "phi+pii"
    assert label(rules, ("phi", "made-up"), REGIONS) == "made-up+phi"


def test_a_refusal_says_where_it_would_be_allowed() -> None:
    def told(rules: Residency, classes: tuple[str, ...], place: Place) -> Denial:
        found = decide(rules, classes, place, "tenants/t.yaml")
        assert found is not None
        return directed(found, allowed_regions(rules, classes, REGIONS))

    elsewhere = Place("us-east-1", "US", "US", None)
    found = told(residency(classes=PHI), ("public",), elsewhere)
    assert found.metadata == (("region", "us-east-1"), ("allowed_regions", "eu-central-1,eu-west-1"))
    assert found.detail == "this is us-east-1 (US); allowed: eu-central-1, eu-west-1"
    narrowed = told(residency(classes=PHI), ("phi",), EU)
    assert dict(narrowed.metadata)["allowed_regions"] == "eu-central-1"
    nowhere = told(residency(()), (), EU)
    assert nowhere.detail == "this is eu-west-1 (EU); allowed: nowhere"
    stored = told(residency(("EU", "US"), ("US",), None), (), EU)
    assert stored.metadata == (
        ("jurisdiction", "EU"), ("allowed_jurisdictions", "US"), ("allowed_regions", "us-east-1"),
    )  # fmt: skip


def test_a_refusal_stays_small_enough_for_a_trailer() -> None:
    regions = {f"r{n:03}{'x' * 59}": "EU" for n in range(500)} | {"us-east-1": "US"}
    found = decide(residency(), (), Place("us-east-1", "US", "EU", None), "tenants/t.yaml")
    assert found is not None
    told = directed(found, allowed_regions(residency(), (), regions))
    assert told.detail.endswith(" and 484 more")
    assert len(told.detail) + sum(len(value) for _, value in told.metadata) < 3000


# --- which database -----------------------------------------------------------------------------------------------

US_AND_EU = Place("us-east-1", "US", "US", None, further=("EU",))
THREE = Place("us-east-1", "US", "US", None, further=("CH", "EU"))
PHI_RECORDS = {"phi": Rules(("US",), ("EU", "US"), None, ("EU",))}


def stored(storage: tuple[str, ...], records: tuple[str, ...] | None = None) -> Rules:
    return Rules(("US",), storage, None, records)


@pytest.mark.parametrize(
    ("own", "classes", "place", "store"),
    [
        (stored(("US",)), (), US_AND_EU, "US"),
        # The pod's own wherever it may, whatever comes first.
        (stored(("EU", "US")), (), US_AND_EU, "US"),
        (stored(("EU", "US"), ("EU", "US")), (), US_AND_EU, "US"),
        (stored(("EU", "US"), ("EU",)), (), US_AND_EU, "EU"),
        (stored(("EU", "US"), ("EU",)), (), Place("us-east-1", "US", "US", None), None),
        # Of several that may, the first that the tenant names.
        (stored(("CH", "EU", "US"), ("EU", "CH")), (), THREE, "EU"),
        (stored(("CH", "EU", "US"), ("CH", "EU")), (), THREE, "CH"),
        (stored(("CH", "EU", "US"), ("UK", "CH")), (), THREE, "CH"),
        (stored(("CH", "US"), ("CH",)), (), US_AND_EU, None),
        (stored(("US",), ("EU",)), (), US_AND_EU, None),
        # A class narrows.
        (stored(("EU", "US")), ("phi",), US_AND_EU, "EU"),
        (stored(("EU", "US"), ("US",)), ("phi",), US_AND_EU, None),
        (stored(()), (), US_AND_EU, None),
    ],
)  # fmt: skip
def test_the_database_follows_from_the_tenants_rules_alone(
    own: Rules, classes: tuple[str, ...], place: Place, store: str | None
) -> None:
    rules = Residency(own, PHI_RECORDS)
    assert store_of(rules, classes, place) == store
    assert kept_in(rules, classes, place) == (store or "US")
    found = decide(rules, classes, place, "tenants/t.yaml")
    if store is not None:
        assert found is None
    else:
        assert isinstance(found, Denial)
        assert found.reason is Reason.RESIDENCY_STORAGE


def test_the_journal_is_storage_too_wherever_the_database_is() -> None:
    rules = Residency(stored(("EU",)), {})
    found = decide(rules, (), US_AND_EU, "tenants/t.yaml")
    assert isinstance(found, Denial)
    assert (found.reason, found.rule) == (Reason.RESIDENCY_STORAGE, "tenants/t.yaml:residency.storage")
    assert kept_in(rules, (), US_AND_EU) == "EU"  # its refusal, without content


def test_which_databases_there_are_and_which_rule_has_none_of_them_is_told() -> None:
    found = decide(Residency(stored(("CH", "US"), ("CH",)), {}), (), US_AND_EU, "tenants/t.yaml")
    assert isinstance(found, Denial)
    assert found.rule == "tenants/t.yaml:residency.records"
    assert found.detail == "here it would go to US or EU; allowed: CH"
    assert ("jurisdiction", "US,EU") in found.metadata
    of_class = decide(Residency(stored(("EU", "US"), ("US",)), PHI_RECORDS), ("phi",), US_AND_EU, "tenants/t.yaml")
    assert isinstance(of_class, Denial)
    assert of_class.rule == "tenants/t.yaml:residency.classes.phi"


def test_a_class_that_narrows_records_is_the_stricter() -> None:
    wide, narrow = stored(("EU", "US")), stored(("EU", "US"), ("EU",))
    assert label(Residency(wide, {"a": wide, "b": narrow}), ("a", "b"), REGIONS) == "b"

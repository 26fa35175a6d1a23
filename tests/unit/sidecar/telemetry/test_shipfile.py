"""What `warden ship` reports becomes metrics while it is fresh, and "not up" when it isn't."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from prometheus_client.core import Metric as Family

from sidecar.telemetry.instruments import PrometheusInstruments
from sidecar.telemetry.shipfile import STALE_SECONDS, ShipFile, watch_ship
from tests.support import telemetry

NOW = 1_700_000_000.0
REPORT = {
    "shipped_sequence": 90,
    "position": 80,
    "lag_records": 10,
    "oldest_unshipped_at": NOW - 4.5,
    "last_error": None,
    "rows": 80,
    "poisoned": 1,
    "open_calls": 3,
    "database_up": True,
    "tampered": True,
    "room_until": NOW + 3600,
    "retained_at": NOW - 7200,
    "anchor_trouble": "",
    "witness_trouble": "http://w.example: answers 503",
}


SPANS = {"spans_exported": 70, "spans_failed": 2}


def written(**databases: object) -> bytes:
    return json.dumps({"databases": databases, **SPANS}).encode()


class Shown:
    """A ship.json in a directory, and what a scrape shows of it at ``now``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ship.json"
        self.now = NOW
        self.instruments = PrometheusInstruments(telemetry.METHODS)
        watch_ship(self.instruments, ShipFile(self.path, lambda: self.now), ("EU",))

    def write(self, data: bytes) -> None:
        self.path.write_bytes(data)
        os.utime(self.path, (NOW, NOW))

    def values(self, jurisdiction: str = "EU") -> dict[str, float]:
        """Of the process, and of that database."""
        families: list[Family] = list(self.instruments.collect())
        samples = [sample for family in families for sample in family.samples]
        return {
            s.name: s.value
            for s in samples
            if s.name.startswith(("warden_ship", "warden_spans", "warden_poisoned"))
            and s.labels.get("jurisdiction", jurisdiction) == jurisdiction
        }


def test_a_fresh_report_is_shown(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(written(EU=REPORT))
    assert shown.values() == {
        "warden_ship_up": 1,
        "warden_ship_database_up": 1,
        "warden_ship_tampered": 1,
        "warden_ship_partition_room_seconds": 3600,
        "warden_ship_retained_age_seconds": 7200,
        "warden_ship_anchored": 0,
        "warden_ship_lag_records": 10,
        "warden_ship_lag_seconds": pytest.approx(4.5),
        "warden_shipped_records_total": 80,
        "warden_poisoned_records_total": 1,
        "warden_spans_exported_total": 70,
        "warden_spans_failed_total": 2,
        "warden_spans_dropped_total": 0,
    }


def test_what_is_not_known_or_not_configured_is_not_shown(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    unknown = dict.fromkeys(["room_until", "retained_at", "anchor_trouble", "witness_trouble"])
    shown.write(written(EU=REPORT | unknown))
    assert not [name for name in shown.values() if name.endswith(("room_seconds", "age_seconds", "anchored"))]


@pytest.mark.parametrize(
    ("file", "witnesses", "shown"),
    [("", None, 1), (None, "", 1), ("", "", 1), ("full", None, 0), (None, "away", 0), ("full", "", 0), ("", "away", 0)],
)
def test_heads_are_anchored_where_all_that_is_configured_takes_them(
    tmp_path: Path, file: str | None, witnesses: str | None, shown: int
) -> None:
    made = Shown(tmp_path)
    made.write(written(EU=REPORT | {"anchor_trouble": file, "witness_trouble": witnesses}))
    assert made.values()["warden_ship_anchored"] == shown


def test_a_day_without_a_partition_is_no_room_however_long_ago_it_ran_out(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(written(EU=REPORT | {"room_until": NOW - 60}))
    assert shown.values()["warden_ship_partition_room_seconds"] == 0


def test_nothing_waiting_is_no_lag(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(written(EU=REPORT | {"oldest_unshipped_at": None, "lag_records": 0}))
    assert shown.values()["warden_ship_lag_seconds"] == 0


def test_without_a_report_it_is_down_and_the_counters_are_0(tmp_path: Path) -> None:
    assert Shown(tmp_path).values() == {
        "warden_ship_up": 0,
        "warden_shipped_records_total": 0,
        "warden_poisoned_records_total": 0,
        "warden_spans_exported_total": 0,
        "warden_spans_failed_total": 0,
        "warden_spans_dropped_total": 0,
    }


def test_a_stale_report_is_down_and_the_counters_stand_still(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(written(EU=REPORT))
    assert shown.values()["warden_ship_up"] == 1
    shown.now = NOW + STALE_SECONDS + 1
    values = shown.values()
    assert values["warden_ship_up"] == 0
    assert "warden_ship_lag_seconds" not in values
    assert values["warden_shipped_records_total"] == 80


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"databases": {"EU": {"rows": "many"}}}', b"\xff" * 10])
def test_an_unreadable_report_is_down(tmp_path: Path, data: bytes) -> None:
    shown = Shown(tmp_path)
    shown.write(data)
    assert shown.values()["warden_ship_up"] == 0


def test_each_database_is_shown_by_itself(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(written(EU=REPORT, US=REPORT | {"database_up": False, "rows": 3, "tampered": False}))
    eu, us = shown.values("EU"), shown.values("US")
    assert (eu["warden_ship_database_up"], us["warden_ship_database_up"]) == (1, 0)
    assert (eu["warden_ship_tampered"], us["warden_ship_tampered"]) == (1, 0)
    assert (eu["warden_shipped_records_total"], us["warden_shipped_records_total"]) == (80, 3)
    assert eu["warden_ship_up"] == us["warden_ship_up"] == 1

"""Reads what `warden ship` reports each second in ``<journal>/ship.json``; absent or stale means: it isn't running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sidecar.telemetry.instruments import PrometheusInstruments, Reading

__all__ = ["STALE_SECONDS", "DatabaseReport", "ShipFile", "ShipReport", "watch_ship"]

STALE_SECONDS: Final = 15.0  # written every second: fifteen missed writes are no hiccup
_SIZE_BOUND: Final = 64 * 1024  # bytes; the report is a few hundred a database


class DatabaseReport(msgspec.Struct, frozen=True):
    """Of one database. Times are in seconds since the UNIX epoch: ``oldest_unshipped_at`` is None where nothing waits,
    ``room_until`` and ``retained_at`` (audit.upkeep) where the database was not asked yet. A trouble is "" where there
    is none, and None where nothing of the kind is configured; ``objects_oldest``: since when tensors' bytes wait.
    """

    shipped_sequence: int = 0
    position: int = 0
    lag_records: int = 0
    oldest_unshipped_at: float | None = None
    last_error: str | None = None
    rows: int = 0
    poisoned: int = 0
    database_up: bool = False
    tampered: bool = False
    room_until: float | None = None
    retained_at: float | None = None
    anchor_trouble: str | None = None
    witness_trouble: str | None = None
    objects_trouble: str | None = None
    objects_oldest: float | None = None


class ShipReport(msgspec.Struct, frozen=True):
    """The report; ``databases`` by jurisdiction."""

    databases: dict[str, DatabaseReport] = {}
    spans_exported: int = 0
    spans_failed: int = 0
    spans_dropped: int = 0


_DECODER: Final = msgspec.json.Decoder(ShipReport)


@dataclass(frozen=True, slots=True)
class ShipFile:
    """The report's place, and the wall clock (seconds since the epoch) that says whether it is fresh."""

    path: Path
    now: Callable[[], float]

    def read(self) -> ShipReport | None:
        """The report, or None where it is absent, unreadable, or older than ``STALE_SECONDS``."""
        try:
            with self.path.open("rb") as file:
                data = file.read(_SIZE_BOUND)
            if abs(self.now() - self.path.stat().st_mtime) > STALE_SECONDS:
                return None
            return _DECODER.decode(data)
        except (OSError, msgspec.DecodeError):  # ValidationError is a DecodeError
            return None

    def room_seconds(self, report: DatabaseReport) -> float | None:
        return None if report.room_until is None else max(0.0, report.room_until - self.now())

    def retained_seconds(self, report: DatabaseReport) -> float | None:
        return None if report.retained_at is None else max(0.0, self.now() - report.retained_at)

    def objects_seconds(self, report: DatabaseReport) -> float | None:
        if report.objects_trouble is None:
            return None
        return 0.0 if report.objects_oldest is None else max(0.0, self.now() - report.objects_oldest)

    def lag_seconds(self, report: DatabaseReport) -> float:
        oldest = report.oldest_unshipped_at
        return 0.0 if oldest is None else max(0.0, self.now() - oldest)


def watch_ship(instruments: PrometheusInstruments, ship: ShipFile, jurisdictions: Sequence[str]) -> None:
    """Show the report on `/metrics`. Without a fresh one up is 0, gauges are absent, counters stand still.

    ``jurisdictions``: those of the databases, whose counters are there from the start.
    """
    counted: dict[str, dict[tuple[str, ...], float]] = {}

    def of_each(name: str, value: Callable[[DatabaseReport], float | None]) -> None:
        def read() -> Reading:
            report = ship.read()
            found = {} if report is None else {(place,): value(each) for place, each in report.databases.items()}
            return {labels: number for labels, number in found.items() if number is not None}

        instruments.watch(name, read)

    def count(name: str, value: Callable[[DatabaseReport], int]) -> None:
        counted[name] = {(place,): 0.0 for place in jurisdictions}

        def read() -> Reading:
            report = ship.read()
            for place, each in () if report is None else report.databases.items():
                counted[name][place,] = value(each)
            return counted[name]

        instruments.watch(name, read)

    def spans(name: str, value: Callable[[ShipReport], int]) -> None:
        def read() -> Reading:
            report = ship.read()
            return None if report is None else value(report)

        instruments.watch(name, read)

    instruments.watch("warden_ship_up", lambda: float(ship.read() is not None))
    of_each("warden_ship_database_up", lambda report: float(report.database_up))
    of_each("warden_ship_tampered", lambda report: float(report.tampered))
    of_each("warden_ship_partition_room_seconds", ship.room_seconds)
    of_each("warden_ship_retained_age_seconds", ship.retained_seconds)
    of_each("warden_ship_anchored", _anchored)
    of_each("warden_ship_objects_lag_seconds", ship.objects_seconds)
    of_each("warden_ship_lag_records", lambda report: report.lag_records)
    of_each("warden_ship_lag_seconds", ship.lag_seconds)
    count("warden_shipped_records_total", lambda report: report.rows)
    count("warden_poisoned_records_total", lambda report: report.poisoned)
    spans("warden_spans_exported_total", lambda report: report.spans_exported)
    spans("warden_spans_failed_total", lambda report: report.spans_failed)
    spans("warden_spans_dropped_total", lambda report: report.spans_dropped)


def _anchored(report: DatabaseReport) -> float | None:
    troubles = [each for each in (report.anchor_trouble, report.witness_trouble) if each is not None]
    return float(not any(troubles)) if troubles else None

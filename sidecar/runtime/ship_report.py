"""What `warden ship` tells each second of each database: for the sidecar's metrics, and in its log."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from audit.ship import Status
from audit.spool import write_whole
from sidecar.telemetry import logs
from sidecar.telemetry.export import SpanPump

__all__ = ["Reported", "reporting"]

_LOG: Final = logging.getLogger("warden.ship")
REPORT_SECONDS: Final = 1.0


class Reported(Protocol):
    """One database's shipping."""

    @property
    def jurisdiction(self) -> str: ...

    @property
    def status(self) -> Status: ...


@contextmanager
def reporting(path: Path, shipments: Sequence[Reported], pump: SpanPump | None) -> Iterator[None]:
    """Write the report each second (sidecar.telemetry.shipfile reads it), and a last time at the end."""
    done = threading.Event()

    def run() -> None:
        told: dict[str, str | None] = {}
        while True:
            last = done.wait(REPORT_SECONDS)
            for each in shipments:
                told[each.jurisdiction] = _tell(each, told.get(each.jurisdiction))
            try:
                write_whole(path, _report(shipments, pump), durable=False)
            except OSError as fault:
                logs.event(_LOG, logging.ERROR, "report.unwritten", path=str(path), error=fault.strerror)
            if last:
                return

    thread = threading.Thread(target=run, name="report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(REPORT_SECONDS)


def _tell(shipment: Reported, told: str | None) -> str | None:
    """Log a trouble when it begins, and its end."""
    status, place = shipment.status, shipment.jurisdiction
    trouble = status.last_error
    if trouble is not None and told is None:
        logs.event(
            _LOG, logging.ERROR, "ship.waiting", jurisdiction=place, error=trouble, lag_records=status.lag_records
        )
    if trouble is None and told is not None:
        logs.event(_LOG, logging.INFO, "ship.resumed", jurisdiction=place, rows=status.rows)
    return trouble


def _report(shipments: Sequence[Reported], pump: SpanPump | None) -> bytes:
    counts = pump.counts if pump is not None else None
    report: dict[str, object] = {
        "databases": {each.jurisdiction: _of(each.status) for each in shipments},
        "spans_exported": counts.exported if counts else 0,
        "spans_failed": counts.failed if counts else 0,
        "spans_dropped": counts.dropped if counts else 0,
    }
    return json.dumps(report).encode()


def _of(status: Status) -> dict[str, object]:
    return {
        "shipped_sequence": status.shipped_sequence,
        "position": status.position,
        "lag_records": status.lag_records,
        "oldest_unshipped_at": status.oldest_unshipped_at,
        "last_error": status.last_error,
        "rows": status.rows,
        "poisoned": status.poisoned,
        "open_calls": status.open_calls,
        "database_up": status.database_up,
        "log": status.log,
        "signed_size": status.signed_size,
        "tampered": status.tampered,
        "room_until": status.upkeep.room_until if status.upkeep else None,
        "retained_at": status.upkeep.retained_at if status.upkeep else None,
        "anchor_trouble": status.anchor_trouble,
        "witness_trouble": status.witness_trouble,
        "objects_trouble": status.objects_trouble,
        "objects_oldest": status.objects_oldest,
        "objects_bytes": status.objects_bytes,
        "objects_stored": status.objects_stored,
    }

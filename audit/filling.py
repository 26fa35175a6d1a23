"""Makes a record's row, or the event that stands for it: one record, whatever it is, must not hold up the others."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from audit import storing
from audit.assemble import CallRecord, EventRecord, Place, Record
from audit.batch import Batch, Row, make_batch
from audit.keys import KeyFaultError
from audit.payload import Payload, nowhere
from audit.record import Admitted, Entry, Event, Refused, decode
from audit.redacting import redacted
from audit.rows import CallRow, call_row, event_row, leaf_of
from audit.ship_parts import Item, Parts, Status
from audit.tensors import payload_of

__all__ = ["Rows", "ended_at", "made_at"]


class Rows:
    """One shipper's. What cannot be a row is put aside, sealed, before its event exists."""

    def __init__(self, parts: Parts, status: Status) -> None:
        self._parts, self.status = parts, status

    def row(self, record: Record, position: int) -> tuple[Row, bytes]:
        """And its leaf, made while the row's bytes are in the cache. Raises KeyFaultError."""
        book = self._parts.book
        row: Row
        try:
            if isinstance(record, EventRecord):
                row = event_row(record, book.log, position)
            else:
                kept, counts = redacted(record, self._parts.redaction_key.reveal())
                return call_row(kept, self._parts.vault, book.log, position, counts, self._payload(record))
            return row, leaf_of(row)
        except KeyFaultError:
            raise  # the record is sound; its key will come
        except Exception as fault:  # noqa: BLE001 — one record, whatever it is, must not hold up the others
            self.status.poisoned += 1
            instead = self._keep(record.place, record.sequence, position, _payload(record), f"cannot be a row: {fault}")
            row = event_row(instead, book.log, position)
            return row, leaf_of(row)

    def _payload(self, record: CallRecord) -> Payload:
        found = payload_of(record)
        return found if self._parts.objects is not None else nowhere(found)

    def _keep(self, place: Place, sequence: int, position: int, payload: bytes, words: str) -> EventRecord:
        """Put aside what cannot be stored; the event that stands for it says where."""
        path = self._parts.poison.keep(place.journal, sequence, payload, words)
        event_id = storing.substitute_id(self._parts.book.log, position)
        detail: dict[str, bool | int | float | str] = {"error": words[:500], "file": path.name}
        at = int(self._parts.now().timestamp() * 1e9)
        event = Event(event_id, at, "record_unstorable", f"ship:{self._parts.sidecar}", detail)
        return EventRecord(place, sequence, event)

    def unreadable(self, item: Item, position: int, fault: Exception) -> EventRecord:
        """For an entry that can't be decoded."""
        self.status.poisoned += 1
        return self._keep(item.place, item.sequence, position, item.data, f"unreadable entry: {fault}")

    def without(self, batch: Batch, refused: Sequence[tuple[int, str]]) -> Batch:
        """``batch`` with an event in the place of each row that the database refused: (position, its words)."""
        rows = list(batch.rows)
        for position, words in refused:
            row = rows[position - batch.first]
            assert row.sequence is not None
            self.status.poisoned += 1
            place = Place(self._parts.sidecar, batch.journal, self._parts.region, self._parts.place)
            objects = row.objects if isinstance(row, CallRow) else []
            kept = self._keep(place, row.sequence, position, msgspec.msgpack.encode([row.values, objects]), words)
            rows[position - batch.first] = event_row(kept, batch.log, position)
        return make_batch(batch, rows, keys=batch.keys, bundles=batch.bundles)


def ended_at(record: Record) -> float:
    """Seconds since the UNIX epoch at which the record was complete."""
    if isinstance(record, EventRecord):
        return record.event.at_ns / 1e9
    return getattr(record.end, "at_ns", record.facts.decided_ns) / 1e9


def made_at(item: Item) -> float | None:
    """Seconds since the UNIX epoch at which an entry was written; None where it can't be read."""
    try:
        entry: Entry = decode(item.data)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return (entry.call.decided_ns if isinstance(entry, Admitted | Refused) else entry.at_ns) / 1e9


def _payload(record: Record) -> bytes:
    if isinstance(record, EventRecord):
        return msgspec.msgpack.encode(record.event)
    return msgspec.msgpack.encode([record.facts, record.end, record.output, record.responded])

"""Follows the journal into the database: joins, seals, stores each record once, and waits however long it must."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import psycopg
import sqlalchemy as sa

from audit import store
from audit.assemble import CallRecord, EventRecord, Joiner, Place, Record, event_record
from audit.content import ContentSealer
from audit.follow import read_shipped
from audit.poison import PoisonKeeper
from audit.record import Admitted, Entry, Event, Refused, decode
from audit.redacting import redacted
from audit.rows import CallRow, EventRow, call_row, event_row
from audit.spool import drop_bundle, read_bundle
from sidecar.core.model import Secret

T = TypeVar("T")

__all__ = ["Bounds", "Item", "Parts", "Shipper", "Source", "Status"]


@dataclass(frozen=True, slots=True)
class Item:
    """One journal entry as it was written."""

    sequence: int
    data: bytes
    place: Place


class Source(Protocol):
    """A journal that is followed (``sidecar.runtime.shipping`` has the real one, tests/support/store.py the fake)."""

    @property
    def identity(self) -> str:
        """Which journal this is ("": none yet): a new directory is a new journal, whose sequence starts over."""
        ...

    def seek(self, sequence: int) -> None:
        """Read next from ``sequence``, or from the oldest entry there still is."""
        ...

    def read(self, limit: int) -> Sequence[Item]:
        """Up to ``limit`` entries that are there now, in order; empty at the end. Raises OSError."""
        ...

    def waiting(self) -> int:
        """Entries that were written and not read yet (about)."""
        ...

    def sync(self) -> None:
        """Make durable what was read, before the database has it."""
        ...

    def shipped(self, sequence: int) -> None:
        """Nothing up to ``sequence`` is needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """A batch is stored at ``rows``, at ``nbytes``, or ``seconds`` after its first row; all else is a deadline."""

    rows: int = 500
    nbytes: int = 8 * 2**20
    seconds: float = 0.2
    read: int = 1000  # entries read at once
    idle: float = 0.02  # seconds to wait at the journal's end
    cursor: float = 1.0  # seconds after which a cursor that moved is stored, rows or none
    measure: float = 0.2  # seconds between looks at what waits
    backoff: float = 0.2  # seconds before the first retry, doubled up to:
    backoff_most: float = 30.0
    transaction: float = 60.0  # seconds after which a database that hangs is given up


@dataclass(frozen=True, slots=True)
class Parts:
    """What the shipper works with. ``chance`` gives [0, 1); ``ended`` is told each stored call, and must not wait."""

    source: Source
    engine: sa.Engine
    sealer: ContentSealer
    redaction_key: Secret  # keys what a redacted identifier is replaced by
    poison: PoisonKeeper
    directory: Path  # the journal's; holds the spooled bundles
    jurisdiction: str
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    chance: Callable[[], float]
    ended: Callable[[CallRecord], None] | None = None


@dataclass(slots=True)
class Status:
    """What ``ship.json`` shows (sidecar.telemetry.shipfile)."""

    shipped_sequence: int = 0
    position: int = 0
    lag_records: int = 0
    oldest_unshipped_at: float | None = None
    last_error: str | None = None
    rows: int = 0
    poisoned: int = 0
    open_calls: int = 0
    database_up: bool = False


@dataclass(slots=True)
class _Pending:
    """The batch being filled: rows, what to tell when they are stored, and the first row's times."""

    rows: list[CallRow | EventRow] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    digests: list[tuple[str, datetime]] = field(default_factory=list)
    nbytes: int = 0
    since: float | None = None
    oldest: float | None = None


DEFAULT: Final = Bounds()


class JournalError(Exception):
    """The journal cannot be followed as it is; waiting may help."""


class StoppedError(Exception):
    """Asked to stop while the database was away; what is pending is still in the journal."""


class Shipper:
    """One journal's shipper; ``run`` returns once ``stop`` is set and the batch at hand is stored."""

    def __init__(self, parts: Parts, stop: threading.Event, bounds: Bounds = DEFAULT) -> None:
        self._parts = parts
        self._stop = stop
        self._bounds = bounds
        self.status = Status()
        self._cursor = store.NO_CURSOR
        self._joiner = Joiner()
        self._pending = _Pending()
        self._read = -1  # the last sequence that was read
        self._reached: float | None = None  # when the entry read last was made, or at the start the first one there is
        self._place: Place | None = None
        self._stored_at = self._looked_at = self._measured_at = 0.0
        self._today: date | None = None
        self._journal = ""

    def run(self) -> None:
        """Raises WrongJurisdictionError; every other trouble is waited out."""
        try:
            while not self._stop.is_set():
                self._patiently(self._begin)
                try:
                    self._follow()
                except store.FencedError as fault:
                    self._trouble(fault)
                    self._stop.wait(self._bounds.backoff_most * self._parts.chance() / 10)
        except StoppedError:
            return

    # --- where to start -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Check the database, and rebuild the calls that had not ended by reading from where they began."""
        journal = self._parts.source.identity
        if not journal:
            raise JournalError(f"there is no journal in {self._parts.directory} yet")
        self._reached = self._oldest()
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            store.check_jurisdiction(connection, self._parts.jurisdiction)
            store.ensure_partitions(connection, store.days_ahead(self._parts.now().date()))
            cursor = store.cursor_of(connection, journal)
        self.status.database_up = True
        self._today = self._parts.now().date()
        self._journal, self._cursor = journal, cursor or store.NO_CURSOR
        self._joiner, self._pending = Joiner(), _Pending()
        self._parts.source.seek(self._cursor.needed)
        self._read = self._cursor.needed - 1
        self._stored_at = self._parts.monotonic()

    def _oldest(self) -> float | None:
        """When the oldest entry was made that may not be stored, as the journal knows it: the database may be away."""
        source, first = self._parts.source, read_shipped(self._parts.directory) + 1
        try:
            source.seek(first)
            made = [_made_at(item) for item in source.read(1)]
            source.seek(first)
        except OSError:  # told where it is read in earnest, once the database has been asked
            return None
        return made[0] if made else None

    def _follow(self) -> None:
        while True:
            stopping = self._stop.is_set()
            items = () if stopping else self._patiently(self._next)
            if not items:
                self._reached = None
            for item in items:
                self._arrive(item)
            if self._due(stopping=stopping):
                self._flush()
            if stopping or self._parts.monotonic() - self._measured_at >= self._bounds.measure:
                self._measure()
            if stopping:
                return
            if not items:
                self._stop.wait(self._bounds.idle)

    def _arrive(self, item: Item) -> None:
        place, before = item.place, self._place
        if place.journal != self._journal:
            raise store.FencedError("the journal was replaced by another")
        if place.jurisdiction != self._parts.jurisdiction:
            words = f"records of {place.jurisdiction!r} may not be stored in {self._parts.jurisdiction!r}"
            raise store.WrongJurisdictionError(words)
        if before is not None and place.sidecar != before.sidecar:
            self._flush()  # a batch belongs to one sidecar's log
        self._place = place
        self._take(item)
        if len(self._pending.rows) >= self._bounds.rows or self._pending.nbytes >= self._bounds.nbytes:
            self._flush()

    def _next(self) -> Sequence[Item]:
        items = self._parts.source.read(self._bounds.read)
        at = self._parts.monotonic()
        if not items and at - self._looked_at >= self._bounds.cursor:
            self._looked_at = at
            if self._parts.source.identity != self._journal:
                raise store.FencedError("the journal was replaced by another")
        return items

    def _due(self, *, stopping: bool) -> bool:
        at, pending = self._parts.monotonic(), self._pending
        if pending.since is not None:
            return stopping or at - pending.since >= self._bounds.seconds
        moved = self._read > self._cursor.done
        return moved and self._place is not None and (stopping or at - self._stored_at >= self._bounds.cursor)

    def _measure(self) -> None:
        self._measured_at = self._parts.monotonic()
        status = self.status
        waiting, oldest = self._parts.source.waiting(), self._pending.oldest
        status.lag_records = len(self._pending.rows) + waiting
        # What waits unread was made after what was read last, and in a backlog just after.
        status.oldest_unshipped_at = self._reached if oldest is None and waiting else oldest
        status.open_calls = self._joiner.open_calls

    # --- from entry to row ----------------------------------------------------------------------------------------

    def _take(self, item: Item) -> None:
        if item.sequence <= self._read:
            return
        known = max(self._read, self._cursor.done)
        if self._cursor.done >= 0 and item.sequence > known + 1:
            self._gap(item, known + 1)
        self._read = item.sequence
        try:
            record = self._joiner.add(item.place, item.sequence, decode(item.data))
        except (msgspec.DecodeError, UnicodeError) as fault:
            # Not read again in vain: what was read before ``done`` has been kept before.
            record = None if item.sequence <= self._cursor.done else self._unreadable(item, fault)
        if record is not None and item.sequence > self._cursor.done:
            self._add(record)

    def _gap(self, item: Item, first: int) -> None:
        """Entries are missing: that is a fact of the log too."""
        at = int(self._parts.now().timestamp() * 1e9)
        missing = {"first": first, "last": item.sequence - 1}
        self._add(event_record(item.place, item.sequence - 1, at, "journal_gap", **missing))

    def _unreadable(self, item: Item, fault: Exception) -> EventRecord:
        self.status.poisoned += 1
        return self._keep(item.place, item.sequence, item.data, f"unreadable entry: {fault}")

    def _add(self, record: Record) -> None:
        row = self._row(record)
        pending = self._pending
        self._reached = _ended_at(record)
        if pending.since is None:
            pending.since = self._parts.monotonic()
            pending.oldest = self._reached
        pending.rows.append(row)
        if isinstance(row, CallRow):
            pending.nbytes += row.nbytes
        if isinstance(record, CallRecord) and isinstance(row, CallRow) and self._parts.ended and record.facts.sampled:
            pending.calls.append(record)
        if isinstance(record, EventRecord) and record.event.kind == "bundle_loaded":
            digest = record.event.detail.get("digest")
            if isinstance(digest, str):
                pending.digests.append((digest, self._parts.now()))

    def _row(self, record: Record) -> CallRow | EventRow:
        try:
            if isinstance(record, EventRecord):
                return event_row(record)
            kept, counts = redacted(record, self._parts.redaction_key.reveal())
            return call_row(kept, self._parts.sealer, counts)
        except Exception as fault:  # noqa: BLE001 — one record, whatever it is, must not hold up the others
            self.status.poisoned += 1
            payload = _payload(record)
            return event_row(self._keep(record.place, record.sequence, payload, f"cannot be a row: {fault}"))

    def _keep(self, place: Place, sequence: int, payload: bytes, words: str) -> EventRecord:
        """Put aside what cannot be stored; the event that stands for it says where."""
        path = self._parts.poison.keep(place.journal, sequence, payload, words)
        at = int(self._parts.now().timestamp() * 1e9)
        event_id = store.substitute_id(place.journal, sequence)
        detail: dict[str, bool | int | float | str] = {"error": words[:500], "file": path.name}
        return EventRecord(place, sequence, Event(event_id, at, "record_unstorable", f"ship:{place.sidecar}", detail))

    def _substitute(self, row: CallRow | EventRow, words: str) -> EventRow:
        assert self._place is not None
        assert row.sequence is not None
        return event_row(self._keep(self._place, row.sequence, msgspec.msgpack.encode(row.values), words))

    # --- storing --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        pending, place = self._pending, self._place
        assert place is not None
        after = store.Cursor(self._joiner.needed(self._read + 1), max(self._read, self._cursor.done))
        bundles = [
            (digest, content, at)
            for digest, at in pending.digests
            if (content := read_bundle(self._parts.directory, digest)) is not None
        ]
        batch = store.Batch(place.sidecar, place.journal, self._cursor, after, pending.rows, bundles)
        done = self._patiently(lambda: self._store(batch))
        self.status.database_up = True
        self._cursor, self._pending = after, _Pending()
        self._stored_at = self._parts.monotonic()
        self.status.shipped_sequence, self.status.position = after.needed - 1, done.next_position
        self.status.rows += len(batch.rows)
        self.status.poisoned += len(done.rejected)
        self._parts.source.shipped(after.needed - 1)
        for digest, _, _ in bundles:
            drop_bundle(self._parts.directory, digest)
        if self._parts.ended is not None:
            for call in pending.calls:
                self._parts.ended(call)

    def _store(self, batch: store.Batch) -> store.Committed:
        self._parts.source.sync()
        today = self._parts.now().date()
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            if today != self._today:
                store.ensure_partitions(connection, store.days_ahead(today))
            committed = store.commit(connection, batch, self._substitute)
        self._today = today
        return committed

    def _patiently(self, act: Callable[[], T]) -> T:
        """Until it works: capped backoff with full jitter; asked to stop, one try and no more."""
        wait = self._bounds.backoff
        while True:
            try:
                result = act()
            except (store.WrongJurisdictionError, store.FencedError):
                raise
            except (sa.exc.SQLAlchemyError, psycopg.Error, store.MismatchError, JournalError, OSError) as fault:
                self._trouble(fault)
                self._parts.engine.dispose()
                self._measure()
                if self._stop.wait(wait * self._parts.chance()):
                    raise StoppedError from fault
                wait = min(wait * 2, self._bounds.backoff_most)
            else:
                self.status.last_error = None
                return result

    def _trouble(self, fault: Exception) -> None:
        if isinstance(fault, sa.exc.SQLAlchemyError | psycopg.Error | store.MismatchError):
            self.status.database_up = False
        self.status.last_error = " ".join(str(getattr(fault, "orig", None) or fault).split())[:500]


def _ended_at(record: Record) -> float:
    """Seconds since the UNIX epoch at which the record was complete."""
    if isinstance(record, EventRecord):
        return record.event.at_ns / 1e9
    return getattr(record.end, "at_ns", record.facts.decided_ns) / 1e9


def _made_at(item: Item) -> float | None:
    """Seconds since the UNIX epoch at which an entry was written; None where it can't be read."""
    try:
        entry: Entry = decode(item.data)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return (entry.call.decided_ns if isinstance(entry, Admitted | Refused) else entry.at_ns) / 1e9


def _payload(record: Record) -> bytes:
    if isinstance(record, EventRecord):
        return msgspec.msgpack.encode(record.event)
    return msgspec.msgpack.encode([record.facts, record.end, record.output])

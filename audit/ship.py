"""Follows the journal into the database: joins, seals, stores each record once, and waits however long it must."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import psycopg
import sqlalchemy as sa

from audit import store, storing
from audit.assemble import CallRecord, EventRecord, Joiner, Place, Record, event_record
from audit.batch import Batch, Cursor, Row, StoredBundle, make_batch
from audit.fleet import Fleet
from audit.follow import read_shipped
from audit.keys import KeyFaultError
from audit.logbook import ForkError, LogBook
from audit.merkle import Frontier
from audit.poison import PoisonKeeper
from audit.record import Admitted, Entry, Event, Refused, decode
from audit.redacting import redacted
from audit.rows import CALL_COLUMNS, CallRow, EventRow, call_row, event_row
from audit.spool import drop_bundle, read_bundle
from audit.vault import Vault
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
    checkpoint: float = 1.0  # seconds between two signed heads while the log grows
    fleet: float = 5.0  # seconds between two looks at the fleet's log
    keep: float = 86400.0  # seconds that sealed batches are kept, for a database that is restored
    backoff: float = 0.2  # seconds before the first retry, doubled up to:
    backoff_most: float = 30.0
    transaction: float = 60.0  # seconds after which a database that hangs is given up


@dataclass(frozen=True, slots=True)
class Parts:
    """What the shipper works with. ``chance`` gives [0, 1); ``ended`` is told each stored call, and must not wait."""

    source: Source
    engine: sa.Engine
    redaction_key: Secret  # keys what a redacted identifier is replaced by
    vault: Vault
    book: LogBook
    poison: PoisonKeeper
    directory: Path  # the journal's; holds the spooled bundles
    sidecar: str
    region: str
    jurisdiction: str
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    chance: Callable[[], float]
    ended: Callable[[CallRecord], None] | None = None
    fleet: Fleet | None = None


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
    log: str = ""
    signed_size: int = 0  # of the last head that is stored
    tampered: bool = False  # the database shows a tree that was not made here


@dataclass(slots=True)
class _Pending:
    """The batch being filled: rows, what to tell when they are stored, and the first row's times."""

    rows: list[Row] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    digests: list[tuple[str, datetime]] = field(default_factory=list)
    nbytes: int = 0
    since: float | None = None
    oldest: float | None = None


DEFAULT: Final = Bounds()
_DATA_KEY: Final = CALL_COLUMNS.index("data_key")
_PRUNE: Final = 60.0  # seconds between two looks at which batches may go


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
        self._cursor = storing.NO_CURSOR
        self._joiner = Joiner()
        self._pending = _Pending()
        self._read = -1  # the last sequence that was read
        self._reached: float | None = None  # when the entry read last was made, or at the start the first one there is
        self._place: Place | None = None
        self._stored_at = self._looked_at = self._measured_at = 0.0
        self._today: date | None = None
        self._journal = ""
        self._notes: list[tuple[str, dict[str, bool | int | float | str]]] = []  # facts for the log itself
        self._signed_at = self._pruned_at = float("-inf")
        self._sign_from = self._fleet_at = float("-inf")
        self._published = -1  # size of the last head that is stored

    def run(self) -> None:
        """Raises WrongJurisdictionError; every other trouble is waited out."""
        try:
            while not self._stop.is_set():
                try:
                    self._patiently(self._begin)
                    self._follow()
                except (storing.FencedError, storing.BehindError) as fault:
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
        book = self._parts.book
        self.status.log = book.log
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            store.check_jurisdiction(connection, self._parts.jurisdiction)
            store.ensure_partitions(connection, store.days_ahead(self._parts.now().date()))
            tree = storing.tree_of(connection, book.log)
        self.status.database_up = True
        self._today = self._parts.now().date()
        self._journal = journal
        self._catch_up(tree)
        self._cursor = self._known_cursor(journal)
        self._joiner, self._pending = Joiner(), _Pending()
        self._parts.source.seek(self._cursor.needed)
        self._read = self._cursor.needed - 1
        self._stored_at = self._parts.monotonic()
        self._published = -1
        self.status.tampered = False

    def _catch_up(self, tree: Frontier) -> None:
        """Give the database what it was given before and does not have; refuse one that has what we never gave.

        Raises ForkError, FencedError and BehindError.
        """
        book = self._parts.book
        if tree.size > book.next.size:
            raise ForkError(f"the database shows {tree.size} records of {book.log}; {book.next.size} were made here")
        ours = book.tree_at(tree.size)
        if ours is not None and ours != tree:
            raise ForkError(f"the first {tree.size} records of {book.log} in the database are not those made here")
        try:
            batches = book.since(tree.size)
        except LookupError:
            # Restored from before all that is kept: this log can't be whole there. It ends, and a new one says so.
            ended, signed = book.log, book.signed.size
            book.begin_anew()
            self.status.log = book.log
            self._note("log_ended", log=ended, size=tree.size, signed_size=signed)
            return
        if tree.size < book.signed.size:
            self._note("database_rolled_back", log=book.log, size=tree.size, signed_size=book.signed.size)
        for batch in batches:
            try:
                self._commit(batch)
            except storing.FencedError:
                book.drop_unsigned(batch.first)
                raise

    def _known_cursor(self, journal: str) -> Cursor:
        """Ours, where this log has read that journal; else the database's. One that another log moved is told."""
        known, cursor = self._parts.book.cursor
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            found = storing.cursor_of(connection, journal)
        if found is None or found[1] == self._parts.book.log:
            return cursor if known == journal else storing.NO_CURSOR
        if known == journal and found[0] != cursor:
            self._note("journal_read_by_another", by=found[1], done=found[0].done, ours=cursor.done)
        return found[0]

    def _note(self, kind: str, **detail: bool | int | float | str) -> None:
        if (kind, detail) not in self._notes:
            self._notes.append((kind, detail))

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
            items = () if stopping else self._patiently(self._next, local=True)
            if not items:
                self._reached = None
            for item in items:
                self._arrive(item)
            self._tell_notes()
            if self._due(stopping=stopping):
                self._flush()
            self._sign(idle=stopping or not items)
            if stopping or self._parts.monotonic() - self._measured_at >= self._bounds.measure:
                self._measure()
            self._tend_fleet(stopping=stopping)
            if stopping:
                return
            if not items:
                self._stop.wait(self._bounds.idle)

    def _tell_notes(self) -> None:
        """Into our own log: what was seen of the database belongs to the evidence."""
        while self._notes:
            kind, detail = self._notes.pop(0)
            place = Place(self._parts.sidecar, self._journal, self._parts.region, self._parts.jurisdiction)
            self._place = self._place or place
            event = Event(f"{self._parts.book.log}:{self._position}:{kind}", self._now_ns(), kind, self._actor, detail)
            self._add(EventRecord(place, max(self._read, 0), event))

    @property
    def _actor(self) -> str:
        return f"ship:{self._parts.sidecar}"

    @property
    def _position(self) -> int:
        """Of the next record in the log."""
        return self._parts.book.next.size + len(self._pending.rows)

    def _now_ns(self) -> int:
        return int(self._parts.now().timestamp() * 1e9)

    def _arrive(self, item: Item) -> None:
        place = item.place
        if place.journal != self._journal:
            raise storing.FencedError("the journal was replaced by another")
        if place.jurisdiction != self._parts.jurisdiction:
            words = f"records of {place.jurisdiction!r} may not be stored in {self._parts.jurisdiction!r}"
            raise store.WrongJurisdictionError(words)
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
                raise storing.FencedError("the journal was replaced by another")
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
        at = self._now_ns()
        missing = {"first": first, "last": item.sequence - 1}
        self._add(event_record(item.place, item.sequence - 1, at, "journal_gap", **missing))

    def _unreadable(self, item: Item, fault: Exception) -> EventRecord:
        self.status.poisoned += 1
        return self._keep(item.place, item.sequence, item.data, f"unreadable entry: {fault}")

    def _add(self, record: Record) -> None:
        row = self._patiently(lambda: self._row(record), local=True)
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

    def _row(self, record: Record) -> Row:
        book, position = self._parts.book, self._position
        try:
            if isinstance(record, EventRecord):
                return event_row(record, book.log, position)
            kept, counts = redacted(record, self._parts.redaction_key.reveal())
            return call_row(kept, self._parts.vault, book.log, position, counts)
        except KeyFaultError:
            raise  # the record is sound; its key will come
        except Exception as fault:  # noqa: BLE001 — one record, whatever it is, must not hold up the others
            self.status.poisoned += 1
            instead = self._keep(record.place, record.sequence, _payload(record), f"cannot be a row: {fault}")
            return event_row(instead, book.log, position)

    def _keep(self, place: Place, sequence: int, payload: bytes, words: str, at: int | None = None) -> EventRecord:
        """Put aside what cannot be stored; the event that stands for it says where."""
        path = self._parts.poison.keep(place.journal, sequence, payload, words)
        event_id = storing.substitute_id(self._parts.book.log, self._position if at is None else at)
        detail: dict[str, bool | int | float | str] = {"error": words[:500], "file": path.name}
        return EventRecord(place, sequence, Event(event_id, self._now_ns(), "record_unstorable", self._actor, detail))

    # --- storing --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        pending, book = self._pending, self._parts.book
        after = Cursor(self._joiner.needed(self._read + 1), max(self._read, self._cursor.done))
        batch = self._patiently(lambda: self._sealed(after), local=True)
        self._patiently(lambda: self._store(batch))
        self.status.database_up = True
        self._cursor, self._pending = after, _Pending()
        self._stored_at = self._parts.monotonic()
        self.status.shipped_sequence, self.status.position = after.needed - 1, book.next.size
        self.status.rows += len(batch.rows)
        self._parts.source.shipped(after.needed - 1)
        for bundle in batch.bundles:
            drop_bundle(self._parts.directory, bundle.digest)
        if self._parts.ended is not None:
            for call in pending.calls:
                self._parts.ended(call)

    def _sealed(self, after: Cursor) -> Batch:
        """The batch at hand, on our own disk before anybody else has it; a cursor alone is not worth a file."""
        parts, pending, tree = self._parts, self._pending, self._parts.book.next
        place = Batch(
            parts.book.log, parts.sidecar, self._journal, parts.jurisdiction, tree.size, tree.pack(),
            self._cursor, after, [], b"", made_ns=self._now_ns(),
        )  # fmt: skip
        if not pending.rows:
            return place
        parts.source.sync()
        bundles = [
            StoredBundle(digest, content, int(at.timestamp() * 1e9))
            for digest, at in pending.digests
            if (content := read_bundle(parts.directory, digest)) is not None
        ]
        keys = parts.vault.made(row.values[_DATA_KEY] for row in pending.rows if isinstance(row, CallRow))
        batch = make_batch(place, pending.rows, keys=keys, bundles=bundles)
        parts.book.keep(batch)
        return batch

    def _store(self, batch: Batch) -> None:
        """What the database refuses gives way to an event that says so; nobody has seen the tree with it yet."""
        try:
            self._commit(batch)
        except storing.RejectedError as fault:
            rows = list(batch.rows)
            for position, words in fault.rows:
                rows[position - batch.first] = self._substitute(batch.rows[position - batch.first], position, words)
                self.status.poisoned += 1
            changed = make_batch(batch, rows, keys=batch.keys, bundles=batch.bundles)
            self._parts.book.keep(changed)
            self._commit(changed)

    def _substitute(self, row: Row, position: int, words: str) -> EventRow:
        place = Place(self._parts.sidecar, self._journal, self._parts.region, self._parts.jurisdiction)
        assert row.sequence is not None
        kept = self._keep(place, row.sequence, msgspec.msgpack.encode(row.values), words, position)
        return event_row(kept, self._parts.book.log, position)

    def _commit(self, batch: Batch) -> None:
        today = self._parts.now().date()
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            if today != self._today:
                store.ensure_partitions(connection, store.days_ahead(today))
            storing.commit(connection, batch, self._parts.vault.provider)
        self._today = today
        self._parts.vault.stored(batch.keys)
        self._parts.vault.refresh()
        if not batch.rows:
            self._parts.book.moved(batch.journal, batch.after)

    def _sign(self, *, idle: bool) -> None:
        """Sign the tree that is stored, and store its head: at most every ``checkpoint`` seconds, and at the end."""
        book, at = self._parts.book, self._parts.monotonic()
        if book.next.size == self._published or not book.next.size:
            return
        if at < self._sign_from or (not idle and at - self._signed_at < self._bounds.checkpoint):
            return
        try:
            self._publish(book.next.size, book.sign(book.next))
        except (sa.exc.SQLAlchemyError, psycopg.Error, store.MismatchError, OSError) as fault:
            # What comes next is read meanwhile, so that its age is told; the head is stored when the rest can be.
            self._trouble(fault)
            self._parts.engine.dispose()
            self._sign_from = at + self._bounds.backoff
            return
        self._signed_at, self._published = at, book.next.size
        self.status.last_error = None
        self.status.signed_size = book.next.size
        self._prune(at)

    def _prune(self, at: float) -> None:
        book = self._parts.book
        if at - self._pruned_at >= _PRUNE:
            self._pruned_at = at
            book.prune(before_s=(self._parts.now() - timedelta(seconds=self._bounds.keep)).timestamp())

    def _tend_fleet(self, *, stopping: bool) -> None:
        """The fleet's log is everybody's: whether it can be written holds up nothing of ours."""
        fleet, at, book = self._parts.fleet, self._parts.monotonic(), self._parts.book
        if fleet is None or (not stopping and at - self._fleet_at < self._bounds.fleet):
            return
        self._fleet_at = at
        closing = [book.log] if stopping and not self._pending.rows and not self._parts.source.waiting() else []
        try:
            with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
                note = fleet.turn(connection, self._parts.now(), closing)
            if note is not None:
                fleet.published(note)
        except (ForkError, storing.ForeignTreeError) as fault:
            self.status.tampered = True
            self._trouble(fault)
        except (sa.exc.SQLAlchemyError, psycopg.Error, store.MismatchError, OSError) as fault:
            self._trouble(fault)

    def _publish(self, size: int, note: str) -> None:
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            storing.publish(connection, self._parts.book.log, size, note, self._parts.now())

    def _patiently(self, act: Callable[[], T], *, local: bool = False) -> T:
        """Until it works: capped backoff with full jitter; asked to stop, one try and no more."""
        wait, failed = self._bounds.backoff, False
        while True:
            try:
                result = act()
            except (store.WrongJurisdictionError, storing.FencedError, storing.BehindError):
                raise
            except (storing.ForeignTreeError, ForkError) as fault:
                self.status.tampered = True
                self._wait_out(fault, self._bounds.backoff_most)
            except (sa.exc.SQLAlchemyError, psycopg.Error, store.MismatchError, JournalError, OSError) as fault:
                failed = True
                self._wait_out(fault, wait)
                wait = min(wait * 2, self._bounds.backoff_most)
            else:
                if failed or not local:  # what works on our own disk says nothing of the database
                    self.status.last_error = None
                return result

    def _wait_out(self, fault: Exception, seconds: float) -> None:
        """Raises StoppedError where we are asked to stop meanwhile."""
        self._trouble(fault)
        self._parts.engine.dispose()
        self._measure()
        if self._stop.wait(seconds * self._parts.chance()):
            raise StoppedError from fault

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

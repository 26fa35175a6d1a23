"""Follows the journal into the database: joins, seals, stores each record once, and waits however long it must."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from audit import store, storing
from audit.assemble import CallRecord, EventRecord, Joiner, Place, Record, event_record
from audit.batch import Batch, Cursor, Row, StoredBundle, make_batch
from audit.database import Database
from audit.entries import END_LOST_WORDS, cut_off
from audit.filling import Rows, ended_at, made_at
from audit.follow import read_shipped
from audit.heads import Heads
from audit.patience import Patience
from audit.record import Event, decode, store_of
from audit.rows import CallRow
from audit.ship_parts import Bounds, Item, JournalError, Parts, Source, Status, StoppedError
from audit.spool import drop_bundle, read_bundle
from audit.uploading import FINISH_S, Uploader
from sidecar.core.model import Instant

__all__ = ["Bounds", "Item", "Parts", "Shipper", "Source", "Status"]


@dataclass(slots=True)
class _Pending:
    """The batch being filled: rows, what to tell when they are stored, and the first row's times."""

    rows: list[Row] = field(default_factory=list)
    leaves: list[bytes] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    digests: list[tuple[str, datetime]] = field(default_factory=list)
    nbytes: int = 0
    since: float | None = None
    oldest: float | None = None


@dataclass(slots=True)
class _Flight:
    """A sealed batch on its way to the database, while the next one is filled; ``answer`` is None once it was read."""

    batch: Batch
    pending: _Pending
    answer: Future[None] | None


DEFAULT: Final = Bounds()
_LOOKS: Final = 3
_ROW_BYTES: Final = 1024  # of a row beside its content, in a batch


class Shipper:
    """One journal's shipper; ``run`` returns once ``stop`` is set and the batch at hand is stored."""

    def __init__(
        self, parts: Parts, stop: threading.Event, bounds: Bounds = DEFAULT, status: Status | None = None
    ) -> None:
        """``status``: that of the shipper before this one, which goes on."""
        self._parts = parts
        self._stop = stop
        self._bounds = bounds
        self.status = status or Status()
        self._cursor = storing.NO_CURSOR
        self._joiner = Joiner()
        self._pending = _Pending()
        self._read = -1  # the last sequence that was read
        self._reached: float | None = None  # when the entry read last was made, or at the start the first one there is
        self._place: Place | None = None
        self._checked: Place | None = None  # the one that entries may come from
        self._ended = 0  # every call that was admitted before this sequence has ended
        self._stored_at = self._looked_at = self._measured_at = 0.0
        self._journal = ""
        self._patience = Patience(parts, bounds, self.status, stop, self._measure)
        self._rows = Rows(parts, self.status)
        self._database = Database(parts, bounds, self.status)
        self._heads = Heads(parts, bounds, self.status, self._patience.trouble)
        # Made once its log is there to be looked through: at the first start over.
        self._uploads: Uploader | None = None
        self._room = 2**63  # bytes that the next batch may take of the disk
        self._waiting = 0  # entries that waited when that was looked at last
        self._flight: _Flight | None = None
        self._empty = 0  # looks in a row that found nothing more to read
        self._sender = ThreadPoolExecutor(1, "warden-store")

    def run(self) -> None:
        """Raises WrongJurisdictionError; every other trouble is waited out."""
        try:
            self._run()
        except StoppedError:
            return
        finally:
            self._sender.shutdown()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._ground()
            try:
                self._patience.until_it_works(self._begin)
                self._follow()
            except (storing.FencedError, storing.BehindError) as fault:
                self._patience.trouble(fault)
                self._stop.wait(self._bounds.backoff_most * self._parts.chance() / 10)

    # --- where to start -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Check the database, and rebuild the calls that had not ended by reading from where they began."""
        journal = self._parts.source.identity
        if not journal:
            raise JournalError(f"there is no journal in {self._parts.directory} yet")
        self._reached = self._oldest()
        book = self._parts.book
        if self._uploads is None and self._parts.objects is not None:
            self._uploads = Uploader(self._parts.objects, book, lambda: self._parts.now().timestamp())
        self.status.log = book.log
        self._journal, self._checked, self._ended = journal, None, 0
        self._cursor = self._database.agree(journal)
        self._joiner, self._pending = Joiner(), _Pending()
        self._parts.vault.refresh()
        self._parts.source.seek(self._cursor.needed)
        self._read = self._cursor.needed - 1
        self._stored_at = self._parts.monotonic()
        self._heads.begin()
        self.status.tampered = False

    def _oldest(self) -> float | None:
        """When the oldest entry was made that may not be stored, as the journal knows it: the database may be away."""
        source, parts = self._parts.source, self._parts
        first = read_shipped(parts.directory) + 1
        try:
            source.seek(first)
            made = [made_at(item) for item in source.read(1)]
            source.seek(first)
        except OSError:  # told where it is read in earnest, once the database has been asked
            return None
        return made[0] if made else None

    def _follow(self) -> None:
        while True:
            stopping = self._stop.is_set()
            held = not stopping and self._upload()
            items = () if stopping or held else self._patience.until_it_works(self._next, local=True)
            self._empty = 0 if items or held else self._empty + 1
            if not items and not held:
                self._reached = None
                self._read_out()
            self._take(items)
            self._tell_notes()
            if self._due(stopping=stopping):
                self._flush()
            if self._flight is not None and (stopping or not items or self._answered):
                self._land()
            if self._flight is None:
                self._heads.sign(idle=stopping or not items)
            if stopping or self._parts.monotonic() - self._measured_at >= self._bounds.measure:
                self._measure()
            self._heads.tend_fleet(stopping=stopping)
            if stopping:
                self._upload(last=True)
                return
            if not items:
                self._stop.wait(self._bounds.idle)

    def _upload(self, *, last: bool = False) -> bool:
        """Bring objects further; whether nothing more may be read until some of them are in their store."""
        uploads, status = self._uploads, self.status
        if uploads is None:
            return False
        if last:
            uploads.finish(FINISH_S, self._parts.monotonic)
        else:
            uploads.turn()
        self._database.notes += uploads.take()
        status.objects_trouble, status.objects_oldest = uploads.trouble, uploads.oldest
        status.objects_bytes, status.objects_stored = uploads.waiting_bytes, uploads.stored
        return uploads.full

    def _read_out(self) -> None:
        """Of a journal that nobody writes any more: store all that there is of it, and stop.

        Calls that it leaves open end in the order of their admission: should this process end between two batches, the
        next one reads on behind those that are stored. They take no sequence of the journal's: whoever wrote it may
        come back, with entries that were never seen here.
        """
        if self._parts.cut_off is None or self._stop.is_set() or self._empty < _LOOKS:  # looks torn: look again
            return
        for call in self._joiner.cut_off():
            assert self._place is not None
            record = self._joiner.add(self._place, max(self._read, 0), self._parts.cut_off(call))
            assert record is not None
            self.status.aborted += 1
            self._add(record)
            if len(self._pending.rows) >= self._bounds.rows:
                self._flush()
        self._tell_notes()
        self._flush()
        self._land()
        self._stop.set()

    def _tell_notes(self) -> None:
        """Into our own log: what was seen of the database, and of the anchor, belongs to the evidence."""
        fleet = self._parts.fleet
        if fleet is not None and fleet.objects is not None:
            self._database.notes += fleet.objects.take()
        while self._database.notes:
            kind, detail = self._database.notes.pop(0)
            place = Place(self._parts.sidecar, self._journal, self._parts.region, self._parts.place)
            self._place = self._place or place
            event = Event(
                f"{self._parts.book.log}:{self._position}:{kind}", self._now_ns(), kind, f"ship:{place.sidecar}", detail
            )
            self._add(EventRecord(place, max(self._read, 0), event))

    @property
    def _position(self) -> int:
        """Of the next record in the log."""
        return self._parts.book.next_size + len(self._pending.rows)

    @property
    def _answered(self) -> bool:
        return self._flight is not None and (self._flight.answer is None or self._flight.answer.done())

    @property
    def _behind(self) -> bool:
        return self._waiting >= self._bounds.rows

    def _now_ns(self) -> int:
        return int(self._parts.now().timestamp() * 1e9)

    def _full(self) -> bool:
        bounds, pending = self._bounds, self._pending
        most = max(bounds.rows, bounds.rows_most) if self._behind else bounds.rows
        rows = len(pending.rows)
        return rows >= most or pending.nbytes >= bounds.nbytes or pending.nbytes + _ROW_BYTES * rows >= self._room

    def _check(self, place: Place) -> None:
        if place.journal != self._journal:
            raise storing.FencedError("the journal was replaced by another")
        self._place = self._checked = place

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
            seconds = self._bounds.seconds_most if self._behind else self._bounds.seconds
            return stopping or at - pending.since >= seconds
        if self._flight is not None:
            return False
        moved = self._read > self._cursor.done and self._place is not None
        since = at - self._stored_at
        return (moved and (stopping or since >= self._bounds.cursor)) or since >= self._bounds.heard

    def _measure(self) -> None:
        self._look_at_disk()
        status = self.status
        waiting = self._waiting = self._parts.source.waiting()
        flown = self._flight.pending if self._flight is not None else _Pending()
        oldest = self._pending.oldest if flown.oldest is None else flown.oldest
        status.lag_records = len(flown.rows) + len(self._pending.rows) + waiting
        # What waits unread was made after what was read last, and in a backlog just after.
        status.oldest_unshipped_at = self._reached if oldest is None and waiting else oldest
        status.open_calls = self._joiner.open_calls
        self._measured_at = self._parts.monotonic()

    def _look_at_disk(self) -> None:
        """A quarter of what is free, so that the batch, its successor and what the journal still needs fit."""
        try:
            self._room = self._heads.make_room() // (4 * self._bounds.sharers)
        except OSError:
            return  # gone: told where the journal is read

    # --- from entry to row ----------------------------------------------------------------------------------------

    def _take(self, items: Sequence[Item]) -> None:
        """What they complete becomes rows; a batch that is full by it goes."""
        mine = self._parts.jurisdiction
        for item in items:
            place, sequence = item.place, item.sequence
            if place is not self._checked:  # the same for all of a segment
                self._check(place)
            if sequence != self._read + 1 and not self._goes_on(item):
                continue
            self._read = sequence
            if place.open_from > self._ended:
                self._end_lost(place)
            try:
                entry = decode(item.data)
                jurisdiction = store_of(entry) or place.store or place.jurisdiction
                if jurisdiction != mine:
                    raise store.WrongJurisdictionError(f"records of {jurisdiction!r} may not be stored in {mine!r}")
                record = self._joiner.add(place, sequence, entry)
            except (msgspec.DecodeError, UnicodeError) as fault:
                # Not read again in vain: what was read before ``done`` has been kept before.
                old = sequence <= self._cursor.done
                record = None if old else self._rows.unreadable(item, self._position, fault)
            if record is not None and sequence > self._cursor.done:
                self._add(record)
                if self._full():
                    self._flush()

    def _goes_on(self, item: Item) -> bool:
        """Whether it was not read before; that entries before it are missing is told."""
        known = max(self._read, self._cursor.done)
        if item.sequence > self._read and known >= 0 and item.sequence > known + 1:
            self._gap(item, known + 1)
        return item.sequence > self._read

    def _end_lost(self, place: Place) -> None:
        """Calls whose end was lost with damaged entries: a later segment says that they had ended when it began.

        Without one they would hold the journal for ever. Not stored before the entry at hand is: a restart takes all
        that was read until then for done.
        """
        self._ended = place.open_from
        for call in self._joiner.ended_before(place.open_from):
            ended = cut_off(call, Instant(self._now_ns(), 0), END_LOST_WORDS)
            record = self._joiner.add(place, self._read, ended)
            assert record is not None
            self.status.aborted += 1
            if self._read > self._cursor.done:
                self._add(record)

    def _gap(self, item: Item, first: int) -> None:
        """Entries are missing: that is a fact of the log too."""
        at = self._now_ns()
        missing = {"first": first, "last": item.sequence - 1}
        self._add(event_record(item.place, item.sequence - 1, at, "journal_gap", **missing))

    def _add(self, record: Record) -> None:
        row, leaf = self._patience.until_it_works(lambda: self._rows.row(record, self._position), local=True)
        pending = self._pending
        self._reached = ended_at(record)
        if pending.since is None:
            pending.since = self._parts.monotonic()
            pending.oldest = self._reached
        pending.rows.append(row)
        pending.leaves.append(leaf)
        if isinstance(row, CallRow):
            pending.nbytes += row.nbytes
        if isinstance(record, CallRecord) and isinstance(row, CallRow) and self._parts.ended and record.facts.sampled:
            pending.calls.append(record)
        if isinstance(record, EventRecord) and record.event.kind == "bundle_loaded":
            digest = record.event.detail.get("digest")
            if isinstance(digest, str):
                pending.digests.append((digest, self._parts.now()))

    # --- storing --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Seal what is pending and send it; what comes next is read and sealed while the database stores it."""
        self._land()
        self._heads.sign(idle=self._heads.short)  # what is signed may go
        self._look_at_disk()
        after = Cursor(self._joiner.needed(self._read + 1), max(self._read, self._cursor.done))
        batch = self._patience.until_it_works(lambda: self._sealed(after), local=True)
        self._parts.vault.refresh()
        self._flight = _Flight(batch, self._pending, self._sender.submit(self._database.commit, batch))
        self._pending = _Pending()

    def _land(self) -> None:
        """Wait until the batch that was sent is stored; one that failed is sent again from here, patiently."""
        if self._flight is None:
            return
        flight = self._flight
        self._patience.until_it_works(lambda: self._stored(flight))
        self._flight = None
        self._landed(flight)

    def _stored(self, flight: _Flight) -> None:
        """What the database refuses gives way to an event that says so; nobody has seen the tree with it yet."""
        answer, flight.answer = flight.answer, None
        try:
            if answer is not None:
                answer.result()
            else:
                self._database.commit(flight.batch)
        except storing.RejectedError as fault:
            changed = self._rows.without(flight.batch, fault.rows)
            self._keep(changed)
            flight.batch = changed  # the answer to its COMMIT may be lost: it is this one that is asked for again
            self._database.commit(changed)

    def _keep(self, batch: Batch) -> None:
        self._parts.book.keep(batch)
        if self._uploads is not None:
            self._uploads.kept(batch)

    def _ground(self) -> None:
        """Before starting over: what is on its way either arrived or never will."""
        flight, self._flight = self._flight, None
        if flight is not None and flight.answer is not None:
            wait((flight.answer,))

    def _landed(self, flight: _Flight) -> None:
        batch, after = flight.batch, flight.batch.after
        self.status.database_up = True
        self._cursor = after
        self._parts.vault.stored(batch.keys)
        if not batch.rows:
            self._parts.book.moved(batch.journal, after)
        self._stored_at = self._parts.monotonic()
        self.status.shipped_sequence, self.status.position = after.needed - 1, self._parts.book.next.size
        self.status.rows += len(batch.rows)
        self._parts.source.shipped(after.needed - 1)
        for bundle in batch.bundles:
            drop_bundle(self._parts.directory, bundle.digest)
        if self._parts.ended is not None:
            for call in flight.pending.calls:
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
        keys = parts.vault.made(row.data_key for row in pending.rows if isinstance(row, CallRow))
        batch = make_batch(place, pending.rows, pending.leaves, keys=keys, bundles=bundles)
        self._keep(batch)
        return batch

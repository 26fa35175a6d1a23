"""When a shipper signs and stores the head of what is stored, forgets old batches, and writes the fleet's log."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import psycopg
import sqlalchemy as sa

from audit import remains, store, storing, upkeep
from audit.fleet import Fleet
from audit.logbook import ForkError
from audit.ship_parts import Bounds, Parts, Status

__all__ = ["Heads"]

_PRUNE: Final = 60.0  # seconds between two looks at which batches may go
_LOOK: Final = 60.0  # seconds between two looks at what must be done day by day


class Heads:
    """One shipper's heads; it is asked in every round. ``trouble`` is told what failed."""

    def __init__(self, parts: Parts, bounds: Bounds, status: Status, trouble: Callable[[Exception], None]) -> None:
        self._parts, self._bounds, self.status, self._trouble = parts, bounds, status, trouble
        self._signed_at = self._pruned_at = self._sign_from = self._fleet_at = self._looked_at = float("-inf")
        self._published = -1  # size of the last head that is stored
        self._file_trouble = ""
        self.short = False  # of space, when that was looked at last
        self.settled = False  # the fleet's log was looked at since the start, and nothing was to be told

    def begin(self) -> None:
        """The database may not have the last head."""
        self._published = -1

    def sign(self, *, idle: bool) -> None:
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
        if not self.short:
            self._prune(at)

    def _prune(self, at: float, short: int = 0) -> None:
        book = self._parts.book
        if short or at - self._pruned_at >= _PRUNE:
            self._pruned_at = at
            try:
                before = self._parts.now() - timedelta(seconds=self._bounds.keep)
                book.prune(before_s=before.timestamp(), most_bytes=self._bounds.keep_bytes, short=short)
            except OSError as fault:  # a full disk must not end the shipper; what is kept is tried again
                self._trouble(fault)

    def make_room(self) -> int:
        """Where the disk is short, forget kept batches, whoever is away; how many bytes are free then.

        The journal is on it: to refuse every call for the sake of copies that the database has would be the wrong way
        round.
        """
        free = self._free()
        self.short = free < self._bounds.keep_free
        if self.short:
            self._prune(self._parts.monotonic(), self._bounds.keep_free - free)
            free = self._free()
        return free

    def _free(self) -> int:
        found = os.statvfs(self._parts.directory)
        return found.f_bavail * found.f_frsize

    def tend_fleet(self, *, stopping: bool) -> None:
        """The fleet's log is everybody's: whether it can be written holds up nothing of ours."""
        fleet, at, book = self._parts.fleet, self._parts.monotonic(), self._parts.book
        if fleet is None or (not stopping and at - self._fleet_at < self._bounds.fleet):
            return
        self._fleet_at = at
        ends = stopping and not self._parts.source.waiting()
        closing = [book.log, *self._parts.closes()] if ends else []
        try:
            with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
                self._look_after(connection, at, ends=stopping)
                note = fleet.turn(connection, self._parts.now(), closing)
                for log in closing:
                    storing.heard(connection, log, closed=True)
            if note is not None:
                self._take_outside(fleet, note, last=stopping)
            elif fleet.anchored:
                self.status.anchor_trouble = self._anchor_trouble(fleet, self._file_trouble)
            self.settled = note is None
            if fleet.witnesses is not None:
                self.status.witness_trouble = fleet.witnesses.trouble
                if fleet.witnesses.trouble:
                    self._trouble(OSError(fleet.witnesses.trouble))
        except (ForkError, storing.ForeignTreeError) as fault:
            self.status.tampered = True
            self._trouble(fault)
        except (sa.exc.SQLAlchemyError, psycopg.Error, store.MismatchError, OSError) as fault:
            self._trouble(fault)

    def _look_after(self, connection: sa.Connection, at: float, *, ends: bool) -> None:
        """Whether what must be done day by day is done, by whoever does it; and what this journal can still tell."""
        if ends or at - self._looked_at >= _LOOK:
            parts, now = self._parts, self._parts.now()
            self.status.upkeep = upkeep.look(connection, now)
            remains.tell(connection, parts.book.log, parts.keeps(now))
            self._looked_at = at

    def _take_outside(self, fleet: Fleet, note: str, *, last: bool) -> None:
        """Raises OSError."""
        self._file_trouble = ""
        try:
            fleet.published(note, last=last)
        except OSError as fault:
            self._file_trouble = str(fault)[:500]
            raise
        finally:
            if fleet.anchored:
                self.status.anchor_trouble = self._anchor_trouble(fleet, self._file_trouble)

    def _anchor_trouble(self, fleet: Fleet, words: str) -> str:
        """That of the file and of the object store; the latter is told as the shipper's, too."""
        found = fleet.objects.trouble if fleet.objects is not None else ""
        if found:
            self._trouble(OSError(found))
        return "; ".join(filter(None, (words, found)))[:500]

    def _publish(self, size: int, note: str) -> None:
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            storing.publish(connection, self._parts.book.log, size, note, self._parts.now())

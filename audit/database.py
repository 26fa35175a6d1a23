"""One shipper's database: brought level with what it was given before, and given each new batch in one transaction."""

from __future__ import annotations

from datetime import date

from audit import store, storing
from audit.batch import Batch, Cursor
from audit.logbook import ForkError
from audit.merkle import Frontier
from audit.ship_parts import Bounds, Parts, Status

__all__ = ["Database"]


class Database:
    """``notes``: facts that were seen of it, for the log itself."""

    def __init__(self, parts: Parts, bounds: Bounds, status: Status) -> None:
        self._parts, self._bounds, self.status = parts, bounds, status
        self._today: date | None = None
        self.notes: list[tuple[str, dict[str, bool | int | float | str]]] = []

    def agree(self, journal: str) -> Cursor:
        """Where to read ``journal`` from, once the database has all that it was given.

        Raises WrongJurisdictionError, ForkError, FencedError, BehindError and what the database raises.
        """
        book = self._parts.book
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            store.check_jurisdiction(connection, self._parts.jurisdiction)
            store.ensure_partitions(connection, store.days_ahead(self._parts.now().date()))
            tree = storing.tree_of(connection, book.log)
            storing.heard(connection, book.log, closed=False)
        self.status.database_up = True
        self._today = self._parts.now().date()
        self._catch_up(tree)
        return self._known_cursor(journal)

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
        if ours is None and book.splits(tree.size):
            raise ForkError(f"the database shows {tree.size} records of {book.log}, which it was never given to hold")
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
                self.commit(batch)
                self._parts.vault.stored(batch.keys)
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
        if (kind, detail) not in self.notes:
            self.notes.append((kind, detail))

    def commit(self, batch: Batch) -> None:
        """One at a time, here or in the sender's thread; touches nothing that sealing does."""
        today = self._parts.now().date()
        with store.transaction(self._parts.engine, deadline_s=self._bounds.transaction) as connection:
            if today != self._today:
                store.ensure_partitions(connection, store.days_ahead(today))
            altered = storing.commit(connection, batch, self._parts.vault.provider)
        self._today = today
        for key in altered:
            self.status.poisoned += 1
            self._note("data_key_altered", data_key=key.id, tenant=key.tenant, version=key.version)

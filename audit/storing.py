"""The one transaction that stores a sealed batch: rows, leaves, the log's frontier, keys, bundles and the cursor."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit import rollup
from audit.batch import Batch, Cursor
from audit.keys import KeyGoneError, KeyMissingError, KeyProvider, context_of
from audit.merkle import Frontier
from audit.rows import CALL_COLUMNS, EVENT_COLUMNS, CallRow, EventRow
from audit.store import ensure_partitions, is_data_fault
from audit.tables import (
    audit_calls,
    audit_checkpoints,
    audit_events,
    audit_leaves,
    audit_logs,
    bundles,
    data_keys,
    erasures,
    journal_cursors,
)
from audit.vault import KeyRow, open_subject, unwrap

__all__ = [
    "NO_CURSOR", "BehindError", "FencedError", "ForeignTreeError", "RejectedError", "commit", "cursor_of", "heard",
    "publish", "substitute_id", "tree_of",
]  # fmt: skip

R = TypeVar("R", CallRow, EventRow)

NO_CURSOR: Final = Cursor(0, -1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400_000_000


class FencedError(Exception):
    """Another shipper moved this journal's cursor: read it again and start over from there."""


class BehindError(Exception):
    """The database has fewer of the log's records than it was given: it was restored, or failed over."""


class ForeignTreeError(Exception):
    """The database shows a tree that was not made here. Nothing may be added to it, nor signed."""


class RejectedError(Exception):
    """The database does not take these rows (positions and its words); nothing of the batch is stored."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        super().__init__(f"{len(rows)} rows were refused: {rows[0][1]}")
        self.rows = rows


def cursor_of(connection: sa.Connection, journal: str) -> tuple[Cursor, str] | None:
    """(cursor, the log that moved it furthest): each log that reads a journal has a cursor of its own in it."""
    c = journal_cursors.c
    query = sa.select(c.needed, c.done, c.log).where(c.journal == journal)
    row = connection.execute(query.order_by(c.done.desc(), c.needed.desc(), c.updated_at.desc()).limit(1)).one_or_none()
    return None if row is None else (Cursor(row.needed, row.done), row.log)


def tree_of(connection: sa.Connection, log: str) -> Frontier:
    """The log's tree as the database says it is; empty where it knows no such log. Raises ForeignTreeError."""
    c = audit_logs.c
    row = connection.execute(sa.select(c.next_position, c.frontier).where(c.log == log)).one_or_none()
    if row is None:
        return Frontier()
    try:
        return Frontier.unpack(row.next_position, bytes(row.frontier))
    except ValueError as fault:
        raise ForeignTreeError(f"the frontier of {log} is none: {fault}") from fault


def commit(connection: sa.Connection, batch: Batch, provider: KeyProvider) -> list[KeyRow]:
    """Store a batch, once, inside the caller's transaction; the data keys of it that somebody altered.

    Raises RejectedError, and FencedError, BehindError or ForeignTreeError where the database is not as it was before
    the batch; it is fine where it is already as after it (the answer to an earlier COMMIT may have been lost).
    """
    if _claim(connection, batch):
        return []
    calls = [row for row in batch.rows if isinstance(row, CallRow)]
    days = {row.started // _DAY_US for row in calls}
    ensure_partitions(connection, {(_EPOCH + timedelta(days=day)).date() for day in days})
    altered = _insert_keys(connection, batch.keys, provider)
    refused = _insert(connection, _CALLS.write, calls)
    refused += _insert(connection, _EVENTS.write, [row for row in batch.rows if isinstance(row, EventRow)])
    if refused:
        raise RejectedError(refused)
    _insert_terms(connection, [row for row in calls if row.terms])
    rollup.add(connection, batch.log, calls)
    for bundle in batch.bundles:
        at = _EPOCH + timedelta(microseconds=bundle.at_ns // 1000)
        values = {"digest": bundle.digest, "content": bundle.content, "first_loaded_at": at, "sidecar": batch.sidecar}
        connection.execute(pg_insert(bundles).values(values).on_conflict_do_nothing())
    _advance(connection, batch)
    return altered


def _claim(connection: sa.Connection, batch: Batch) -> bool:
    """Lock this log, so that it has one sequencer at a time; whether the batch is stored already."""
    named = {"log": batch.log, "sidecar": batch.sidecar, "next_position": 0, "frontier": b""}
    connection.execute(pg_insert(audit_logs).values(named).on_conflict_do_nothing())
    connection.execute(sa.select(audit_logs.c.log).where(audit_logs.c.log == batch.log).with_for_update())
    tree = tree_of(connection, batch.log)
    if batch.rows and tree == batch.grown:
        return True
    if tree.size < batch.first:
        raise BehindError(f"the database has {tree.size} records of {batch.log}, not {batch.first}")
    if tree != batch.frontier:
        raise ForeignTreeError(f"the database shows {tree.size} records of {batch.log} that were not made here")
    found = cursor_of(connection, batch.journal)
    if found is not None and found[1] != batch.log and found[0] not in {batch.before, batch.after}:
        raise FencedError(f"the cursor of journal {batch.journal} is at {found[0]} by {found[1]}, not {batch.before}")
    return False


def _advance(connection: sa.Connection, batch: Batch) -> None:
    place = {"needed": batch.after.needed, "done": batch.after.done, "updated_at": sa.func.now()}
    connection.execute(
        pg_insert(journal_cursors)
        .values(journal=batch.journal, log=batch.log, **place)
        .on_conflict_do_update(index_elements=["journal", "log"], set_=place)
    )
    if not batch.rows:
        return
    leaves = {"log": batch.log, "first": batch.first, "hashes": batch.leaves}
    connection.execute(sa.insert(audit_leaves).values(leaves))
    grown = batch.grown
    connection.execute(
        sa.update(audit_logs)
        .where(audit_logs.c.log == batch.log)
        .values(next_position=grown.size, frontier=grown.pack())
    )


def heard(connection: sa.Connection, log: str, *, closed: bool) -> None:
    """That this log's sidecar is at work, or ended with everything stored: an erasure waits for what it may hold."""
    now = sa.func.now()
    marked = sa.update(journal_cursors).where(journal_cursors.c.log == log)
    connection.execute(marked.values(updated_at=now, closed_at=now if closed else None))


def publish(connection: sa.Connection, log: str, size: int, note: str, at: datetime) -> None:
    """Store a signed head. The same one again changes nothing."""
    values = {"log": log, "size": size, "note": note, "signed_at": at}
    connection.execute(pg_insert(audit_checkpoints).values(values).on_conflict_do_nothing())


def substitute_id(log: str, position: int) -> str:
    """The id of the event that stands for a row which could not be stored."""
    return f"{log}:{position}:record_unstorable"


# --- keys ---------------------------------------------------------------------------------------------------------


def lock_keys(connection: sa.Connection, tenants: Sequence[str], *, alone: bool = False) -> None:
    """Hold off (or, ``alone``, be) who destroys a version of these tenants' master keys; until the transaction ends."""
    act = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
    for tenant in sorted(set(tenants)):
        connection.execute(sa.text(f"SELECT {act}(hashtextextended(:name, 7))"), {"name": f"warden.keys {tenant}"})


def _insert_keys(connection: sa.Connection, rows: Sequence[KeyRow], provider: KeyProvider) -> list[KeyRow]:
    if not rows:
        return []
    tenants = {row.tenant for row in rows}
    lock_keys(connection, list(tenants))
    current = {tenant: provider.current(tenant) for tenant in tenants}  # while the lock is held, nobody renews them
    now = connection.scalar(sa.select(sa.func.now()))
    altered: list[KeyRow] = []
    kept = [row if row.version == current[row.tenant] else _late(connection, row, provider, altered) for row in rows]
    values = [
        {
            "id": row.id, "tenant": row.tenant, "days": row.days, "day": row.day, "version": row.version,
            "wrapped": row.wrapped, "subject_sealed": row.subject_sealed, "subject_mac": row.subject_mac,
            "destroyed_at": None if row.wrapped is not None else now,
        }
        for row in kept
    ]  # fmt: skip
    connection.execute(pg_insert(data_keys).on_conflict_do_nothing(), values)
    return altered


def _late(connection: sa.Connection, row: KeyRow, provider: KeyProvider, altered: list[KeyRow]) -> KeyRow:
    """A key from before its tenant's master key was renewed: wrapped anew; destroyed where its subject was erased.

    One that was altered stays as it is: nobody destroyed it. Raises KeyMissingError where its master key is neither
    here nor was destroyed.
    """
    found = unwrap(provider, row)
    secret = found.secret
    gone = msgspec.structs.replace(row, wrapped=None, subject_sealed=None, subject_mac=None)
    if found.altered:
        altered.append(row)
        return row
    if secret is None and not found.destroyed:
        raise KeyMissingError(
            f"{provider.where(row.tenant)}: version {row.version} of the master key of {row.tenant!r} is not there, and"
            " nobody destroyed it; records that are sealed under it wait"
        )
    if secret is None:
        return gone
    name = open_subject(secret, row)
    c = erasures.c
    pending = sa.select(erasures).where(
        c.tenant == row.tenant, c.erased_at.is_not(None), c.done_at.is_(None),
        # What was made under the key of after the erasure is of after it, whoever it is of.
        sa.or_(c.renewed.is_(None), c.renewed > row.version),
    )  # fmt: skip
    erased = {name_of(provider, each) for each in connection.execute(pending)}
    if name and name.decode("utf-8", "surrogatepass") in erased:
        return gone
    version = provider.current(row.tenant)
    wrapped = provider.wrap(row.tenant, version, secret, row.context)
    mac = provider.mac(row.tenant, version, name) if name else None
    return msgspec.structs.replace(row, version=version, wrapped=wrapped, subject_mac=mac)


def wrap_name(provider: KeyProvider, tenant: str, place: str, name: str) -> tuple[int, bytes]:
    """(version, wrapped): a subject's name as a hold or an erasure (``place``) keeps it."""
    version = provider.current(tenant)
    encoded = name.encode("utf-8", "surrogatepass")
    return version, provider.wrap(tenant, version, encoded, context_of(("warden name", tenant, place)))


def name_of(provider: KeyProvider, row: Any) -> str | None:
    """Whom a hold or an erasure is of; None where it is of everybody, or can no longer be read."""
    if row.subject_wrapped is None:
        return None
    context = context_of(("warden name", row.tenant, row.id))
    try:
        name = provider.unwrap(row.tenant, row.version, bytes(row.subject_wrapped), context)
    except KeyGoneError:
        return None
    return name.decode("utf-8", "surrogatepass")


# --- rows ---------------------------------------------------------------------------------------------------------


class _Copy:
    """Binary COPY of calls, whose rows were packed when they were sealed: the fastest way in (facts/audit.md)."""

    AT_ONCE: Final = 64  # rows, given to the driver as one

    def write(self, connection: sa.Connection, rows: Sequence[CallRow]) -> None:
        """Raises the driver's own errors."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with driver.cursor() as cursor:
            # Those that were sealed before a column was added have fewer, and the column its default.
            for count, some in itertools.groupby(rows, lambda row: int.from_bytes(row.packed[:2], "big")):
                columns = ", ".join(CALL_COLUMNS[:count])
                statement = f"COPY {audit_calls.fullname} ({columns}) FROM STDIN (FORMAT BINARY)"
                packed = (row.packed for row in some)
                with cursor.copy(statement.encode()) as copy:
                    copy.write(_COPY_HEAD)
                    while chunk := b"".join(itertools.islice(packed, self.AT_ONCE)):
                        copy.write(chunk)
                    copy.write(_COPY_END)


_COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_COPY_END: Final = b"\xff\xff"


def _insert_terms(connection: sa.Connection, rows: Sequence[CallRow]) -> None:
    """What finds the rows by their words; nothing of one whose subject was erased meanwhile.

    The lock holds an erasure off until this transaction ends: then it finds what was written here.
    """
    if not rows:
        return
    lock_keys(connection, [row.tenant for row in rows])
    keys = sorted({row.data_key for row in rows})
    there = set(connection.scalars(sa.text("SELECT warden.living_keys(:ids)"), {"ids": keys}))
    values = [(_EPOCH + timedelta(microseconds=row.started), row.call_id, row.data_key, row.terms) for row in rows]
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    statement = "COPY warden.audit_terms (started_at, call_id, data_key, terms) FROM STDIN (FORMAT BINARY)"
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["timestamptz", "text", "text", "int8[]"])
        for value in values:
            if value[2] in there:
                copy.write_row(value)


class _Insert:
    """INSERT into one table: what row-level security guards, COPY doesn't take."""

    def __init__(self, table: sa.Table, columns: tuple[str, ...]) -> None:
        self._statement = sa.insert(table)
        self._columns = columns
        self._json = tuple(n for n, name in enumerate(columns) if isinstance(table.c[name].type, JSONB))

    def write(self, connection: sa.Connection, rows: Sequence[EventRow]) -> None:
        """Raises the driver's own errors, and SQLAlchemy's."""
        values = []
        for row in rows:
            told: list[Any] = list(row.values)
            for at in self._json:
                told[at] = json.loads(told[at])
            values.append(dict(zip(self._columns, told, strict=True)))
        connection.execute(self._statement, values)


_CALLS: Final = _Copy()
_EVENTS: Final = _Insert(audit_events, EVENT_COLUMNS)


def _insert(
    connection: sa.Connection, write: Callable[[sa.Connection, Sequence[R]], None], rows: Sequence[R]
) -> list[tuple[int, str]]:
    """Insert all that can be; what cannot is found by halving. At most 2n statements: (position, the words for it)."""
    if not rows:
        return []
    try:
        with connection.begin_nested():
            write(connection, rows)
    except (psycopg.Error, sa.exc.DBAPIError, UnicodeError, OverflowError) as fault:
        if not is_data_fault(fault):
            raise
        if len(rows) == 1:
            position = rows[0].position
            assert position is not None
            return [(position, str(getattr(fault, "orig", None) or fault))]
        middle = len(rows) // 2
        return _insert(connection, write, rows[:middle]) + _insert(connection, write, rows[middle:])
    return []

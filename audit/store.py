"""The audit database: how it is reached, its partitions, and the one transaction that ships a batch of records."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from psycopg import errors as pg
from sqlalchemy.dialects.postgresql import BYTEA, JSONB
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit.rows import CALL_COLUMNS, EVENT_COLUMNS, CallRow, EventRow
from audit.tables import audit_calls, audit_events, audit_logs, bundles, database_facts, journal_cursors

__all__ = [
    "NO_CURSOR",
    "Batch",
    "Committed",
    "Cursor",
    "FencedError",
    "MismatchError",
    "WrongJurisdictionError",
    "check_jurisdiction",
    "commit",
    "connect",
    "cursor_of",
    "ensure_partitions",
    "is_data_fault",
    "partitions",
    "record_event",
    "transaction",
]

AHEAD_DAYS: Final = 8  # today's partition and seven more
CONNECT_SECONDS: Final = 3
STATEMENT_MS: Final = 15_000
LOCK_MS: Final = 5_000
DEADLINE_S: Final = 60.0  # of one transaction

# --- connecting ---------------------------------------------------------------------------------------------------


def connect(dsn: str, *, application: str, pool: int = 2) -> sa.Engine:
    """``dsn`` is a URI or libpq's key=value form. Connects lazily; every connection attempt has a deadline."""
    plain = dsn.replace("postgresql+psycopg://", "postgresql://", 1)

    def open_connection() -> psycopg.Connection[Any]:
        try:
            psycopg.conninfo.conninfo_to_dict(plain)
        except psycopg.ProgrammingError:
            # The parser's own words quote the string, and the password in it.
            raise psycopg.OperationalError("the configured DSN is no Postgres connection string") from None
        return psycopg.connect(
            plain,
            connect_timeout=CONNECT_SECONDS,
            application_name=application,
            tcp_user_timeout=STATEMENT_MS,  # a peer that is gone without a word
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            prepare_threshold=None,  # no statement outlives its transaction, so a pooler may stand between
        )

    return sa.create_engine(
        "postgresql+psycopg://", creator=open_connection, pool_size=pool, max_overflow=0, pool_timeout=CONNECT_SECONDS
    )


@contextmanager
def transaction(
    engine: sa.Engine,
    *,
    statement_ms: int = STATEMENT_MS,
    lock_ms: int = LOCK_MS,
    frozen: bool = False,
    deadline_s: float = DEADLINE_S,
) -> Iterator[sa.Connection]:
    """One transaction with deadlines; ``frozen`` reads one snapshot throughout (REPEATABLE READ).

    After ``deadline_s`` the connection is cut from our side: a server that hangs keeps no timeout of its own.
    """
    with engine.connect() as connection, _cut_after(connection, deadline_s):
        if frozen:
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            connection.execute(
                sa.text(
                    "SELECT set_config('statement_timeout', :s, true), set_config('lock_timeout', :l, true),"
                    " set_config('idle_in_transaction_session_timeout', :i, true)"
                ),
                {"s": str(statement_ms), "l": str(lock_ms), "i": str(statement_ms * 2)},
            )
            yield connection


@contextmanager
def _cut_after(connection: sa.Connection, seconds: float) -> Iterator[None]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    timer = threading.Timer(seconds, _cut, (driver,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(driver: psycopg.Connection[Any]) -> None:
    """Whoever waits on this connection is told that it has ended."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(driver.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def is_data_fault(fault: BaseException) -> bool:
    """Whether a statement failed for what was in it (so: find the row), not for the database's state (so: wait)."""
    cause = getattr(fault, "orig", None) or fault
    if isinstance(cause, UnicodeError | OverflowError | psycopg.DataError | psycopg.IntegrityError):
        return True
    return isinstance(cause, pg.ProgramLimitExceeded | pg.StatementTooComplex | pg.FeatureNotSupported)


# --- what the database is -----------------------------------------------------------------------------------------


class MismatchError(Exception):
    """This database cannot be used as it is; the message says why and what to do."""


class WrongJurisdictionError(MismatchError):
    """A record may only be stored where its jurisdiction is."""


def check_jurisdiction(connection: sa.Connection, configured: str) -> None:
    """Raises WrongJurisdictionError unless the database was prepared for ``configured``; MismatchError if never."""
    try:
        stored = connection.execute(
            sa.select(database_facts.c.value).where(database_facts.c.key == "jurisdiction")
        ).scalar_one_or_none()
    except sa.exc.ProgrammingError as fault:
        if isinstance(fault.orig, pg.UndefinedTable | pg.InvalidSchemaName):
            raise MismatchError("the database has no audit tables; run `warden db upgrade`") from None
        raise
    if stored is None:
        raise MismatchError("the database does not say its jurisdiction; run `warden db upgrade`")
    if stored != configured:
        raise WrongJurisdictionError(
            f"the database belongs to jurisdiction {stored!r}, the configuration says {configured!r}"
        )


# --- partitions ---------------------------------------------------------------------------------------------------


def partition_name(day: date) -> str:
    return f"audit_calls_{day:%Y%m%d}"


def partitions(connection: sa.Connection) -> set[str]:
    """Names of the partitions that are attached."""
    found = connection.execute(
        sa.text(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = to_regclass('warden.audit_calls')"
        )
    )
    return set(found.scalars())


def ensure_partitions(connection: sa.Connection, days: Iterable[date]) -> None:
    """Make what is missing, one a UTC day. Attaching (not CREATE … PARTITION OF) leaves readers and writers alone."""
    wanted = sorted(set(days))
    have = partitions(connection)
    if all(partition_name(day) in have for day in wanted):
        return
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtextextended('warden.partitions', 0))"))
    have = partitions(connection)
    for day in wanted:
        name = partition_name(day)
        if name in have:
            continue
        start, end = f"{day} 00:00:00+00", f"{day + timedelta(days=1)} 00:00:00+00"
        connection.exec_driver_sql(
            f"CREATE TABLE warden.{name} (LIKE warden.audit_calls"
            " INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)"
        )
        connection.exec_driver_sql(
            f"ALTER TABLE warden.audit_calls ATTACH PARTITION warden.{name} FOR VALUES FROM ('{start}') TO ('{end}')"
        )


def days_ahead(today: date) -> list[date]:
    return [today + timedelta(days=n) for n in range(AHEAD_DAYS)]


# --- shipping -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where one journal stands: read again from ``needed``; all that ended at or before ``done`` is stored."""

    needed: int
    done: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction stores: rows in sequence order, and the cursor before and after."""

    sidecar: str
    journal: str
    before: Cursor
    after: Cursor
    rows: Sequence[CallRow | EventRow]
    bundles: Sequence[tuple[str, bytes, datetime]] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """``next_position`` of the sidecar's log; the rows the database would not take, with its words."""

    next_position: int
    rejected: list[tuple[CallRow | EventRow, str]] = field(default_factory=list)


NO_CURSOR: Final = Cursor(0, -1)


class FencedError(Exception):
    """Another shipper moved this journal's cursor: read it again and start over from there."""


def cursor_of(connection: sa.Connection, journal: str) -> Cursor | None:
    row = connection.execute(
        sa.select(journal_cursors.c.needed, journal_cursors.c.done).where(journal_cursors.c.journal == journal)
    ).one_or_none()
    return None if row is None else Cursor(row.needed, row.done)


Substitute = Callable[[CallRow | EventRow, str], EventRow]


def commit(connection: sa.Connection, batch: Batch, substitute: Substitute) -> Committed:
    """Store a batch, once, inside the caller's transaction.

    A row the database refuses is handed to ``substitute``, which keeps it elsewhere and gives the event that takes its
    position. Raises FencedError where the cursor is neither at ``before`` nor already at ``after``.
    """
    start, already = _claim(connection, batch)
    if already:
        return Committed(start)
    ensure_partitions(connection, {row.started.date() for row in batch.rows if isinstance(row, CallRow)})
    try:
        with connection.begin_nested():
            end, rejected = _store(connection, start, batch.rows, substitute, replay=False)
    except pg.UniqueViolation:
        # Some is stored already: a database was restored, or a cursor lost. The rest takes the positions.
        end, rejected = _store(connection, start, _unknown(connection, batch), substitute, replay=True)
    for digest, content, at in batch.bundles:
        connection.execute(
            pg_insert(bundles)
            .values(digest=digest, content=content, first_loaded_at=at, sidecar=batch.sidecar)
            .on_conflict_do_nothing()
        )
    _advance(connection, batch, end)
    return Committed(end, rejected)


def _store(
    connection: sa.Connection,
    start: int,
    rows: Sequence[CallRow | EventRow],
    substitute: Substitute,
    *,
    replay: bool,
) -> tuple[int, list[tuple[CallRow | EventRow, str]]]:
    """Number the rows from ``start`` and insert them: (the position after the last, what was refused)."""
    numbered = list(enumerate(rows, start))
    refused = _insert(connection, _CALLS, [(p, r) for p, r in numbered if isinstance(r, CallRow)], replay=replay)
    events: list[_Numbered] = [(p, r) for p, r in numbered if isinstance(r, EventRow)]
    events += [(position, substitute(row, words)) for position, row, words in refused]
    lost = _insert(connection, _EVENTS, events, replay=replay)
    again = _insert(connection, _EVENTS, [(p, substitute(row, words)) for p, row, words in lost], replay=replay)
    if again:
        raise MismatchError(f"the database takes no event: {again[0][2]}")
    return start + len(numbered), [(row, words) for _, row, words in refused + lost]


def _claim(connection: sa.Connection, batch: Batch) -> tuple[int, bool]:
    """Lock this log, so that it has one sequencer at a time: (next position, whether the batch is stored already)."""
    connection.execute(pg_insert(audit_logs).values(sidecar=batch.sidecar, next_position=0).on_conflict_do_nothing())
    start: int = connection.execute(
        sa.select(audit_logs.c.next_position).where(audit_logs.c.sidecar == batch.sidecar).with_for_update()
    ).scalar_one()
    current = cursor_of(connection, batch.journal) or NO_CURSOR
    # The answer to an earlier COMMIT may have been lost on the way.
    if current == batch.after and current != batch.before:
        return start, True
    if current != batch.before:
        raise FencedError(f"cursor of journal {batch.journal} is at {current}, not {batch.before}")
    return start, False


def _advance(connection: sa.Connection, batch: Batch, next_position: int) -> None:
    place = {"needed": batch.after.needed, "done": batch.after.done, "updated_at": sa.func.now()}
    connection.execute(
        pg_insert(journal_cursors)
        .values(journal=batch.journal, sidecar=batch.sidecar, **place)
        .on_conflict_do_update(index_elements=["journal"], set_=place)
    )
    connection.execute(
        sa.update(audit_logs).where(audit_logs.c.sidecar == batch.sidecar).values(next_position=next_position)
    )


def substitute_id(journal: str, sequence: int | None) -> str:
    """The id of the event that stands for a row which could not be stored."""
    return f"{journal}:{sequence}:record_unstorable"


def _unknown(connection: sa.Connection, batch: Batch) -> list[CallRow | EventRow]:
    """The rows of ``batch`` that are not stored yet, neither themselves nor by an event in their stead."""
    calls = [row for row in batch.rows if isinstance(row, CallRow)]
    found = connection.exec_driver_sql(
        "SELECT c.call_id FROM unnest(%s::timestamptz[], %s::text[]) AS n(started_at, call_id)"
        " JOIN warden.audit_calls c USING (started_at, call_id)",
        ([row.started for row in calls], [row.call_id for row in calls]),
    )
    stored = set(found.scalars())
    ids = [substitute_id(batch.journal, row.sequence) for row in batch.rows]
    ids += [row.values[0] for row in batch.rows if isinstance(row, EventRow)]
    noted = set(connection.execute(sa.select(audit_events.c.id).where(audit_events.c.id.in_(ids))).scalars())
    return [
        row
        for row in batch.rows
        if substitute_id(batch.journal, row.sequence) not in noted
        and (row.call_id not in stored if isinstance(row, CallRow) else row.values[0] not in noted)
    ]


_Numbered = tuple[int, CallRow | EventRow]


class _Copy:
    """Binary COPY into one table: the fastest way in (facts/audit.md), and psycopg writes its rows in C."""

    _TYPES: Final = {sa.Text: "text", sa.BigInteger: "int8", sa.Integer: "int4", sa.SmallInteger: "int2"}
    _MORE: Final = {sa.Boolean: "bool", sa.DateTime: "timestamptz", BYTEA: "bytea", JSONB: "bytea"}  # rows._jsonb

    def __init__(self, table: sa.Table, columns: tuple[str, ...]) -> None:
        names = (*columns, "position")
        known = {**self._TYPES, **self._MORE}
        self._types = [known[type(table.c[name].type)] for name in names]
        self._statement = f"COPY {table.fullname} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)"

    def write(self, connection: sa.Connection, rows: Sequence[_Numbered]) -> None:
        """Raises the driver's own errors."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with driver.cursor() as cursor, cursor.copy(self._statement.encode()) as copy:
            copy.set_types(self._types)
            for position, row in rows:
                copy.write_row((*row.values, position))


_CALLS: Final = _Copy(audit_calls, CALL_COLUMNS)
_EVENTS: Final = _Copy(audit_events, EVENT_COLUMNS)


def _insert(
    connection: sa.Connection, copy: _Copy, rows: list[_Numbered], *, replay: bool
) -> list[tuple[int, CallRow | EventRow, str]]:
    """Insert all that can be; what cannot is found by halving, so neighbours never suffer. At most 2n statements.

    A duplicate is raised, but in a ``replay``, where what is stored was left out, it is a fault of the row.
    """
    if not rows:
        return []
    try:
        with connection.begin_nested():
            copy.write(connection, rows)
    except (psycopg.Error, UnicodeError, OverflowError) as fault:
        duplicate = isinstance(fault, pg.UniqueViolation)
        if not is_data_fault(fault) or (duplicate and not replay):
            raise
        if len(rows) == 1:
            return [(rows[0][0], rows[0][1], str(fault))]
        middle = len(rows) // 2
        left = _insert(connection, copy, rows[:middle], replay=replay)
        return left + _insert(connection, copy, rows[middle:], replay=replay)
    return []


def record_event(connection: sa.Connection, row: EventRow) -> None:
    """An officer's act, in the transaction of what was done."""
    values = dict(zip(EVENT_COLUMNS, row.values, strict=True))
    connection.execute(sa.insert(audit_events).values(values | {"detail": json.loads(values["detail"][1:])}))

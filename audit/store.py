"""The audit database: how it is reached, whose it is, its partitions, and the records of what officers do."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from psycopg import errors as pg

from audit.rows import EVENT_COLUMNS, EventRow
from audit.tables import audit_events, database_facts

__all__ = [
    "MismatchError",
    "WrongJurisdictionError",
    "attach_partition",
    "check_jurisdiction",
    "connect",
    "ensure_partitions",
    "is_data_fault",
    "login_of",
    "partitions",
    "plain_connection",
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

    def open_connection() -> psycopg.Connection[Any]:
        return plain_connection(dsn, application=application)

    return sa.create_engine(
        "postgresql+psycopg://", creator=open_connection, pool_size=pool, max_overflow=0, pool_timeout=CONNECT_SECONDS
    )


def plain_connection(dsn: str, *, application: str) -> psycopg.Connection[Any]:
    """One connection, at once, with a deadline. Raises psycopg's errors."""
    plain = dsn.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        psycopg.conninfo.conninfo_to_dict(plain)
    except psycopg.ProgrammingError:
        # The parser's own words quote the string, and the password in it.
        raise psycopg.OperationalError("the configured DSN is no Postgres connection string") from None
    return psycopg.connect(
        plain,
        connect_timeout=CONNECT_SECONDS,
        application_name=application,
        client_encoding="UTF8",  # as rows are packed (audit.packing), whatever the server keeps texts in
        tcp_user_timeout=STATEMENT_MS,  # a peer that is gone without a word
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        prepare_threshold=None,  # no statement outlives its transaction, so a pooler may stand between
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


PARTITIONED: Final = ("audit_calls", "audit_terms")  # by day, alike


def partition_name(day: date, table: str = "audit_calls") -> str:
    return f"{table}_{day:%Y%m%d}"


def partitions(connection: sa.Connection, table: str = "audit_calls") -> set[str]:
    """Names of the partitions that are attached."""
    found = connection.execute(
        sa.text(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = to_regclass(:parent)"
        ),
        {"parent": f"warden.{table}"},
    )
    return set(found.scalars())


def ensure_partitions(connection: sa.Connection, days: Iterable[date]) -> None:
    """Make what is missing, one a UTC day, as the tables' owner does it (migration 0011)."""
    wanted = sorted(set(days))
    if not _missing(connection, wanted):
        return
    for table, day in _missing(connection, wanted):
        connection.execute(sa.text("SELECT warden.make_partition(:table, :day)"), {"table": table, "day": day})


def _missing(connection: sa.Connection, days: Sequence[date]) -> list[tuple[str, date]]:
    have = {table: partitions(connection, table) for table in PARTITIONED}
    return [(table, day) for day in days for table in PARTITIONED if partition_name(day, table) not in have[table]]


def attach_partition(connection: sa.Connection, day: date, table: str = "audit_calls") -> None:
    """Make the table that is like one that day's partition."""
    start, end = f"{day} 00:00:00+00", f"{day + timedelta(days=1)} 00:00:00+00"
    name = partition_name(day, table)
    connection.exec_driver_sql(
        f"ALTER TABLE warden.{table} ATTACH PARTITION warden.{name} FOR VALUES FROM ('{start}') TO ('{end}')"
    )


def days_ahead(today: date) -> list[date]:
    return [today + timedelta(days=n) for n in range(AHEAD_DAYS)]


def record_event(connection: sa.Connection, row: EventRow) -> None:
    """An officer's act, in the transaction of what was done; ``login`` says whom the database took them for.

    Of an enrolled login the database takes no other name, and no act that it is not for (migration 0016).
    """
    values = dict(zip(EVENT_COLUMNS, row.values, strict=True))
    detail = {**json.loads(values["detail"]), "login": login_of(connection)}
    connection.execute(sa.insert(audit_events).values(values | {"detail": detail}))


def login_of(connection: sa.Connection) -> str:
    """Whom the database let in, whatever role was taken on since."""
    return str(connection.scalar(sa.text("SELECT session_user::text")))

"""Brings the audit database to this release's schema: one at a time, with deadlines, from the installed package."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit import roles, store
from audit.tables import SCHEMA, database_facts

__all__ = ["BusyError", "Status", "alembic_config", "status", "upgrade"]

LOCK_WAIT: Final = 60.0  # seconds to wait for another upgrade to end
LOCK_POLL: Final = 0.2
LOCK_MS: Final = 5_000
STATEMENT_MS: Final = 300_000


class BusyError(Exception):
    """Another process is upgrading this database and has not ended in time."""


@dataclass(frozen=True, slots=True)
class Status:
    """``revision`` is None for a database that was never prepared; ``partition_days`` are made from today on."""

    revision: str | None
    head: str
    jurisdiction: str | None
    partition_days: int
    newer: bool = False  # of a revision that this release does not know

    @property
    def current(self) -> bool:
        return self.revision == self.head


def alembic_config(connection: sa.Connection | None = None) -> Config:
    """Built in code, so that an installed wheel needs no alembic.ini. ``migrations`` is found, never imported."""
    spec = importlib.util.find_spec("migrations")
    assert spec is not None
    assert spec.submodule_search_locations
    config = Config()
    config.set_main_option("script_location", next(iter(spec.submodule_search_locations)).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(
    engine: sa.Engine, *, jurisdiction: str, today: date, wait: Callable[[float], None] = time.sleep
) -> tuple[Status, Status]:
    """Migrate to the head, write the database's jurisdiction and make partitions ahead: (status before, status after).

    Raises ``BusyError``, ``store.WrongJurisdictionError`` (the database belongs to another) and SQLAlchemy's errors;
    ``store.MismatchError`` where the database is of a later release.
    """
    before = status(engine, today=today)
    if before.newer:
        raise store.MismatchError(f"the database is at revision {before.revision}, which this release does not know")
    if before.jurisdiction not in (None, jurisdiction):
        raise store.WrongJurisdictionError(
            f"the database belongs to jurisdiction {before.jurisdiction!r}, the configuration says {jurisdiction!r}"
        )
    with engine.connect() as connection, _alone(connection, wait):
        connection.exec_driver_sql(f"SET lock_timeout = {LOCK_MS}")
        connection.exec_driver_sql(f"SET statement_timeout = {STATEMENT_MS}")
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        connection.commit()
        command.upgrade(alembic_config(connection), "head")
        connection.commit()
        fact = pg_insert(database_facts).values(key="jurisdiction", value=jurisdiction)
        connection.execute(fact.on_conflict_do_nothing())
        store.ensure_partitions(connection, store.days_ahead(today))
        roles.grant_all(connection)
        store.check_jurisdiction(connection, jurisdiction)
        connection.commit()
    return before, status(engine, today=today)


def status(engine: sa.Engine, *, today: date) -> Status:
    """What this database is, without changing it."""
    scripts = ScriptDirectory.from_config(alembic_config())
    head = scripts.get_current_head()
    assert head is not None
    known = {script.revision for script in scripts.walk_revisions()}
    with store.transaction(engine) as connection:
        context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
        revision = context.get_current_revision()
        if revision is None:
            return Status(None, head, None, 0)
        facts = sa.select(database_facts.c.value).where(database_facts.c.key == "jurisdiction")
        have = store.partitions(connection)
        ahead = [day for day in store.days_ahead(today) if store.partition_name(day) in have]
        jurisdiction = connection.execute(facts).scalar_one_or_none()
        return Status(revision, head, jurisdiction, len(ahead), newer=revision not in known)


@contextmanager
def _alone(connection: sa.Connection, wait: Callable[[float], None]) -> Iterator[None]:
    """Hold the advisory lock by polling: a waiting lock request would hold a snapshot and stop index builds."""
    key = {"name": "warden.upgrade"}
    for _ in range(int(LOCK_WAIT / LOCK_POLL)):
        got = connection.execute(sa.text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), key).scalar_one()
        connection.commit()
        if got:
            break
        wait(LOCK_POLL)
    else:
        raise BusyError(f"another upgrade of this database has been running for {LOCK_WAIT:.0f} s")
    try:
        yield
    finally:
        connection.rollback()
        # Session settings and the lock end with the connection; the pool must not hand it on.
        connection.invalidate()

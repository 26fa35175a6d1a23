"""Ends what was kept long enough: keys at once, whole days after a signed record of what went; holds come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from audit import erasing, store, upkeep
from audit.erasing import Officer
from audit.evidence import covered
from audit.fleet import FLEET
from audit.opening import Opener
from audit.rows import officer_row
from audit.storing import lock_keys
from audit.tables import audit_calls, audit_checkpoints, audit_events, data_keys, fleet_entries

__all__ = ["DROPPED", "Retained", "retain"]

DROPPED: Final = "partition_dropped"
RANGES: Final = 10_000  # of positions that one record of a drop may list; a day with more stays
_STATEMENT_MS: Final = 300_000


@dataclass(slots=True)
class Retained:
    """What one run did; its shape is what the command prints."""

    keys: int = 0  # destroyed because their time was over
    erasures_done: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)  # days whose drop is on record now, and that go in a later run
    dropped: list[str] = field(default_factory=list)  # days whose partition is gone
    held: list[str] = field(default_factory=list)  # tenants of whom a hold kept something

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def retain(engine: sa.Engine, opener: Opener, officer: Officer, *, copies: timedelta) -> Retained:
    """One run; each step is its own transaction, and one that broke off is done again by the next run.

    ``copies``: how long copies outside the database live; a tenant's old master key is destroyed after that.
    Raises KeyFaultError, SQLAlchemy's errors, and MismatchError for a login that may not drop days.
    """
    done = Retained()
    with _transaction(engine) as connection:
        _as_owner(connection)
    with _transaction(engine) as connection:
        done.erasures_done = [each.id for each in erasing.finish(connection, opener.provider, officer)]
    with _transaction(engine) as connection:
        _retire(connection, opener, officer, copies)
    for tenant in _expired_tenants(engine, officer.at.date()):
        with _transaction(engine) as connection:
            _end_keys(connection, opener, officer, tenant, done)
    _drop_recorded(engine, done)
    with _transaction(engine) as connection:
        _record_drops(connection, opener, officer, done)
        upkeep.note_retained(connection, officer.at)
    return done


def _as_owner(connection: sa.Connection) -> None:
    """Half a run would look like a whole one: it is refused before anything is done."""
    query = "SELECT pg_has_role(relowner, 'MEMBER') FROM pg_class WHERE oid = to_regclass('warden.audit_calls')"
    if not connection.scalar(sa.text(query)):
        user = connection.scalar(sa.text("SELECT current_user"))
        raise store.MismatchError(f"{user} does not own the audit tables; only their owner may drop days")


def _transaction(engine: sa.Engine) -> Any:
    return store.transaction(engine, statement_ms=_STATEMENT_MS, deadline_s=3600.0)


# --- keys ---------------------------------------------------------------------------------------------------------


def _retire(connection: sa.Connection, opener: Opener, officer: Officer, copies: timedelta) -> None:
    """Old master keys that only copies older than ``copies`` need."""
    c = data_keys.c
    last = sa.select(c.tenant, sa.func.max(c.destroyed_at)).group_by(c.tenant)
    for tenant, at in connection.execute(last.where(c.destroyed_at.is_not(None))).all():
        if at + copies <= officer.at and len(opener.provider.versions(tenant)) > 1:
            erasing.retire(connection, opener.provider, tenant)


def _over(today: date) -> sa.ColumnElement[bool]:
    c = data_keys.c
    return sa.and_(c.wrapped.is_not(None), c.days.is_not(None), c.day + c.days < today)


def _expired_tenants(engine: sa.Engine, today: date) -> list[str]:
    with _transaction(engine) as connection:
        return list(connection.scalars(sa.select(data_keys.c.tenant).where(_over(today)).distinct()))


def _end_keys(connection: sa.Connection, opener: Opener, officer: Officer, tenant: str, done: Retained) -> None:
    """Destroy the keys of one tenant whose time is over, but those that a hold covers."""
    lock_keys(connection, [tenant], alone=True)
    found = set(
        connection.scalars(sa.select(data_keys.c.id).where(data_keys.c.tenant == tenant, _over(officer.at.date())))
    )
    kept: set[str] = set()
    for hold in erasing.holds(connection, opener.provider, tenant=tenant):
        kept |= found if hold.subject is None else set(opener.keys_of(connection, tenant, hold.subject))
    if kept & found:
        done.held.append(tenant)
    if not found - kept:
        return
    event = next(officer.event_ids)
    erasing.destroy_keys(connection, opener.provider, tenant=tenant, ids=found - kept, at=officer.at, by=event)
    told = {"tenant": tenant, "keys": len(found - kept), "held": len(kept & found)}
    store.record_event(connection, officer_row(event, officer.at, "retention", officer.actor, officer.reason, told))
    done.keys += len(found - kept)


# --- partitions ---------------------------------------------------------------------------------------------------


def _record_drops(connection: sa.Connection, opener: Opener, officer: Officer, done: Retained) -> None:
    """Put on record which days go, with the positions of their records: the log must verify without them."""
    held = {hold.tenant for hold in erasing.holds(connection, opener.provider)}
    known = _recorded(connection, signed=False)
    for day in _days(connection):
        if day >= officer.at.date() - timedelta(days=1) or not _is_over(connection, day, officer.at):
            continue
        tenants = set(connection.scalars(sa.select(audit_calls.c.tenant).where(_on(day)).distinct()))
        if tenants & held:
            done.held += sorted(tenants & held)
            continue
        logs, rows = _positions(connection, sa.select(audit_calls.c.log, audit_calls.c.position).where(_on(day)))
        told = {"day": str(day), "rows": rows, "logs": logs}
        if (day in known and _covers(known[day], logs)) or sum(map(len, logs.values())) > RANGES:
            continue
        row = officer_row(next(officer.event_ids), officer.at, DROPPED, officer.actor, officer.reason, told)
        store.record_event(connection, row)
        done.recorded.append(str(day))


_Ranges = dict[str, list[list[int]]]


def _recorded(connection: sa.Connection, *, signed: bool) -> dict[date, _Ranges]:
    """By day, the positions whose drop is on record; ``signed``: under a head of the fleet's log."""
    c, f = audit_events.c, fleet_entries.c
    query = sa.select(c.detail).where(c.kind == DROPPED)
    if signed:
        heads = sa.select(sa.func.max(audit_checkpoints.c.size)).where(audit_checkpoints.c.log == FLEET)
        query = query.join(fleet_entries, f.event == c.id).where(f.position < (connection.scalar(heads) or 0))
    found: dict[date, _Ranges] = {}
    for detail in connection.scalars(query):
        of_day = found.setdefault(date.fromisoformat(detail["day"]), {})
        for log, ranges in detail["logs"].items():
            of_day.setdefault(log, []).extend(ranges)
    return found


def _covers(recorded: _Ranges, logs: _Ranges) -> bool:
    """Whether every position of ``logs`` is on record."""
    return all(
        covered(first, last, [(begin, end) for begin, end in recorded.get(log, [])])
        for log, ranges in logs.items()
        for first, last in ranges
    )


def _drop_recorded(engine: sa.Engine, done: Retained) -> None:
    """Days whose drop is on record under a signed head of the fleet's log."""
    with _transaction(engine) as connection:
        recorded = _recorded(connection, signed=True)
        there = sorted(recorded.keys() & set(_days(connection)))
    for day in there:
        if _drop(engine, day, recorded[day]):
            done.dropped.append(str(day))


def _drop(engine: sa.Engine, day: date, recorded: _Ranges) -> bool:
    """Whether it went: without holding up readers or writers of other days, and only what is on record.

    A record that came late (a sidecar was away) is looked for once nothing more can come: then the day stays, and is
    recorded again.
    """
    name = store.partition_name(day)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"SET lock_timeout = {store.LOCK_MS}")
        try:
            connection.exec_driver_sql(f"ALTER TABLE warden.audit_calls DETACH PARTITION warden.{name} CONCURRENTLY")
        except sa.exc.DBAPIError as fault:
            if not isinstance(fault.orig, psycopg.errors.ObjectNotInPrerequisiteState):
                raise
            # An earlier run broke off in the middle of it.
            connection.exec_driver_sql(f"ALTER TABLE warden.audit_calls DETACH PARTITION warden.{name} FINALIZE")
        logs, _ = _positions(connection, sa.text(f"SELECT log, position FROM warden.{name}"))  # noqa: S608 — our name
        gone = _covers(recorded, logs)
        if gone:
            connection.exec_driver_sql(f"DROP TABLE warden.{name}")
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS warden.{store.partition_name(day, 'audit_terms')}")
        else:
            store.attach_partition(connection, day)
        connection.invalidate()  # its settings must not be handed on
    return gone


def _days(connection: sa.Connection) -> Iterator[date]:
    for name in sorted(store.partitions(connection)):
        yield datetime.strptime(name[-8:], "%Y%m%d").date()  # noqa: DTZ007 — a UTC day


def _on(day: date) -> sa.ColumnElement[bool]:
    begins = sa.text(f"'{day} 00:00:00+00'::timestamptz")
    ends = sa.text(f"'{day + timedelta(days=1)} 00:00:00+00'::timestamptz")
    return sa.and_(audit_calls.c.started_at >= begins, audit_calls.c.started_at < ends)


def _is_over(connection: sa.Connection, day: date, at: datetime) -> bool:
    """Whether every record of that day has been kept as long as its class says. A day without records is over."""
    c = audit_calls.c
    age = (at.date() - day).days
    stays = sa.select(c.call_id).where(_on(day), sa.or_(c.retention_days.is_(None), c.retention_days >= age)).limit(1)
    return connection.scalar(stays) is None


def _positions(connection: sa.Connection, query: sa.Executable) -> tuple[_Ranges, int]:
    """By log, the ranges [first, last] of the positions that ``query`` gives; and how many rows there are."""
    logs: _Ranges = {}
    found = sorted((log, position) for log, position in connection.execute(query))
    for log, position in found:
        ranges = logs.setdefault(log, [])
        if ranges and ranges[-1][1] == position - 1:
            ranges[-1][1] = position
        else:
            ranges.append([position, position])
    return logs, len(found)

"""Ends what was kept long enough: keys at once, whole days after a signed record of what went; holds come first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from audit import erasing, store, upkeep
from audit.drops import DROPPED, KEPT, RETENTION, believed, signed_detail
from audit.erasing import Officer
from audit.evidence import Head, covered, read_head
from audit.fleet import FLEET
from audit.holds import held_tenants
from audit.keys import KeyFaultError, KeyMissingError
from audit.opening import Opener
from audit.rows import officer_row
from audit.storing import lock_keys
from audit.tables import audit_calls, audit_checkpoints, audit_events, data_keys, fleet_entries
from audit.tlog import Signer, Verifier
from audit.undone import place_again, redo

__all__ = ["BusyError", "RestoredError", "Retained", "retain"]

RANGES: Final = 10_000  # of positions that one record of a drop may list; a day with more stays
AWAY: Final = 10  # tenants in a row whose keys could not be reached; after them no other's are asked for
TOLD: Final = 20  # faults of keys that are told in full; the rest are counted
_STATEMENT_MS: Final = 300_000
_Ranges = dict[str, list[list[int]]]  # by log, [first, last] of its positions
SignerOf = Callable[[str], Signer]


class BusyError(Exception):
    """Another run is at work."""


class RestoredError(Exception):
    """The database lacks acts that were signed: of holds and erasures in it nobody can say yet what stands."""


@dataclass(slots=True)
class Retained:
    """What one run did; its shape is what the command prints."""

    keys: int = 0  # destroyed because their time was over
    erasures_done: list[str] = field(default_factory=list)
    erasures_again: list[str] = field(default_factory=list)  # that a restored database had forgotten
    recorded: list[str] = field(default_factory=list)  # days whose drop is on record now, and that go in a later run
    dropped: list[str] = field(default_factory=list)  # days whose partition is gone
    held: list[str] = field(default_factory=list)  # tenants of whom a hold kept something

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Run:
    """What the steps of one run need. ``signer_of``: the jurisdiction's key of a log's name."""

    opener: Opener
    officer: Officer
    signer_of: SignerOf
    done: Retained = field(default_factory=Retained)


def retain(
    engine: sa.Engine, opener: Opener, officer: Officer, *, copies: timedelta, signer_of: Callable[[str], Signer],
    anchor: Sequence[str] = (),
) -> Retained:  # fmt: skip
    """One run; each step is its own transaction, and one that broke off is done again by the next run.

    ``copies``: how long copies outside the database live; a tenant's old master key is destroyed after that.
    ``signer_of``: the key of a log's name (``audit.logbook.log_signer``). ``anchor``: heads of the fleet's log that are
    kept outside. Keys that are lost or cannot be reached hold up no other tenant's and no day: all of it is told at the
    end, as KeyMissingError or KeyFaultError, and then there is no word that it ran. Raises SQLAlchemy's errors,
    BusyError where another run is at work, RestoredError where the database has less than the anchor says, and
    MismatchError for a login that may not drop days.
    """
    run = _Run(opener, officer, signer_of)
    with _alone(engine):
        with _transaction(engine) as connection:
            _as_owner(connection)
            _as_anchored(connection, signer_of(FLEET).verifier, anchor)
        with _transaction(engine) as connection:
            signed = _signed_size(connection, signer_of(FLEET).verifier)
            place_again(connection, signed)
        faults = _with_keys(engine, run, copies, signed)
        _drop_recorded(engine, run)
        with _transaction(engine) as connection:
            _record_drops(connection, run)
        if faults:
            raise _joined(faults)
        with _transaction(engine) as connection:
            upkeep.note_retained(connection, officer.at)
    return run.done


@contextmanager
def _alone(engine: sa.Engine) -> Iterator[None]:
    """Two runs at once would put days on record twice, and one would drop what the other is looking at."""
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        if not connection.scalar(sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended('warden.retain', 0))")):
            raise BusyError("another run of `warden audit retain` is at work")
        yield


def _as_owner(connection: sa.Connection) -> None:
    """Half a run would look like a whole one: it is refused before anything is done."""
    query = "SELECT pg_has_role(relowner, 'MEMBER') FROM pg_class WHERE oid = to_regclass('warden.audit_calls')"
    if not connection.scalar(sa.text(query)):
        user = connection.scalar(sa.text("SELECT current_user"))
        raise store.MismatchError(f"{user} does not own the audit tables; only their owner may drop days")


def _as_anchored(connection: sa.Connection, verifier: Verifier, anchor: Sequence[str]) -> None:
    """A database restored from before has forgotten holds: what they keep must not go until the acts are back."""
    heads = [read_head(FLEET, None, note, verifier) for note in anchor]
    signed = max((head.size for head in heads if isinstance(head, Head)), default=0)
    there = connection.scalar(sa.select(sa.func.max(fleet_entries.c.position) + 1)) or 0
    if there < signed:
        raise RestoredError(
            f"the database has {there} of the fleet's {signed} entries, as one restored from before: let a sidecar ship"
            " to it first, which gives back what it lacks"
        )


def _transaction(engine: sa.Engine) -> Any:
    return store.transaction(engine, statement_ms=_STATEMENT_MS, deadline_s=3600.0)


# --- keys ---------------------------------------------------------------------------------------------------------


def _with_keys(engine: sa.Engine, run: _Run, copies: timedelta, signed: int) -> list[KeyFaultError]:
    """What needs the master keys, each by itself; what their keeper did not do is returned. Days need none of them."""

    def again(connection: sa.Connection) -> None:
        run.done.erasures_again = redo(connection, run.opener, run.officer, copies, signed)

    def close(connection: sa.Connection) -> None:
        closed = erasing.finish(connection, run.opener.provider, run.officer)
        run.done.erasures_done = [each.id for each in closed]

    faults: list[KeyFaultError] = []
    for step in (again, close, lambda connection: _retire(connection, run.opener, run.officer, copies)):
        try:
            with _transaction(engine) as connection:
                step(connection)
        except KeyFaultError as fault:
            faults.append(fault)
            break  # nothing closes before what a restored database forgot is done again
    away = 0  # in a row: a keeper that answers nobody is not asked for thousands of tenants, each for seconds
    for tenant in _expired_tenants(engine, run.officer.at.date()):
        try:
            with _transaction(engine) as connection:
                _end_keys(connection, run.opener, run.officer, tenant, run.done)
        except KeyFaultError as fault:  # of that tenant: the others' keys end as they must
            faults.append(fault)
            away = 0 if isinstance(fault, KeyMissingError) else away + 1
            if away == AWAY:
                break
        else:
            away = 0
    return faults


def _joined(faults: list[KeyFaultError]) -> KeyFaultError:
    """All of them as one; KeyMissingError where keys are missing and nothing else is amiss."""
    told = list(dict.fromkeys(map(str, faults)))
    words = "; ".join(told[:TOLD]) + (f"; and {len(told) - TOLD} more" if len(told) > TOLD else "")
    return (KeyMissingError if all(isinstance(each, KeyMissingError) for each in faults) else KeyFaultError)(words)


def _retire(connection: sa.Connection, opener: Opener, officer: Officer, copies: timedelta) -> None:
    """Old master keys that only copies older than ``copies`` need."""
    for tenant, below in sorted(erasing.outlived(connection, copies, officer.at).items()):
        erasing.retire(connection, opener.provider, tenant, below)


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
    new = erasing.destroy_keys(connection, opener.provider, tenant=tenant, ids=found - kept, at=officer.at, by=event)
    told = {"tenant": tenant, "keys": len(found - kept), "held": len(kept & found), "renewed": new}
    store.record_event(connection, officer_row(event, officer.at, "retention", officer.actor, officer.reason, told))
    done.keys += len(found - kept)


# --- partitions ---------------------------------------------------------------------------------------------------


def _record_drops(connection: sa.Connection, run: _Run) -> None:
    """Put on record which days go, with the positions of their records: the log must verify without them."""
    held = held_tenants(connection)
    known = _recorded(connection, run.signer_of, signed=False)
    for day in _days(connection):
        if day >= run.officer.at.date() - timedelta(days=1) or not _is_over(connection, day, run.officer.at):
            continue
        tenants = set(connection.scalars(sa.select(audit_calls.c.tenant).where(_on(day)).distinct()))
        if tenants & held:
            run.done.held += sorted(tenants & held)
            continue
        logs, rows = _positions(connection, sa.select(audit_calls.c.log, audit_calls.c.position).where(_on(day)))
        if (day in known and _covers(known[day], logs)) or sum(map(len, logs.values())) > RANGES:
            continue
        _tell(connection, run, DROPPED, {"day": str(day), "rows": rows, "logs": logs})
        run.done.recorded.append(str(day))


def _tell(connection: sa.Connection, run: _Run, kind: str, told: dict[str, Any]) -> None:
    event, officer = next(run.officer.event_ids), run.officer
    detail = signed_detail(run.signer_of(RETENTION), kind, event, told)
    store.record_event(connection, officer_row(event, officer.at, kind, officer.actor, officer.reason, detail))


def _recorded(connection: sa.Connection, signer_of: SignerOf, *, signed: bool) -> dict[date, _Ranges]:
    """By day, the positions whose drop is on record; ``signed``: under a signed head of the fleet's log."""
    c, f = audit_events.c, fleet_entries.c
    query = sa.select(c.id, c.kind, c.detail).where(c.kind.in_([DROPPED, KEPT]), c.log.is_(None))
    query = query.join(fleet_entries, f.event == c.id, isouter=not signed)
    if signed:
        query = query.where(f.position < _signed_size(connection, signer_of(FLEET).verifier))
    found: dict[date, _Ranges] = {}
    verifier = signer_of(RETENTION).verifier
    for event, kind, detail in connection.execute(query.order_by(f.position.nulls_last(), c.at, c.id)):
        if not believed(verifier, kind, event, detail):
            continue  # `audit verify` names it
        day = date.fromisoformat(detail["day"])
        if kind == KEPT:
            found.pop(day, None)
            continue
        of_day = found.setdefault(day, {})
        for log, ranges in detail["logs"].items():
            of_day.setdefault(log, []).extend(ranges)
    return found


def _signed_size(connection: sa.Connection, verifier: Verifier) -> int:
    """How many entries of the fleet's log a head vouches for. Whoever writes the table can add what is no head."""
    c = audit_checkpoints.c
    for size, note in connection.execute(sa.select(c.size, c.note).where(c.log == FLEET).order_by(c.size.desc())):
        if isinstance(read_head(FLEET, size, note, verifier), Head):
            return int(size)
    return 0


def _covers(recorded: _Ranges, logs: _Ranges) -> bool:
    """Whether every position of ``logs`` is on record."""
    return all(
        covered(first, last, [(begin, end) for begin, end in recorded.get(log, [])])
        for log, ranges in logs.items()
        for first, last in ranges
    )


def _drop_recorded(engine: sa.Engine, run: _Run) -> None:
    """Days whose drop is on record under a signed head of the fleet's log, and that may still go."""
    with _transaction(engine) as connection:
        recorded = _recorded(connection, run.signer_of, signed=True)
        attached = recorded.keys() & set(_days(connection))
        loose = recorded.keys() & set(_loose(connection))  # an earlier run broke off after it was detached
    for day in sorted(attached):
        with _transaction(engine) as connection:
            stays = _stays(connection, run, day, recorded[day])
            if stays:
                _keep(connection, run, day, stays)
        if not stays:
            _detach(engine, day)
            loose.add(day)
    for day in sorted(loose):
        with _transaction(engine) as connection:
            _end_day(connection, run, day, recorded[day])


def _stays(connection: sa.Connection, run: _Run, day: date, recorded: _Ranges) -> str:
    """Why that day may not go after all ("": it may), asked of its own table, while no hold can be placed on it."""
    table, p = f"warden.{store.partition_name(day)}", {"age": (run.officer.at.date() - day).days}
    tenants = set(connection.scalars(sa.text(f"SELECT DISTINCT tenant FROM {table}")))  # noqa: S608 — our name
    lock_keys(connection, sorted(tenants))
    held = held_tenants(connection) & tenants
    if held:
        run.done.held += sorted(held)
        return "a hold was placed"
    keep = f"SELECT 1 FROM {table} WHERE retention_days IS NULL OR retention_days >= :age LIMIT 1"  # noqa: S608
    if connection.scalar(sa.text(keep), p) is not None:
        return "a record that is kept longer came late"
    logs, _ = _positions(connection, sa.text(f"SELECT log, position FROM {table}"))  # noqa: S608 — our name
    return "" if _covers(recorded, logs) else "a record came late"


def _keep(connection: sa.Connection, run: _Run, day: date, why: str) -> None:
    """What is on record to go and stays is excused no longer: while a hold is in force its loss must show."""
    _tell(connection, run, KEPT, {"day": str(day), "why": why})


def _detach(engine: sa.Engine, day: date) -> None:
    """Without holding up readers or writers of other days; after it nothing more can come to that day."""
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
        connection.invalidate()  # its settings must not be handed on


def _end_day(connection: sa.Connection, run: _Run, day: date, recorded: _Ranges) -> None:
    """Drop a detached day; or attach it again where it may not go after all. One transaction, under the holds' lock."""
    stays = _stays(connection, run, day, recorded)
    if stays:
        store.attach_partition(connection, day)
        _keep(connection, run, day, stays)
        return
    connection.exec_driver_sql(f"DROP TABLE warden.{store.partition_name(day)}")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS warden.{store.partition_name(day, 'audit_terms')}")
    run.done.dropped.append(str(day))


def _loose(connection: sa.Connection) -> Iterator[date]:
    """Days whose table is there and is no partition."""
    query = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'warden'::regnamespace AND relkind = 'r'"
        " AND NOT relispartition AND relname ~ '^audit_calls_[0-9]{8}$'"
    )
    for name in connection.scalars(sa.text(query)):
        yield _day_of(name)


def _days(connection: sa.Connection) -> Iterator[date]:
    for name in sorted(store.partitions(connection)):
        yield _day_of(name)


def _day_of(name: str) -> date:
    return datetime.strptime(name[-8:], "%Y%m%d").date()  # noqa: DTZ007 — a UTC day


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

"""Legal holds: what neither an erasure nor retention may touch. In force is what was placed on record and not released.

The rows can be lost (a database restored from before, its owner's hand); the acts are in the fleet's log. A hold whose
row is gone, and with it whose it is, holds everybody of its tenant until somebody releases it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from audit.keys import KeyProvider
from audit.rows import officer_row
from audit.store import record_event
from audit.storing import lock_keys, name_of, wrap_name
from audit.tables import audit_events, legal_holds

__all__ = [
    "PLACED", "RELEASED", "HeldError", "Hold", "Officer", "held_tenants", "holds", "place_hold", "record_act",
    "refuse_held", "release_hold",
]  # fmt: skip

PLACED: Final = "hold_placed"
RELEASED: Final = "hold_released"


class HeldError(Exception):
    """A legal hold covers what was to be erased; the message names it."""


@dataclass(frozen=True, slots=True)
class Officer:
    """Who acts, when, why; ``event_ids`` names the records of it."""

    actor: str
    at: datetime
    event_ids: Iterator[str]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """``subject`` None: everybody of the tenant."""

    id: str
    tenant: str
    subject: str | None
    reason: str
    placed_by: str
    placed_at: datetime
    released_at: datetime | None


def place_hold(
    connection: sa.Connection, provider: KeyProvider, officer: Officer, hold_id: str, tenant: str, subject: str | None
) -> None:
    """Nothing of it is erased, by request or by time, until it is released."""
    lock_keys(connection, [tenant], alone=True)
    version, wrapped = (None, None) if subject is None else wrap_name(provider, tenant, hold_id, subject)
    connection.execute(
        sa.insert(legal_holds).values(
            id=hold_id, tenant=tenant, version=version, subject_wrapped=wrapped, reason=officer.reason,
            placed_by=officer.actor, placed_at=officer.at,
        )
    )  # fmt: skip
    told = {"hold": hold_id, "tenant": tenant, "of": "all" if subject is None else "subject"}
    record_act(connection, officer, PLACED, told)


def release_hold(connection: sa.Connection, officer: Officer, hold_id: str) -> bool:
    """Whether there was such a hold in force."""
    c = legal_holds.c
    done = connection.execute(
        sa.update(legal_holds)
        .where(c.id == hold_id, c.released_at.is_(None))
        .values(released_at=officer.at, released_by=officer.actor)
    )
    found = bool(done.rowcount) or hold_id in _on_record(connection)
    if found:
        record_act(connection, officer, RELEASED, {"hold": hold_id})
    return found


def holds(connection: sa.Connection, provider: KeyProvider, *, tenant: str | None = None) -> list[Hold]:
    """Those in force."""
    recorded = {hold_id: hold for hold_id, hold in _on_record(connection).items() if tenant in {None, hold.tenant}}
    c = legal_holds.c
    query = sa.select(legal_holds).where(sa.or_(c.released_at.is_(None), c.id.in_(list(recorded))))
    if tenant is not None:  # a name is opened by its tenant's master key: one that is lost must stop nobody else
        query = query.where(c.tenant == tenant)
    found = [
        Hold(row.id, row.tenant, name_of(provider, row), row.reason, row.placed_by, row.placed_at, None)
        for row in connection.execute(query).all()
    ]
    there = {(hold.id, hold.tenant) for hold in found}  # a row that names another tenant than its act is lost too
    found += [hold for hold in recorded.values() if (hold.id, hold.tenant) not in there]
    return sorted(found, key=lambda hold: (hold.placed_at, hold.id))


def held_tenants(connection: sa.Connection) -> set[str]:
    """Of whom a hold is in force, by its row or by its act; without a key, so that no fault of one hides a hold."""
    recorded, c = _on_record(connection), legal_holds.c
    query = sa.select(c.tenant).where(sa.or_(c.released_at.is_(None), c.id.in_(list(recorded)))).distinct()
    return {hold.tenant for hold in recorded.values()}.union(connection.scalars(query))


def _on_record(connection: sa.Connection) -> dict[str, Hold]:
    """Those that acts of record placed and none released, as far as the acts say."""
    c = audit_events.c
    acts = sa.select(c.kind, c.at, c.actor, c.reason, c.detail).where(c.kind.in_([PLACED, RELEASED]), c.log.is_(None))
    found, released = dict[str, Hold](), set[str]()
    for kind, at, actor, reason, detail in connection.execute(acts):
        if kind == RELEASED:
            released.add(detail["hold"])
            continue
        found[detail["hold"]] = Hold(detail["hold"], detail["tenant"], None, reason, actor, at, None)
    return {hold_id: hold for hold_id, hold in found.items() if hold_id not in released}


def refuse_held(connection: sa.Connection, provider: KeyProvider, tenant: str, subject: str) -> None:
    """Raises HeldError. The caller holds the tenant's lock: nothing is placed until its transaction ends."""
    for hold in holds(connection, provider, tenant=tenant):
        if hold.subject in {None, subject}:
            raise HeldError(f"hold {hold.id} of {hold.placed_at:%Y-%m-%d} ({hold.reason}) stands in the way")


def record_act(connection: sa.Connection, officer: Officer, kind: str, detail: dict[str, Any]) -> None:
    """In the transaction of what was done."""
    row = officer_row(next(officer.event_ids), officer.at, kind, officer.actor, officer.reason, detail)
    record_event(connection, row)

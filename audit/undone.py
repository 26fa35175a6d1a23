"""Does again what a database restored from before has forgotten: erasures, and the holds that stand in their way.

The sidecars give the officers' acts back from their mirror of the fleet's log; what those acts did is done again from
them, where a signed head vouches for them. Of a hold whose row is lost nobody can say whose it was: it holds everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from audit import erasing
from audit.holds import PLACED, RELEASED, Officer, record_act
from audit.opening import Opener
from audit.storing import lock_keys
from audit.tables import audit_events, data_keys, erasures, fleet_entries, legal_holds

__all__ = ["place_again", "redo"]

_OF_ERASURES: Final = ("erasure_requested", "subject_erased", "erasure_done")


@dataclass(frozen=True, slots=True)
class _Act:
    kind: str
    at: datetime
    actor: str
    reason: str
    detail: dict[str, Any]


def redo(connection: sa.Connection, opener: Opener, officer: Officer, copies: timedelta, signed: int) -> list[str]:
    """The erasures that were done again. ``signed``: how many of the fleet's entries a head vouches for."""
    told: dict[str, dict[str, _Act]] = {}
    for act in _acts(connection, _OF_ERASURES, signed):
        told.setdefault(act.detail["erasure"], {})[act.kind] = act
    c = erasures.c
    stand = {row.id: row for row in connection.execute(sa.select(c.id, c.erased_at, c.done_at))}
    again = []
    for erasure_id, acts in told.items():
        erased, row = acts.get("subject_erased"), stand.get(erasure_id)
        alive = [] if erased is None else _alive(connection, erased.detail.get("destroyed", ()))
        same = row is not None and (row.erased_at is None) == (erased is None)
        if same and not alive and (row is None or (row.done_at is None) == ("erasure_done" not in acts)):
            continue
        _stand_again(connection, erasure_id, acts, copies)
        if erased is not None and alive:
            _erase_again(connection, opener, officer, erased, alive)
            again.append(erasure_id)
    return again


def _acts(connection: sa.Connection, kinds: Iterable[str], signed: int) -> Iterator[_Act]:
    c, f = audit_events.c, fleet_entries.c
    query = (
        sa.select(c.kind, c.at, c.actor, c.reason, c.detail)
        .join(fleet_entries, f.event == c.id)
        .where(c.kind.in_(list(kinds)), c.log.is_(None), f.position < signed)
        .order_by(f.position)
    )
    return (_Act(*row) for row in connection.execute(query).all())


def place_again(connection: sa.Connection, signed: int) -> None:
    """The rows of holds that were placed, not released and are not there. It needs no keys."""
    there = set(connection.scalars(sa.select(legal_holds.c.id)))
    placed: dict[str, _Act] = {}
    for act in _acts(connection, (PLACED, RELEASED), signed):
        if act.kind == PLACED:
            placed[act.detail["hold"]] = act
        else:
            placed.pop(act.detail["hold"], None)
    for hold_id, act in placed.items():
        if hold_id not in there:
            values = {"id": hold_id, "tenant": act.detail["tenant"], "reason": act.reason, "placed_by": act.actor}
            connection.execute(sa.insert(legal_holds).values(**values, placed_at=act.at))


def _stand_again(connection: sa.Connection, erasure_id: str, acts: dict[str, _Act], copies: timedelta) -> None:
    """Its row says again what the acts say. Whom it is of is lost: one not carried out yet must be asked for again."""
    asked, erased, done = (acts.get(kind) for kind in _OF_ERASURES)
    first = asked or erased or done
    assert first is not None
    values: dict[str, Any] = {"tenant": first.detail["tenant"]}
    if asked is not None:
        values |= {"reason": asked.reason, "requested_by": asked.actor, "requested_at": asked.at}
        values |= {"requested_login": asked.detail.get("login", "")}
    if erased is not None:
        detail = erased.detail
        values |= {"erased_at": erased.at, "keys": detail["keys"], "records": detail["records"]}
        values |= {"renewed": detail.get("renewed"), "pending_until": erased.at + copies}
        if asked is not None and erased.detail.get("login") != asked.detail.get("login"):
            values |= {"confirmed_by": erased.actor, "confirmed_login": detail.get("login", "")}
    if done is not None:
        values |= {"done_at": done.at, "version": None, "subject_wrapped": None}
    changed = connection.execute(sa.update(erasures).where(erasures.c.id == erasure_id).values(values))
    if not changed.rowcount:
        lost = {"requested_by": first.actor, "requested_at": first.at, **values, "id": erasure_id}
        connection.execute(sa.insert(erasures).values(lost))


def _alive(connection: sa.Connection, ids: Iterable[str]) -> list[Any]:
    c = data_keys.c
    found: list[Any] = []
    for some in erasing.chunks(sorted(ids)):
        living = sa.select(c.id, c.version).where(c.id.in_(some), c.wrapped.is_not(None))
        found += connection.execute(living).all()
    return found


def _erase_again(connection: sa.Connection, opener: Opener, officer: Officer, act: _Act, alive: list[Any]) -> None:
    """Under a new master key where a copy of the database may hold one of these keys under the one of since."""
    tenant, ids = act.detail["tenant"], [key.id for key in alive]
    lock_keys(connection, [tenant], alone=True)
    told: dict[str, Any] = {"erasure": act.detail["erasure"], "tenant": tenant, "keys": len(ids)}
    if any(key.version >= act.detail["renewed"] for key in alive):
        told["renewed"] = erasing.destroy_keys(
            connection, opener.provider, tenant=tenant, ids=ids, at=officer.at, by=act.detail["erasure"]
        )
        again = sa.update(erasures).where(erasures.c.id == act.detail["erasure"], erasures.c.done_at.is_(None))
        connection.execute(again.values(renewed=told["renewed"]))
    else:
        erasing.forget_keys(connection, ids, at=officer.at, by=act.detail["erasure"])
    record_act(connection, officer, "erasure_repeated", told)

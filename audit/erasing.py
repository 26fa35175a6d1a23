"""Erases by destroying keys: of one subject, or of what was kept long enough; holds stand in the way of both.

Destroying a data key in the database says nothing of its copies. So a tenant's master key is renewed: what survives is
wrapped under the new version, the old version is destroyed, and with it every copy of what was wrapped under it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from audit.keys import KeyProvider
from audit.opening import Opener, key_row
from audit.rows import officer_row
from audit.store import record_event
from audit.storing import lock_keys, name_of, wrap_name
from audit.tables import (
    audit_calls,
    audit_terms,
    data_keys,
    erasures,
    journal_cursors,
    legal_holds,
)
from audit.vault import KeyRow, open_subject, unwrap

__all__ = [
    "Erasure", "ErasureError", "HeldError", "Hold", "Officer", "confirm", "destroy_keys", "erasure", "finish", "holds",
    "place_hold", "release_hold", "request", "retire", "unheard",
]  # fmt: skip

WAIT: Final = timedelta(days=30)  # for a sidecar that was not heard of; GDPR 12(3) gives a month
_KEY_COLUMNS: Final = (
    data_keys.c.id, data_keys.c.tenant, data_keys.c.days, data_keys.c.day, data_keys.c.version, data_keys.c.wrapped,
    data_keys.c.subject_sealed, data_keys.c.subject_mac,
)  # fmt: skip


class HeldError(Exception):
    """A legal hold covers what was to be erased; the message names it."""


class ErasureError(Exception):
    """It cannot be done like this; the message says why."""


@dataclass(frozen=True, slots=True)
class Officer:
    """Who acts, when, why; ``event_ids`` names the records of it."""

    actor: str
    at: datetime
    event_ids: Iterator[str]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Erasure:
    """What became of one request; its shape is the certificate."""

    id: str
    tenant: str
    state: str  # requested (a second person must confirm) | pending (copies outside still exist) | done
    requested_at: datetime
    requested_by: str
    confirmed_by: str | None
    erased_at: datetime | None
    keys: int
    records: int
    pending_until: datetime | None
    done_at: datetime | None

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in told.items()}


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


# --- holds --------------------------------------------------------------------------------------------------------


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
    _record(connection, officer, "hold_placed", told)


def release_hold(connection: sa.Connection, officer: Officer, hold_id: str) -> bool:
    """Whether there was such a hold in force."""
    c = legal_holds.c
    done = connection.execute(
        sa.update(legal_holds)
        .where(c.id == hold_id, c.released_at.is_(None))
        .values(released_at=officer.at, released_by=officer.actor)
    )
    if done.rowcount:
        _record(connection, officer, "hold_released", {"hold": hold_id})
    return bool(done.rowcount)


def holds(connection: sa.Connection, provider: KeyProvider, *, tenant: str | None = None) -> list[Hold]:
    """Those in force."""
    query = sa.select(legal_holds).where(legal_holds.c.released_at.is_(None)).order_by(legal_holds.c.placed_at)
    if tenant is not None:
        query = query.where(legal_holds.c.tenant == tenant)
    return [
        Hold(row.id, row.tenant, name_of(provider, row), row.reason, row.placed_by, row.placed_at, row.released_at)
        for row in connection.execute(query)
    ]


# --- one subject --------------------------------------------------------------------------------------------------


def request(
    connection: sa.Connection, opener: Opener, officer: Officer, *, erasure_id: str, tenant: str,
    subject: str, two_people: bool, copies: timedelta,
) -> Erasure:  # fmt: skip
    """Erase a subject, or ask a second person to confirm it. ``copies``: how long copies outside the database live.

    Raises HeldError, ErasureError and KeyFaultError.
    """
    _refuse_held(connection, opener.provider, tenant, subject)
    version, wrapped = wrap_name(opener.provider, tenant, erasure_id, subject)
    connection.execute(
        sa.insert(erasures).values(
            id=erasure_id, tenant=tenant, version=version, subject_wrapped=wrapped, reason=officer.reason,
            requested_by=officer.actor, requested_at=officer.at,
        )
    )  # fmt: skip
    _record(connection, officer, "erasure_requested", {"erasure": erasure_id, "tenant": tenant})
    if not two_people:
        _erase(connection, opener, officer, erasure_id, tenant, subject, copies)
    return erasure(connection, erasure_id)


def confirm(
    connection: sa.Connection, opener: Opener, officer: Officer, *, erasure_id: str, copies: timedelta
) -> Erasure:
    """The second person's word. Raises HeldError, ErasureError and KeyFaultError."""
    row = connection.execute(sa.select(erasures).where(erasures.c.id == erasure_id).with_for_update()).one_or_none()
    if row is None:
        raise ErasureError(f"there is no erasure {erasure_id}")
    if row.erased_at is not None:
        raise ErasureError(f"erasure {erasure_id} was confirmed already")
    if row.requested_by == officer.actor:
        raise ErasureError("who asked for an erasure cannot be the second person")
    subject = name_of(opener.provider, row)
    if subject is None:
        raise ErasureError(f"whom erasure {erasure_id} is of can no longer be read; ask for it again")
    _refuse_held(connection, opener.provider, row.tenant, subject)
    connection.execute(sa.update(erasures).where(erasures.c.id == erasure_id).values(confirmed_by=officer.actor))
    _erase(connection, opener, officer, erasure_id, row.tenant, subject, copies)
    return erasure(connection, erasure_id)


def erasure(connection: sa.Connection, erasure_id: str) -> Erasure:
    """Raises ErasureError where there is none."""
    row = connection.execute(sa.select(erasures).where(erasures.c.id == erasure_id)).one_or_none()
    if row is None:
        raise ErasureError(f"there is no erasure {erasure_id}")
    state = "done" if row.done_at else "pending" if row.erased_at else "requested"
    return Erasure(
        row.id, row.tenant, state, row.requested_at, row.requested_by, row.confirmed_by, row.erased_at, row.keys,
        row.records, row.pending_until, row.done_at,
    )  # fmt: skip


def _erase(
    connection: sa.Connection, opener: Opener, officer: Officer, erasure_id: str, tenant: str,
    subject: str, copies: timedelta,
) -> None:  # fmt: skip
    lock_keys(connection, [tenant], alone=True)
    ids = opener.keys_of(connection, tenant, subject)
    records = connection.scalar(sa.select(sa.func.count()).where(audit_calls.c.data_key.in_(ids))) or 0
    new = destroy_keys(connection, opener.provider, tenant=tenant, ids=ids, at=officer.at, by=erasure_id)
    done = {"erased_at": officer.at, "keys": len(ids), "records": records, "pending_until": officer.at + copies}
    connection.execute(sa.update(erasures).where(erasures.c.id == erasure_id).values(renewed=new, **done))
    told = {"erasure": erasure_id, "tenant": tenant, "keys": len(ids), "records": records}
    _record(connection, officer, "subject_erased", told)


def finish(
    connection: sa.Connection, provider: KeyProvider, officer: Officer, *, tenant: str | None = None
) -> list[Erasure]:
    """Destroy the master keys that nothing in force is wrapped under, and close the erasures whose time has come.

    An erasure waits for the sidecars that were not heard of since: what they hold, sealed under the old key and not yet
    stored, would be lost with it, and of the erased subject they may hold something too. First the database, then the
    keys: where this breaks off between, it is done again.
    """
    c = erasures.c
    query = sa.select(c.id, c.tenant, c.erased_at).where(c.done_at.is_(None), c.pending_until <= officer.at)
    if tenant is not None:
        query = query.where(c.tenant == tenant)
    due = [row for row in connection.execute(query).all() if not unheard(connection, row.erased_at, officer.at)]
    for name in sorted({row.tenant for row in due}):
        retire(connection, provider, name)
    for row in due:
        done = sa.update(erasures).where(c.id == row.id)
        connection.execute(done.values(done_at=officer.at, version=None, subject_wrapped=None))
        _record(connection, officer, "erasure_done", {"erasure": row.id, "tenant": row.tenant})
    return [erasure(connection, row.id) for row in due]


def unheard(connection: sa.Connection, since: datetime, at: datetime) -> list[str]:
    """Logs that were at work within WAIT before ``since``, have not ended, and were not heard of after it.

    Nobody waits for them longer than WAIT: a sidecar that is lost must not keep a subject from being erased.
    """
    if at - since > WAIT:
        return []
    c = journal_cursors.c
    seen = sa.func.max(c.updated_at)
    open_still = sa.func.bool_or(c.closed_at.is_(None))
    query = sa.select(c.log).group_by(c.log).having(seen <= since, seen > since - WAIT, open_still)
    return list(connection.scalars(query.order_by(c.log)))


# --- keys ---------------------------------------------------------------------------------------------------------


def destroy_keys(
    connection: sa.Connection, provider: KeyProvider, *, tenant: str, ids: Collection[str], at: datetime, by: str
) -> int:
    """Destroy these data keys and wrap all others of the tenant under a new master key; its version.

    The caller holds the lock.
    """
    new = provider.rotate(tenant)
    gone = set(ids)
    c = data_keys.c
    rows = connection.execute(sa.select(*_KEY_COLUMNS).where(c.tenant == tenant, c.wrapped.is_not(None))).all()
    for key in map(key_row, rows):
        if key.id not in gone:
            _wrap_anew(connection, provider, key, new)
    lost = {"wrapped": None, "subject_sealed": None, "subject_mac": None, "destroyed_at": at, "destroyed_by": by}
    for some in _chunks(sorted(gone)):
        connection.execute(sa.update(data_keys).where(c.id.in_(some)).values(lost))
        connection.execute(sa.delete(audit_terms).where(audit_terms.c.data_key.in_(some)))
    for table in (legal_holds, erasures):
        kept = sa.select(table).where(table.c.tenant == tenant, table.c.subject_wrapped.is_not(None))
        for row in connection.execute(kept).all():
            name = name_of(provider, row)
            if name is not None:
                version, wrapped = wrap_name(provider, tenant, row.id, name)
                moved = sa.update(table).where(table.c.id == row.id)
                connection.execute(moved.values(version=version, subject_wrapped=wrapped))
    return new


def _wrap_anew(connection: sa.Connection, provider: KeyProvider, row: KeyRow, version: int) -> None:
    """A key that cannot be unwrapped now is left as it is: it isn't ours to end."""
    secret = unwrap(provider, row).secret
    if secret is None:
        return
    name = open_subject(secret, row)
    connection.execute(
        sa.update(data_keys)
        .where(data_keys.c.id == row.id)
        .values(
            version=version,
            wrapped=provider.wrap(row.tenant, version, secret, row.context),
            subject_mac=provider.mac(row.tenant, version, name) if name else None,
        )
    )


def retire(connection: sa.Connection, provider: KeyProvider, tenant: str) -> list[int]:
    """Destroy every version of a tenant's master key but the current one; what survives is kept beside them first."""
    lock_keys(connection, [tenant], alone=True)
    current = provider.current(tenant)
    c = data_keys.c
    living = sa.select(*_KEY_COLUMNS).where(c.tenant == tenant, c.wrapped.is_not(None))
    for row in connection.execute(living.where(c.version != current)).all():
        _wrap_anew(connection, provider, key_row(row), current)
    rows = connection.execute(living.where(c.version == current))
    survivors = {row.id: (row.version, bytes(row.wrapped)) for row in rows}
    old = [version for version in provider.versions(tenant) if version != current]
    for version in old:
        provider.destroy(tenant, version, survivors)
    return old


def _refuse_held(connection: sa.Connection, provider: KeyProvider, tenant: str, subject: str) -> None:
    for hold in holds(connection, provider, tenant=tenant):
        if hold.subject in {None, subject}:
            raise HeldError(f"hold {hold.id} of {hold.placed_at:%Y-%m-%d} ({hold.reason}) stands in the way")


def _record(connection: sa.Connection, officer: Officer, kind: str, detail: dict[str, Any]) -> None:
    row = officer_row(next(officer.event_ids), officer.at, kind, officer.actor, officer.reason, detail)
    record_event(connection, row)


def _chunks(items: Sequence[str], size: int = 1000) -> Iterator[Sequence[str]]:
    return (items[at : at + size] for at in range(0, len(items), size))

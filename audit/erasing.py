"""Erases by destroying keys: of one subject, or of what was kept long enough; holds stand in the way of both.

Destroying a data key in the database says nothing of its copies. So a tenant's master key is renewed: what survives is
wrapped under the new version, the old version is destroyed, and with it every copy of what was wrapped under it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from audit.holds import HeldError, Hold, Officer, holds, place_hold, record_act, refuse_held, release_hold
from audit.keys import KeyProvider
from audit.object_sweep import named_objects
from audit.opening import Opener, key_row
from audit.remains import WAIT, Exports, remains, unheard
from audit.roles import RoleKind, is_of
from audit.store import login_of
from audit.storing import lock_keys, name_of, wrap_name
from audit.tables import (
    audit_calls,
    audit_events,
    audit_terms,
    data_keys,
    erasures,
    legal_holds,
)
from audit.vault import KeyRow, open_subject, unwrap

__all__ = [
    "WAIT",
    "Erasure",
    "ErasureError",
    "HeldError",
    "Hold",
    "Officer",
    "UnknownError",
    "chunks",
    "confirm",
    "destroy_keys",
    "erasure",
    "finish",
    "forget_keys",
    "holds",
    "outlived",
    "place_hold",
    "record_act",
    "release_hold",
    "request",
    "retire",
    "unheard",
]  # fmt: skip

DESTROYED: Final = 20_000  # data keys that one act lists: one a day and class, so decades
RENEWALS: Final = (
    "subject_erased",
    "erasure_repeated",
    "retention",
)  # acts that renewed a tenant's master key: `renewed` says to what
_KEY_COLUMNS: Final = (
    data_keys.c.id, data_keys.c.tenant, data_keys.c.days, data_keys.c.day, data_keys.c.version, data_keys.c.wrapped,
    data_keys.c.subject_sealed, data_keys.c.subject_mac,
)  # fmt: skip


class ErasureError(Exception):
    """It cannot be done like this; the message says why."""


class UnknownError(ErasureError):
    """Nothing that a key still opens is of that subject: a name that was misspelt is erased of nothing."""


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
    requested_login: str = ""  # whom the database took them for
    confirmed_login: str = ""
    depends_on: list[dict[str, Any]] = field(default_factory=list)  # what must come or go before it is done
    excludes: list[dict[str, Any]] = field(default_factory=list)  # what it says nothing of
    objects: int = 0  # of tensors' bytes, that no longer open

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in told.items()}


# --- one subject --------------------------------------------------------------------------------------------------


def request(
    connection: sa.Connection, opener: Opener, officer: Officer, *, erasure_id: str, tenant: str,
    subject: str, two_people: bool, copies: timedelta, unknown: bool = False,
) -> Erasure:  # fmt: skip
    """Erase a subject, or ask a second person to confirm it. ``copies``: how long copies outside the database live.

    ``unknown``: also one of whom nothing is stored, for what a sidecar may still hold of it.
    Raises HeldError, UnknownError, ErasureError and KeyFaultError.
    """
    lock_keys(connection, [tenant], alone=True)  # first: a hold that is placed now comes before, or finds it done
    refuse_held(connection, opener.provider, tenant, subject)
    login = _own_login(connection, tenant) if two_people else login_of(connection)
    _refuse_twice(connection, opener, tenant, subject, unknown=unknown)
    version, wrapped = wrap_name(opener.provider, tenant, erasure_id, subject)
    connection.execute(
        sa.insert(erasures).values(
            id=erasure_id, tenant=tenant, version=version, subject_wrapped=wrapped, reason=officer.reason,
            requested_by=officer.actor, requested_at=officer.at, requested_login=login,
        )
    )  # fmt: skip
    record_act(connection, officer, "erasure_requested", {"erasure": erasure_id, "tenant": tenant})
    if not two_people:
        _erase(connection, opener, officer, erasure_id, tenant, subject, copies)
    return erasure(connection, erasure_id, officer.at)


def _refuse_twice(connection: sa.Connection, opener: Opener, tenant: str, subject: str, *, unknown: bool) -> None:
    """One of nobody, and one that two officers ask for at once."""
    c = erasures.c
    open_still = sa.select(erasures).where(c.tenant == tenant, c.done_at.is_(None)).order_by(c.requested_at)
    same = [row for row in connection.execute(open_still) if name_of(opener.provider, row) == subject]
    waiting = next((row.id for row in same if row.erased_at is None), None)
    if waiting is not None:
        raise ErasureError(f"erasure {waiting} of that subject waits for its second person: --confirm {waiting}")
    if opener.keys_of(connection, tenant, subject) or (unknown and not same):
        return
    if same:
        raise UnknownError(f"erasure {same[-1].id} of that subject is pending, and nothing was recorded of it since")
    raise UnknownError(
        f"nothing is recorded of that subject of {tenant} that a key still opens; is it spelt so?"
        " (--unknown: for what a sidecar may not have stored yet)"
    )


def confirm(
    connection: sa.Connection, opener: Opener, officer: Officer, *, erasure_id: str, copies: timedelta
) -> Erasure:
    """The second person's word. Raises HeldError, ErasureError and KeyFaultError."""
    tenant = connection.scalar(sa.select(erasures.c.tenant).where(erasures.c.id == erasure_id))
    if tenant is None:
        raise ErasureError(f"there is no erasure {erasure_id}")
    lock_keys(connection, [tenant], alone=True)  # before the row: who renews the key moves the name that is in it
    row = connection.execute(sa.select(erasures).where(erasures.c.id == erasure_id).with_for_update()).one()
    if row.erased_at is not None:
        raise ErasureError(f"erasure {erasure_id} was confirmed already")
    login = _own_login(connection, tenant)
    if row.requested_login == login:
        raise ErasureError(f"{login} asked for it: who asked for an erasure cannot be the second person")
    if not is_of(RoleKind.OFFICER, row.requested_login):
        raise ErasureError(f"nobody knows whose login asked for erasure {erasure_id}; ask for it again")
    subject = name_of(opener.provider, row)
    if subject is None:
        raise ErasureError(f"whom erasure {erasure_id} is of can no longer be read; ask for it again")
    refuse_held(connection, opener.provider, row.tenant, subject)
    confirmed = sa.update(erasures).where(erasures.c.id == erasure_id)
    connection.execute(confirmed.values(confirmed_by=officer.actor, confirmed_login=login))
    _erase(connection, opener, officer, erasure_id, row.tenant, subject, copies)
    return erasure(connection, erasure_id, officer.at)


def _own_login(connection: sa.Connection, tenant: str) -> str:
    """By which two people are told apart. An account of the machine is no person: sudo and containers share one."""
    login = login_of(connection)
    if not is_of(RoleKind.OFFICER, login):
        raise ErasureError(
            f"erasing for {tenant} takes two people, told apart by database logins of their own, which {login} is not:"
            " `warden db enroll NAME --for officer` makes one"
        )
    return login


def erasure(connection: sa.Connection, erasure_id: str, at: datetime) -> Erasure:
    """As it is ``at`` that time. Raises ErasureError where there is none."""
    row = connection.execute(sa.select(erasures).where(erasures.c.id == erasure_id)).one_or_none()
    if row is None:
        raise ErasureError(f"there is no erasure {erasure_id}")
    state = "done" if row.done_at else "pending" if row.erased_at else "requested"
    waits, excludes = _open(connection, row, at) if row.done_at is None else ([], row.excludes or [])
    return Erasure(
        row.id, row.tenant, state, row.requested_at, row.requested_by, row.confirmed_by, row.erased_at, row.keys,
        row.records, row.pending_until, row.done_at, row.requested_login, row.confirmed_login,
        waits, excludes, row.objects,
    )  # fmt: skip


def _open(connection: sa.Connection, row: Any, at: datetime) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What an erasure waits for, and what it will say nothing of."""
    if row.erased_at is None:
        return [{"what": "second_person", "why": "another officer must confirm it"}], []
    found, waits = remains(connection, row.erased_at, at, tenant=row.tenant), []
    if at < row.pending_until:
        why = f"copies of the tenant's old master key may be kept until {row.pending_until.isoformat()}"
        waits.append({"what": "key_copies", "until": row.pending_until.isoformat(), "why": why})
    waits.append({"what": "master_key", "why": "`warden audit retain` has not destroyed the tenant's old one yet"})
    return [*waits, *found.waits], found.excludes


def _erase(
    connection: sa.Connection, opener: Opener, officer: Officer, erasure_id: str, tenant: str,
    subject: str, copies: timedelta,
) -> None:  # fmt: skip
    ids = opener.keys_of(connection, tenant, subject)
    records = connection.scalar(sa.select(sa.func.count()).where(audit_calls.c.data_key.in_(ids))) or 0
    objects = named_objects(connection, ids)
    new = destroy_keys(connection, opener.provider, tenant=tenant, ids=ids, at=officer.at, by=erasure_id)
    done = {"erased_at": officer.at, "keys": len(ids), "records": records, "pending_until": officer.at + copies}
    done["objects"] = objects
    connection.execute(sa.update(erasures).where(erasures.c.id == erasure_id).values(renewed=new, **done))
    told: dict[str, Any] = {"erasure": erasure_id, "tenant": tenant, "keys": len(ids), "records": records}
    told["renewed"], told["objects"] = new, objects
    told["destroyed"] = sorted(ids)[:DESTROYED]  # so that it can be done again in a database restored from before
    record_act(connection, officer, "subject_erased", told)


def finish(
    connection: sa.Connection, provider: KeyProvider, officer: Officer, *, tenant: str | None = None
) -> list[Erasure]:
    """Destroy the master keys that nothing in force is wrapped under, and close the erasures whose time has come.

    An erasure waits for the sidecars that were not heard of since: what they hold, sealed under the old key and not yet
    stored, would be lost with it, and of the erased subject they may hold something too. Where this breaks off, it is
    done again: what survives a version is kept beside the keys before that goes.
    """
    c = erasures.c
    query = sa.select(c.id, c.tenant, c.erased_at, c.renewed).where(c.done_at.is_(None), c.pending_until <= officer.at)
    if tenant is not None:
        query = query.where(c.tenant == tenant)
    due = [row for row in connection.execute(query).all() if not unheard(connection, row.erased_at, officer.at)]
    for name in sorted({row.tenant for row in due}):
        lock_keys(connection, [name], alone=True)
        below = max(row.renewed or provider.current(name) for row in due if row.tenant == name)
        retire(connection, provider, name, below)
    closed, exports = [], Exports(connection) if due else None
    for row in due:
        left = remains(connection, row.erased_at, officer.at, tenant=row.tenant, exports=exports)
        if left.waits:
            continue  # the database and its copies are closed already; what else there is, the certificate names
        done = sa.update(erasures).where(c.id == row.id, c.done_at.is_(None))
        values = {"done_at": officer.at, "version": None, "subject_wrapped": None, "excludes": left.excludes}
        if connection.execute(done.values(values)).rowcount:
            record_act(connection, officer, "erasure_done", {"erasure": row.id, "tenant": row.tenant})
            closed.append(erasure(connection, row.id, officer.at))
    return closed


def outlived(connection: sa.Connection, copies: timedelta, at: datetime) -> dict[str, int]:
    """By tenant, below which version its master keys may go: only copies from before need them, and none is left.

    A version stays for the sidecars that were not heard of since it was replaced: they may hold what it sealed.
    """
    c = audit_events.c
    renewed = c.detail["renewed"].as_integer()
    query = sa.select(c.detail["tenant"].as_string(), renewed, c.at).where(
        c.log.is_(None), c.kind.in_(RENEWALS), c.detail.has_key("renewed"), c.at <= at - copies
    )
    found: dict[str, int] = {}
    heard: dict[datetime, bool] = {}  # one run of retention renews thousands of tenants' keys at one time
    for tenant, version, since in connection.execute(query.order_by(c.at)):
        if version <= found.get(tenant, 0):
            continue
        if since not in heard:
            heard[since] = not unheard(connection, since, at)
        if heard[since]:
            found[tenant] = version
    return found


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
    forget_keys(connection, gone, at=at, by=by)
    for table in (legal_holds, erasures):
        kept = sa.select(table).where(table.c.tenant == tenant, table.c.subject_wrapped.is_not(None))
        for row in connection.execute(kept).all():
            name = name_of(provider, row)
            if name is not None:
                version, wrapped = wrap_name(provider, tenant, row.id, name)
                moved = sa.update(table).where(table.c.id == row.id)
                connection.execute(moved.values(version=version, subject_wrapped=wrapped))
    return new


def forget_keys(connection: sa.Connection, ids: Collection[str], *, at: datetime, by: str) -> None:
    """This database's copies of data keys, and what finds records by words under them."""
    lost = {"wrapped": None, "subject_sealed": None, "subject_mac": None, "destroyed_at": at, "destroyed_by": by}
    for some in chunks(sorted(ids)):
        connection.execute(sa.update(data_keys).where(data_keys.c.id.in_(some)).values(lost))
        connection.execute(sa.delete(audit_terms).where(audit_terms.c.data_key.in_(some)))


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


def retire(connection: sa.Connection, provider: KeyProvider, tenant: str, below: int) -> list[int]:
    """Destroy a tenant's master keys older than version ``below``; what survives is kept beside the others first.

    Those from ``below`` on stay: a sidecar may hold what it sealed under them and could not store yet.
    """
    lock_keys(connection, [tenant], alone=True)
    current = provider.current(tenant)
    old = [version for version in provider.versions(tenant) if version < min(below, current)]
    if not old:
        return []
    c = data_keys.c
    living = sa.select(*_KEY_COLUMNS).where(c.tenant == tenant, c.wrapped.is_not(None))
    for row in connection.execute(living.where(c.version != current)).all():
        _wrap_anew(connection, provider, key_row(row), current)
    rows = connection.execute(living.where(c.version == current))
    survivors = {row.id: (row.version, bytes(row.wrapped)) for row in rows}
    for version in old:
        provider.destroy(tenant, version, survivors)
    return old


def chunks(items: Sequence[str], size: int = 1000) -> Iterator[Sequence[str]]:
    return (items[at : at + size] for at in range(0, len(items), size))

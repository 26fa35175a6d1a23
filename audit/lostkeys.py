"""Which of the tenants' master keys are lost, and giving them up: what lies under them is destroyed, on record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from audit.erasing import Officer
from audit.keyring import missing_of, versions_held
from audit.keys import KeyStore
from audit.rows import officer_row
from audit.store import record_event
from audit.storing import lock_keys
from audit.tables import audit_calls, audit_terms, data_keys, erasures, legal_holds

__all__ = ["GivenUp", "KeyState", "NotLostError", "give_up", "states", "tenants_of"]

BY: Final = "given up"  # in data_keys.destroyed_by


class NotLostError(Exception):
    """A version that is not lost cannot be given up; the message names it."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """One tenant's master keys: the version in use, those here, and those that only the database knows of."""

    tenant: str
    current: int | None
    here: tuple[int, ...]
    missing: tuple[int, ...]
    lost_keys: int  # data keys wrapped under what is missing
    where: str

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


@dataclass(frozen=True, slots=True)
class GivenUp:
    """How much can be opened by nobody any more."""

    keys: int
    records: int


def tenants_of(connection: sa.Connection) -> list[str]:
    """Whoever may have a master key; "": searches that ask for no tenant are recorded under one."""
    found = {""}
    for table in (data_keys, legal_holds, erasures):
        found |= set(connection.scalars(sa.select(table.c.tenant).distinct()))
    return sorted(found)


def states(connection: sa.Connection, keys: KeyStore, tenant: str | None) -> list[KeyState]:
    """Of one tenant, or of each that the database holds data keys of. Raises KeyFaultError."""
    c = data_keys.c
    query = sa.select(c.tenant).distinct().where(c.wrapped.is_not(None)).order_by(c.tenant)
    names = [tenant] if tenant is not None else list(connection.scalars(query))
    found = []
    for name in names:
        missing = missing_of(keys, name, versions_held(connection, name))
        lost = 0
        if missing:
            counted = sa.select(sa.func.count()).where(*_under(name, missing))
            lost = connection.scalar(counted.select_from(data_keys)) or 0
        here = tuple(keys.versions(name))
        found.append(KeyState(name, keys.latest(name), here, tuple(missing), lost, keys.where(name)))
    return found


def give_up(
    connection: sa.Connection, keys: KeyStore, officer: Officer, tenant: str, versions: Collection[int]
) -> GivenUp:
    """Destroy, in the database, the data keys that are wrapped under lost versions of a tenant's master key.

    After it the tenant gets a new master key with its next record, and can be erased from again. First the store marks
    them, so that a copy that comes back opens nothing; where this breaks off between, it can be done again.
    Raises NotLostError and KeyFaultError.
    """
    lock_keys(connection, [tenant], alone=True)
    held, here = set(versions_held(connection, tenant)), set(keys.versions(tenant))
    for version in sorted(versions):
        if version in here:
            raise NotLostError(f"version {version} of the master key of {tenant!r} is there: {keys.where(tenant)}")
        if version not in held:
            raise NotLostError(f"the database holds nothing under version {version} of the master key of {tenant!r}")
    keys.give_up(tenant, versions)
    ids = sa.select(data_keys.c.id).where(*_under(tenant, versions)).scalar_subquery()
    records = connection.scalar(sa.select(sa.func.count()).where(audit_calls.c.data_key.in_(ids))) or 0
    connection.execute(sa.delete(audit_terms).where(audit_terms.c.data_key.in_(ids)))
    gone = {"wrapped": None, "subject_sealed": None, "subject_mac": None, "destroyed_at": officer.at}
    done = connection.execute(sa.update(data_keys).where(*_under(tenant, versions)).values(**gone, destroyed_by=BY))
    told = {"tenant": tenant, "versions": sorted(versions), "keys": done.rowcount, "records": records}
    act = (officer.actor, officer.reason, told)
    record_event(connection, officer_row(next(officer.event_ids), officer.at, "master_keys_given_up", *act))
    return GivenUp(done.rowcount, records)


def _under(tenant: str, versions: Collection[int]) -> tuple[sa.ColumnElement[bool], ...]:
    c = data_keys.c
    return c.tenant == tenant, c.version.in_(versions), c.wrapped.is_not(None)

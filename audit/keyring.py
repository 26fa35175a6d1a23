"""The master keys beside what the database holds: a tenant whose keys are lost gets no new ones in silence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import psycopg
import sqlalchemy as sa

from audit import store
from audit.keys import KeyFaultError, KeyMissingError, KeyProvider, KeyStore

__all__ = ["Held", "Keyring", "held_in", "missing_of"]

Held = Callable[[str], Collection[int]]  # a tenant → the versions that data keys of the database are wrapped under
_SECONDS: Final = 10.0


def held_in(engine: sa.Engine) -> Held:
    """As that database says, asked in a connection of its own: all of ``engine``'s may be at work for who asks.

    Raises KeyFaultError where it doesn't answer.
    """

    def held(tenant: str) -> list[int]:
        own = sa.create_engine(engine.url, pool=engine.pool.recreate())
        try:
            with store.transaction(own, deadline_s=_SECONDS) as connection:
                return versions_held(connection, tenant)
        except (sa.exc.SQLAlchemyError, psycopg.Error, OSError) as fault:
            words = " ".join(str(getattr(fault, "orig", None) or fault).split())[:200]
            raise KeyFaultError(f"whether the database holds keys of {tenant!r} is not known: {words}") from fault
        finally:
            own.dispose()

    return held


def versions_held(connection: sa.Connection, tenant: str) -> list[int]:
    """The versions of its master key that living data keys are wrapped under."""
    return list(connection.scalars(sa.text("SELECT warden.key_versions(:tenant)"), {"tenant": tenant}))


def missing_of(keys: KeyStore, tenant: str, held: Collection[int]) -> list[int]:
    """Those of ``held`` that are neither here nor were destroyed."""
    here = set(keys.versions(tenant))
    return sorted(version for version in held if version not in here and not keys.destroyed(tenant, version))


class Keyring:
    """A ``KeyProvider`` over a store and what the database knows of it."""

    def __init__(self, keys: KeyStore, held: Held) -> None:
        self._keys, self._held = keys, held

    def current(self, tenant: str) -> int:
        """Raises KeyMissingError where the tenant has no key here, but data keys that were wrapped under one."""
        found = self._keys.latest(tenant)
        if found is not None:
            return found
        self._refuse(tenant)
        return self._keys.rotate(tenant)

    def rotate(self, tenant: str) -> int:
        """Raises KeyMissingError: what lies under a key that isn't here can be found by nobody who erases."""
        self._refuse(tenant)
        return self._keys.rotate(tenant)

    def _refuse(self, tenant: str) -> None:
        missing = missing_of(self._keys, tenant, self._held(tenant))
        if missing:
            raise KeyMissingError(
                f"{self._keys.where(tenant)}: the master key of {tenant!r} lacks version {_told(missing)}, and the"
                " database holds what is sealed under it. Mount or restore what has it; if it is lost for good:"
                f" warden audit master-keys give-up --tenant {tenant} --versions {_told(missing)} --reason ..."
            )

    # --- the store's own ------------------------------------------------------------------------------------------

    def latest(self, tenant: str) -> int | None:
        return self._keys.latest(tenant)

    def versions(self, tenant: str) -> list[int]:
        return self._keys.versions(tenant)

    def destroyed(self, tenant: str, version: int) -> bool:
        return self._keys.destroyed(tenant, version)

    def wrap(self, tenant: str, version: int, key: bytes, context: bytes) -> bytes:
        return self._keys.wrap(tenant, version, key, context)

    def unwrap(self, tenant: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self._keys.unwrap(tenant, version, wrapped, context)

    def mac(self, tenant: str, version: int, text: bytes) -> bytes:
        return self._keys.mac(tenant, version, text)

    def destroy(self, tenant: str, version: int, survivors: Mapping[str, tuple[int, bytes]]) -> None:
        self._keys.destroy(tenant, version, survivors)

    def give_up(self, tenant: str, versions: Collection[int]) -> None:
        self._keys.give_up(tenant, versions)

    def survivor(self, tenant: str, key_id: str) -> tuple[int, bytes] | None:
        return self._keys.survivor(tenant, key_id)

    def where(self, tenant: str) -> str:
        return self._keys.where(tenant)


def _told(versions: Collection[int]) -> str:
    return ",".join(map(str, versions))


_: type[KeyProvider] = Keyring

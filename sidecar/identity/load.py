"""Reads API keys and the deny-list from Postgres: all, or what changed since; in pieces, so that nobody is held up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.rows import TupleRow

from sidecar.identity.denials import Age, DenyList
from sidecar.identity.keys import KeyRow
from sidecar.identity.keytable import KeyTable

PIECE: Final = 250  # rows read at a time, about 1.5 ms: the driver keeps the interpreter to itself meanwhile
Pause = Callable[[], object]
"""Called between two pieces; lets other threads have the interpreter."""

# Everything that decides about a key, and not last_used_at: counting uses must not reload keys on every pod.
# Times as seconds: a time such as 'infinity', which Postgres has and Python has not, must not spoil every other key.
_DECIDING: Final = (
    "id, tenant, name, environment, secret_mac, extract(epoch FROM expires_at)::float8, "
    "extract(epoch FROM not_before)::float8, extract(epoch FROM revoked_at)::float8, models, roles, rotated_mac, "
    "extract(epoch FROM rotated_until)::float8, methods, regions, networks"
)
_ALL: Final = f"SELECT {_DECIDING} FROM warden.api_keys"  # noqa: S608 — constants only
_CHANGED: Final = _ALL + " WHERE changed >= %s"
_LOOK: Final = (
    "SELECT extract(epoch FROM clock_timestamp())::float8, pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
    "(SELECT count(*) FROM warden.api_keys), "
    "(SELECT count(*) FROM warden.token_denials WHERE until > now()), "
    "(SELECT coalesce(sum(hashtextextended(d::text, 0)), 0)::text FROM warden.token_denials d WHERE until > now())"
)
_DENIED: Final = (
    "SELECT issuer, jti, tenant, extract(epoch FROM issued_before)::float8 FROM warden.token_denials "
    "WHERE until > now()"
)


@dataclass(frozen=True, slots=True)
class Look:
    """What one transaction sees at a glance. ``xmin``: every transaction before it had ended by then."""

    age: Age
    xmin: int
    keys: int
    denied: tuple[int, str]  # how many, and a hash of them


def look(connection: psycopg.Connection[TupleRow], at: float) -> Look:
    """``at`` is our clock's time just before (s), so that what is read is never taken for younger than it is."""
    row = connection.execute(_LOOK).fetchone()
    assert row is not None
    now, xmin, keys, denied, mark = row
    return Look(Age(now, now - at), xmin, keys, (denied, mark))


def every_key(connection: psycopg.Connection[TupleRow], have: Mapping[str, KeyRow], pause: Pause) -> KeyTable:
    """Every key, by id. One that is as it was in ``have`` stays the same object."""

    def keys() -> Iterator[KeyRow]:
        for row in _rows(connection, _ALL, (), pause):
            key = _key(row)
            known = have.get(key.id)
            yield key if known is None or known != key else known

    return KeyTable(keys())


def changed_keys(
    connection: psycopg.Connection[TupleRow], since: int, have: Mapping[str, KeyRow], pause: Pause
) -> list[KeyRow]:
    """The keys that a snapshot with xmin ``since`` may have missed and that are not in ``have`` as they are now."""
    keys = map(_key, _rows(connection, _CHANGED, (since,), pause))
    return [key for key in keys if have.get(key.id) != key]


def deny_list(connection: psycopg.Connection[TupleRow], pause: Pause) -> DenyList:
    tokens: set[tuple[str, str]] = set()
    tenants: dict[str, float] = {}
    for issuer, jti, tenant, before in _rows(connection, _DENIED, (), pause):
        if tenant is None:
            tokens.add((issuer, jti))
        else:
            tenants[tenant] = before
    return DenyList(tokens, tenants)  # not copied: one go of several ms, where they are many


def _rows(
    connection: psycopg.Connection[TupleRow], query: str, values: tuple[int, ...], pause: Pause
) -> Iterator[TupleRow]:
    with connection.cursor("warden_keys") as cursor:
        cursor.execute(query, values)
        while piece := cursor.fetchmany(PIECE):
            yield from piece
            pause()


def _key(row: TupleRow) -> KeyRow:
    key_id, tenant, name, environment, secret, expires, begins, revoked, models, roles, rotated, until = row[:12]
    methods, regions, networks = row[12:]
    return KeyRow(
        id=key_id,
        tenant=tenant,
        name=name,
        environment=environment,
        secret_mac=bytes(secret),
        expires_at=expires,
        not_before=begins,
        revoked_at=revoked,
        models=_texts(models),
        roles=_ROLES if roles == ["tenant"] else tuple(roles),
        rotated_mac=None if rotated is None else bytes(rotated),
        rotated_until=until,
        methods=_texts(methods),
        regions=_texts(regions),
        networks=_texts(networks),
    )


_ROLES: Final = ("tenant",)  # one object for all keys that have no other


def _texts(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)

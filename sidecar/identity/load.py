"""Reads API keys and the deny-list from Postgres: all, or what changed since; in pieces, so that nobody is held up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec
import psycopg
from psycopg.rows import TupleRow

from sidecar.identity.denials import Age, DenyList
from sidecar.identity.keyrow import KeyRow
from sidecar.identity.keytable import KeyTable, Pause

PIECE: Final = 250  # rows read at a time, about 1.5 ms: the driver keeps the interpreter to itself meanwhile
MAX_GONE: Final = (
    10_000  # keys, and as many denials, that the database has no more and that are remembered to have ended
)
_PARTS: Final = 16  # parts of a table looked through between two pauses: 6,400 of 100,000 keys

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
    "(SELECT coalesce(sum(hashtextextended(d::text, 0)), 0)::text FROM warden.token_denials d WHERE until > now()), "
    "concat_ws(' ', pg_postmaster_start_time(), current_database(), pg_relation_filenode('warden.api_keys'))"
)
_DENIED: Final = (
    "SELECT issuer, jti, tenant, extract(epoch FROM issued_before)::float8, extract(epoch FROM until)::float8 "
    "FROM warden.token_denials WHERE until > now()"
)


@dataclass(frozen=True, slots=True)
class Look:
    """What one transaction sees at a glance. ``xmin``: every transaction before it had ended by then.

    ``place``: which table of which running server; only within one do transaction ids tell what changed. A pooler may
    put another server behind a connection that lives on.
    """

    age: Age
    xmin: int
    keys: int
    denied: tuple[int, str]  # how many, and a hash of them
    place: str = ""


@dataclass(frozen=True, slots=True)
class Every:
    """Every key. ``gone``: those that are no more, but had an end; ``revived``: how many are there again without it."""

    rows: KeyTable
    gone: Mapping[str, KeyRow]
    revived: int


def look(connection: psycopg.Connection[TupleRow], at: float) -> Look:
    """``at`` is our clock's time just before (s), so that what is read is never taken for younger than it is."""
    row = connection.execute(_LOOK).fetchone()
    assert row is not None
    now, xmin, keys, denied, mark, place = row
    return Look(Age(now, now - at), xmin, keys, (denied, mark), place)


def every_key(
    connection: psycopg.Connection[TupleRow], have: KeyTable, gone: Mapping[str, KeyRow], at: float, pause: Pause
) -> Every:
    """Every key, by id, at the database's time ``at``. One that is as it was in ``have`` stays the same object.

    What had ended in ``have``, or in ``gone`` (keys that were there before), is not believed to work again.
    """
    revived = 0

    def keys() -> Iterator[KeyRow]:
        nonlocal revived
        for row in _rows(connection, _ALL, (), pause):
            key = _key(row)
            believed = _still_ended(have.get(key.id) or gone.get(key.id), key, at)
            revived += believed != key
            yield believed

    found = KeyTable(keys())
    left = {key_id: row for key_id, row in gone.items() if key_id not in found}
    for number, (before, now) in enumerate(zip(have.parts, found.parts, strict=True)):  # an id is in the same part
        left |= {key_id: before[key_id] for key_id in before.keys() - now.keys() if _has_end(before[key_id], at)}
        if not number % _PARTS:
            pause()
    return Every(found, dict(islice(left.items(), max(0, len(left) - MAX_GONE), None)), revived)


def changed_keys(
    connection: psycopg.Connection[TupleRow],
    since: int,
    have: KeyTable,
    gone: Mapping[str, KeyRow],
    at: float,
    pause: Pause,
) -> tuple[list[KeyRow], int]:
    """The keys that a snapshot with xmin ``since`` may have missed and that are not in ``have`` as they are now.

    And how many of them are there without an end that they had.
    """
    changed, revived = [], 0
    for row in _rows(connection, _CHANGED, (since,), pause):
        key = _key(row)
        believed = _still_ended(have.get(key.id) or gone.get(key.id), key, at)
        if have.get(key.id) is not believed:
            changed.append(believed)
            revived += believed != key
    return changed, revived


def _has_end(row: KeyRow, at: float) -> bool:
    """Whether something of it works no more: the key, or an old secret of it."""
    expired = row.expires_at is not None and row.expires_at <= at
    return expired or row.revoked_at is not None or row.rotated_mac is not None


def _still_ended(known: KeyRow | None, key: KeyRow, at: float) -> KeyRow:
    """The key as the database has it, but for what had ended and works again there; ``known`` where nothing changed.

    No step of a key's life takes an end back, so this is a database restored from before it. Whoever held a revoked key
    or the old secret of a rotation would hold a good one.
    """
    if known is None:
        return key
    if known == key:
        return known
    kept: dict[str, object] = {}
    if known.revoked_at is not None and key.revoked_at is None:
        kept["revoked_at"] = known.revoked_at
    over = known.expires_at is not None and known.expires_at <= at
    if over and (key.expires_at is None or key.expires_at > at):
        kept["expires_at"] = known.expires_at
    if known.rotated_mac is not None and known.rotated_until is not None:
        if key.secret_mac == known.rotated_mac:  # from before the rotation
            kept |= {name: getattr(known, name) for name in ("secret_mac", "rotated_mac", "rotated_until")}
        elif key.rotated_mac == known.rotated_mac and (key.rotated_until or 0) > known.rotated_until:
            kept["rotated_until"] = known.rotated_until
    made = msgspec.structs.replace(key, **kept) if kept else key
    return known if made == known else made


def deny_list(
    connection: psycopg.Connection[TupleRow], have: DenyList, at: float, pause: Pause
) -> tuple[DenyList, int]:
    """All denials at the database's time ``at``, and how many of them it has no more although they still count."""
    tokens: dict[tuple[str, str], float] = {}
    tenants: dict[str, tuple[float, float]] = {}
    for issuer, jti, tenant, before, until in _rows(connection, _DENIED, (), pause):
        if tenant is None:
            tokens[issuer, jti] = until
        else:
            tenants[tenant] = (before, until)
    lost = 0
    for number, (token, until) in enumerate(have.tokens.items()):
        if until > at and token not in tokens and lost < MAX_GONE:
            tokens[token] = until
            lost += 1
        if not number % PIECE:
            pause()
    for tenant, ended in have.tenants.items():
        earlier = tenant not in tenants or tenants[tenant][0] < ended[0]
        if earlier and ended[1] > at and lost < MAX_GONE:
            tenants[tenant] = ended
            lost += 1
    return DenyList(tokens, tenants), lost  # not copied: one go of several ms, where they are many


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

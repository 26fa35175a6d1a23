"""The tables of API keys and of revoked tokens, and the steps of their lives; they hold MACs, never secrets."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    case,
    cast,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import insert as pg_insert

from sidecar.core.model import Secret
from sidecar.identity import keys
from sidecar.identity.keys import Randomness

METADATA: Final = MetaData(schema="warden")
CHANNEL: Final = "warden_api_keys"  # the tables' triggers notify it of every change that decides something
MAX_AHEAD: Final = timedelta(minutes=5)  # of a denial by when tokens were issued: what an issuer's clock may be ahead
LONGEST_TOKEN: Final = timedelta(days=366)  # no issuer's max_lifetime may be longer, so no denial is needed for longer

API_KEYS: Final = Table(
    "api_keys",
    METADATA,
    Column("id", Text, primary_key=True),  # the key's public part, 12 base-62 characters
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("secret_mac", LargeBinary, nullable=False),  # HMAC-SHA-256 under the pepper
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("not_before", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("models", ARRAY(Text)),  # null: whatever the tenant may use
    Column("roles", ARRAY(Text), nullable=False, server_default=text("'{tenant}'")),
    Column("last_used_at", DateTime(timezone=True)),
    Column("rotated_mac", LargeBinary),  # the old secret, good until rotated_until
    Column("rotated_until", DateTime(timezone=True)),
    Column("created_by", Text, nullable=False),
    Column("methods", ARRAY(Text)),  # null: whatever its roles may call
    Column("regions", ARRAY(Text)),  # null: everywhere
    Column("networks", ARRAY(Text)),  # null: from everywhere; CIDR blocks
    Column("history", JSONB, nullable=False, server_default=text("'[]'")),  # every step: kind, at, actor
    Column("changed", BigInteger, nullable=False, server_default=text("0")),  # transaction id, set by a trigger
    CheckConstraint("octet_length(secret_mac) = 32", name="api_keys_secret_mac"),
    CheckConstraint("(rotated_mac is null) = (rotated_until is null)", name="api_keys_rotation"),
    Index("api_keys_tenant", "tenant"),
    Index("api_keys_changed_at", "changed"),
)

TOKEN_DENIALS: Final = Table(
    "token_denials",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("issuer", Text),
    Column("jti", Text),
    Column("tenant", Text),
    Column("issued_before", DateTime(timezone=True)),
    Column("until", DateTime(timezone=True), nullable=False),  # no such token lives longer, so the row may go then
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("created_by", Text, nullable=False),
    Index("token_denials_token", "issuer", "jti", unique=True),
    Index("token_denials_tenant", "tenant", unique=True),
)


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What may be shown of a key: everything but its secrets' MACs."""

    id: str
    tenant: str
    name: str
    environment: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    not_before: datetime | None = None
    revoked_at: datetime | None = None
    models: tuple[str, ...] | None = None
    roles: tuple[str, ...] = ("tenant",)
    last_used_at: datetime | None = None
    rotated_until: datetime | None = None
    methods: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None
    history: tuple[Mapping[str, str], ...] = ()

    def state(self, at: datetime) -> str:
        """``active``, ``pending`` (not yet), ``rotating`` (both secrets work), ``revoked`` or ``expired``."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= at:
            return "expired"
        if self.not_before is not None and self.not_before > at:
            return "pending"
        return "rotating" if self.rotated_until is not None and self.rotated_until > at else "active"


@dataclass(frozen=True, slots=True)
class Issued:
    """A key with its secret, for the one time it is shown."""

    info: KeyInfo
    key: Secret


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a life-cycle step was not done; nothing was changed."""

    detail: str


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """One life-cycle step, for the audit log; names the key by id, never by secret."""

    kind: str  # key.issued | key.rotated | key.revoked | key.expired | token.revoked
    at: datetime
    actor: str
    detail: Mapping[str, Any]


RecordEvent = Callable[[Connection, KeyEvent], None]
"""Stores a step's audit event in the step's own transaction; raising undoes the step."""


@dataclass(frozen=True, slots=True)
class Office:
    """Who does a step, when, and with what: the parts that every step needs."""

    pepper: Secret
    environment: str
    randomness: Randomness
    record: RecordEvent
    actor: str


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a new key is to be."""

    tenant: str
    name: str
    expires_at: datetime | None = None
    not_before: datetime | None = None
    models: tuple[str, ...] | None = None
    roles: tuple[str, ...] = ("tenant",)
    methods: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None


_SECRET: Final = frozenset({"secret_mac", "rotated_mac", "changed"})
# Postgres has times that Python has not, infinity among them: told as the calendar's ends, one such row hides no other.
_EARLIEST, _LATEST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


def _readable(column: Column[Any]) -> ColumnElement[Any]:
    if not isinstance(column.type, DateTime):
        return column
    within = func.least(func.greatest(column, _EARLIEST), _LATEST)
    return case((column.is_(None), None), else_=within).label(column.name)


_COLUMNS: Final = [_readable(column) for column in API_KEYS.c if column.name not in _SECRET]


def issue(connection: Connection, office: Office, new: NewKey, at: datetime) -> Issued | Refusal:
    """Make a key, store its MAC, record the step. The caller commits."""
    if new.expires_at is not None and new.expires_at <= at:
        return Refusal("the key would be expired already")
    key = keys.generate(office.environment, office.randomness)
    values = {
        "id": key.id,
        "tenant": new.tenant,
        "name": new.name,
        "environment": office.environment,
        "secret_mac": keys.mac(office.pepper, key.secret),
        "created_at": at,
        "created_by": office.actor,
        "expires_at": new.expires_at,
        "not_before": new.not_before,
        "models": new.models,
        "roles": new.roles,
        "methods": new.methods,
        "regions": new.regions,
        "networks": new.networks,
        "history": [_step(office, "key.issued", at)],
    }
    row = connection.execute(insert(API_KEYS).values(values).returning(*_COLUMNS)).one()
    info = _info(row)
    _record(connection, office, "key.issued", at, info, expires_at=_iso(new.expires_at))
    return Issued(info, Secret(key.text().encode()))


def list_keys(connection: Connection, tenant: str | None = None) -> list[KeyInfo]:
    """Every key, or one tenant's, oldest first."""
    query = select(*_COLUMNS).order_by(API_KEYS.c.created_at, API_KEYS.c.id)
    if tenant is not None:
        query = query.where(API_KEYS.c.tenant == tenant)
    return [_info(row) for row in connection.execute(query)]


def show(connection: Connection, key_id: str) -> KeyInfo | None:
    row = connection.execute(select(*_COLUMNS).where(API_KEYS.c.id == key_id)).one_or_none()
    return None if row is None else _info(row)


def revoke(
    connection: Connection, office: Office, key_id: str, at: datetime, *, leaked: str | None = None
) -> KeyInfo | Refusal:
    """Revoke for good, both secrets at once. Idempotent: a second time changes and records nothing.

    ``leaked``: where its secret was found, if that is why.
    """
    info = _locked(connection, key_id)
    if info is None:
        return Refusal(f"no key {key_id}")
    if info.revoked_at is not None:
        return info
    row = _changed(connection, office, key_id, "key.revoked", at, {"revoked_at": at})
    _record(connection, office, "key.revoked", at, info, leaked=leaked)
    return _info(row)


def end_grace(
    connection: Connection, office: Office, key_id: str, at: datetime, *, leaked: str | None = None
) -> KeyInfo | Refusal:
    """Let the old secret of a rotation end now; the new one works on. Idempotent, like ``revoke``."""
    info = _locked(connection, key_id)
    if info is None:
        return Refusal(f"no key {key_id}")
    if info.rotated_until is None or info.rotated_until <= at:
        return info
    # Its MAC stays: by it a restored database's word that this secret still works is not believed.
    row = _changed(connection, office, key_id, "key.rotated", at, {"rotated_until": at})
    _record(connection, office, "key.rotated", at, info, old_secret_until=_iso(at), leaked=leaked)
    return _info(row)


def proves(connection: Connection, office: Office, key: keys.ApiKey) -> Literal["current", "old"] | None:
    """Which secret of its id this key holds: the one that works, or the old one of a rotation; None: neither."""
    macs = connection.execute(
        select(API_KEYS.c.secret_mac, API_KEYS.c.rotated_mac).where(API_KEYS.c.id == key.id)
    ).one_or_none()
    given = keys.mac(office.pepper, key.secret)
    current, old = macs or (None, None)
    if hmac.compare_digest(given, current or bytes(32)) and current is not None:
        return "current"
    return "old" if hmac.compare_digest(given, old or bytes(32)) and old is not None else None


def expire(connection: Connection, office: Office, key_id: str, when: datetime, at: datetime) -> KeyInfo | Refusal:
    """Let a key end at ``when`` (now, or later; sooner than it would have, or not). Repeating it changes nothing."""
    info = _locked(connection, key_id)
    if info is None:
        return Refusal(f"no key {key_id}")
    state = info.state(at)
    if state == "revoked" or (state == "expired" and when > at):
        return Refusal(f"key {key_id} is {state}; issue a new one")
    if info.expires_at == when or state == "expired":
        return info
    row = _changed(connection, office, key_id, "key.expired", at, {"expires_at": when})
    _record(connection, office, "key.expired", at, info, expires_at=_iso(when))
    return _info(row)


def rotate(
    connection: Connection, office: Office, key_id: str, grace: timedelta, at: datetime, *, replace: bool = False
) -> Issued | Refusal:
    """Give a key a new secret; the old one works until ``grace`` has passed. Id and name stay.

    Idempotent in effect: while one rotation runs, another changes nothing (a retried command must not lock out the
    secret that clients still use). ``replace`` gives out another new secret, for one whose answer was lost; the old
    secret and its end stay as they are.
    """
    info = _locked(connection, key_id)
    if info is None:
        return Refusal(f"no key {key_id}")
    state = info.state(at)
    if state in {"revoked", "expired"}:
        return Refusal(f"key {key_id} is {state}; issue a new one")
    if state == "rotating" and not replace:
        return Refusal(f"key {key_id} is being rotated already: its old secret works until {_iso(info.rotated_until)}")
    key = keys.generate(office.environment, office.randomness)
    secret = keys.ApiKey(info.environment, info.id, key.secret)
    values: dict[str, Any] = {"secret_mac": keys.mac(office.pepper, key.secret)}
    if state != "rotating":
        values |= {"rotated_mac": API_KEYS.c.secret_mac, "rotated_until": at + grace}
    rotated = _info(_changed(connection, office, key_id, "key.rotated", at, values))
    _record(connection, office, "key.rotated", at, rotated, old_secret_until=_iso(rotated.rotated_until))
    return Issued(rotated, Secret(secret.text().encode()))


def deny_token(connection: Connection, office: Office, issuer: str, jti: str, at: datetime) -> bool:
    """Revoke one token, on every sidecar; whether that is new."""
    values = {"issuer": issuer, "jti": jti, "until": at + LONGEST_TOKEN, "created_at": at, "created_by": office.actor}
    add = pg_insert(TOKEN_DENIALS).values(values).on_conflict_do_nothing().returning(TOKEN_DENIALS.c.id)
    done = connection.execute(add).first()
    if done is not None:
        office.record(connection, KeyEvent("token.revoked", at, office.actor, {"issuer": issuer, "jti": jti}))
    return done is not None


def deny_tenant(connection: Connection, office: Office, tenant: str, before: datetime, at: datetime) -> bool | Refusal:
    """Revoke all of a tenant's tokens that were issued before a moment; whether that is new. Never taken back.

    So it may not be a later moment than now, or the tenant would get no good token until then.
    """
    if before > at + MAX_AHEAD:
        return Refusal(
            f"{_iso(before)} is yet to come: until then every new token of {tenant} would be refused, for good"
        )
    values = {
        "tenant": tenant, "issued_before": before, "until": max(at, before) + LONGEST_TOKEN, "created_at": at,
        "created_by": office.actor,
    }  # fmt: skip
    new = pg_insert(TOKEN_DENIALS).values(values)
    later = TOKEN_DENIALS.c.issued_before < new.excluded.issued_before
    renewed = {name: new.excluded[name] for name in ("issued_before", "until", "created_at", "created_by")}
    change = new.on_conflict_do_update(index_elements=["tenant"], set_=renewed, where=later)
    done = connection.execute(change.returning(TOKEN_DENIALS.c.id)).first()
    if done is not None:
        detail = {"tenant": tenant, "issued_before": _iso(before)}
        office.record(connection, KeyEvent("token.revoked", at, office.actor, detail))
    return done is not None


def forget_denials(connection: Connection, at: datetime) -> int:
    """Remove the denials that no living token can meet any more; how many."""
    return connection.execute(delete(TOKEN_DENIALS).where(TOKEN_DENIALS.c.until <= at)).rowcount


def _step(office: Office, kind: str, at: datetime) -> dict[str, str]:
    return {"kind": kind, "at": at.astimezone(UTC).isoformat(timespec="seconds"), "actor": office.actor}


def _changed(
    connection: Connection, office: Office, key_id: str, kind: str, at: datetime, values: Mapping[str, Any]
) -> Row[Any]:
    """The row with ``values``, and the step added to its history."""
    history = API_KEYS.c.history.op("||")(cast([_step(office, kind, at)], JSONB))
    change = update(API_KEYS).where(API_KEYS.c.id == key_id).values(**values, history=history)
    return connection.execute(change.returning(*_COLUMNS)).one()


def _locked(connection: Connection, key_id: str) -> KeyInfo | None:
    query = select(*_COLUMNS).where(API_KEYS.c.id == key_id).with_for_update()
    row = connection.execute(query).one_or_none()
    return None if row is None else _info(row)


def _info(row: Row[Any]) -> KeyInfo:
    values = dict(zip(row._fields, row, strict=True))
    for name in ("models", "roles", "methods", "regions", "networks", "history"):
        values[name] = None if values[name] is None else tuple(values[name])
    return KeyInfo(**values)


def _record(connection: Connection, office: Office, kind: str, at: datetime, info: KeyInfo, **more: str | None) -> None:
    detail = {"key": info.id, "tenant": info.tenant, "name": info.name}
    detail |= {name: value for name, value in more.items() if value is not None}
    office.record(connection, KeyEvent(kind, at, office.actor, detail))


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")

"""The table of API keys and its life cycle: issue, list, show, revoke, rotate; it holds MACs, never secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Index,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from sidecar.core.model import Secret
from sidecar.identity import keys
from sidecar.identity.keys import Randomness

METADATA: Final = MetaData(schema="warden")
CHANNEL: Final = "warden_api_keys"  # the table's trigger notifies it of every change

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
    CheckConstraint("octet_length(secret_mac) = 32", name="api_keys_secret_mac"),
    CheckConstraint("(rotated_mac is null) = (rotated_until is null)", name="api_keys_rotation"),
    Index("api_keys_tenant", "tenant"),
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

    kind: str  # key.issued | key.rotated | key.revoked
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


_SECRET: Final = frozenset({"secret_mac", "rotated_mac"})
_COLUMNS: Final = [column for column in API_KEYS.c if column.name not in _SECRET]


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
        "models": None if new.models is None else list(new.models),
        "roles": list(new.roles),
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


def revoke(connection: Connection, office: Office, key_id: str, at: datetime) -> KeyInfo | Refusal:
    """Revoke for good, both secrets at once. Idempotent: a second time changes and records nothing."""
    info = _locked(connection, key_id)
    if info is None:
        return Refusal(f"no key {key_id}")
    if info.revoked_at is not None:
        return info
    change = update(API_KEYS).where(API_KEYS.c.id == key_id).values(revoked_at=at)
    row = connection.execute(change.returning(*_COLUMNS)).one()
    _record(connection, office, "key.revoked", at, info)
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
    change = update(API_KEYS).where(API_KEYS.c.id == key_id).values(values)
    row = connection.execute(change.returning(*_COLUMNS)).one()
    rotated = _info(row)
    _record(connection, office, "key.rotated", at, rotated, old_secret_until=_iso(rotated.rotated_until))
    return Issued(rotated, Secret(secret.text().encode()))


def _locked(connection: Connection, key_id: str) -> KeyInfo | None:
    query = select(*_COLUMNS).where(API_KEYS.c.id == key_id).with_for_update()
    row = connection.execute(query).one_or_none()
    return None if row is None else _info(row)


def _info(row: Row[Any]) -> KeyInfo:
    values = dict(zip(row._fields, row, strict=True))
    models = values.pop("models")
    roles = tuple(values.pop("roles"))
    return KeyInfo(**values, models=None if models is None else tuple(models), roles=roles)


def _record(connection: Connection, office: Office, kind: str, at: datetime, info: KeyInfo, **more: str | None) -> None:
    detail = {"key": info.id, "tenant": info.tenant, "name": info.name}
    detail |= {name: value for name, value in more.items() if value is not None}
    office.record(connection, KeyEvent(kind, at, office.actor, detail))


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")

"""Least roles of the audit database: who may do what in it, made, revoked, and told whether it is in force."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit.tables import database_roles
from sidecar.core.model import Secret

__all__ = [
    "SIDECAR_CONNECTIONS",
    "InForce",
    "RoleError",
    "RoleKind",
    "dsn_for",
    "enroll",
    "grant_all",
    "in_force",
    "is_of",
    "revoke",
    "role_name",
]

# Of a sidecar's login: shipping and an import take four each, keys two; the rest is for what a lost node still holds.
SIDECAR_CONNECTIONS: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,53}")  # a role's name has at most 63 bytes
GUARDED: Final = ("audit_logs", "journal_cursors", "audit_leaves", "audit_checkpoints", "audit_events", "usage_hours")
APPEND_ONLY: Final = ("audit_calls", "audit_events", "audit_leaves", "audit_checkpoints", "fleet_entries", "bundles")


class RoleError(Exception):
    """It cannot be done like this; the message says why."""


class RoleKind(enum.StrEnum):
    """What a login is for."""

    SIDECAR = "sidecar"  # serve and ship: writes its own log, reads no record
    READER = "reader"  # search, show, export, verify, usage; each of them is put on record
    OFFICER = "officer"  # a reader who also places holds, erases and confirms
    KEYS = "keys"  # API keys and revoked tokens


_PREFIX: Final = {
    RoleKind.SIDECAR: "warden_sc_",
    RoleKind.READER: "warden_rd_",
    RoleKind.OFFICER: "warden_of_",
    RoleKind.KEYS: "warden_ky_",
}

_EVIDENCE: Final = (
    "audit_calls", "audit_events", "audit_logs", "audit_leaves", "audit_checkpoints", "fleet_entries",
    "journal_cursors", "data_keys", "audit_terms", "legal_holds", "erasures", "bundles", "database_roles",
    "usage_hours",
)  # fmt: skip
_EVERYBODY: Final = ("SELECT ON warden.database_facts", "SELECT ON warden.alembic_version")
_KEY_VERSIONS: Final = "EXECUTE ON FUNCTION warden.key_versions(text)"
_READS: Final = (*(f"SELECT ON warden.{table}" for table in _EVIDENCE), "INSERT ON warden.audit_events", _KEY_VERSIONS)

GRANTS: Final = {
    RoleKind.SIDECAR: (
        *_EVERYBODY,
        "INSERT ON warden.audit_calls",
        "SELECT, INSERT ON warden.audit_events",  # reads what officers did, for the fleet's log; row-level security
        "SELECT, INSERT, UPDATE ON warden.audit_logs",
        "SELECT, INSERT, UPDATE ON warden.journal_cursors",
        "SELECT, INSERT, UPDATE ON warden.usage_hours",
        "INSERT ON warden.audit_leaves",
        "SELECT, INSERT ON warden.audit_checkpoints",
        "SELECT, INSERT ON warden.fleet_entries",
        "INSERT ON warden.data_keys",
        "INSERT ON warden.audit_terms",
        "INSERT ON warden.bundles",
        "SELECT ON warden.erasures",  # so that a late key of an erased subject is not stored
        "SELECT ON warden.api_keys",
        "UPDATE (last_used_at) ON warden.api_keys",
        "SELECT ON warden.token_denials",
        "EXECUTE ON FUNCTION warden.make_partition(text, date)",
        "EXECUTE ON FUNCTION warden.living_keys(text[])",
        _KEY_VERSIONS,
        "EXECUTE ON FUNCTION warden.restore_events(bigint)",
    ),
    RoleKind.READER: (*_EVERYBODY, *_READS),
    RoleKind.OFFICER: (
        *_EVERYBODY,
        *_READS,
        "INSERT, UPDATE ON warden.legal_holds",
        "INSERT, UPDATE ON warden.erasures",
        "UPDATE ON warden.data_keys",
        "DELETE ON warden.audit_terms",
    ),
    RoleKind.KEYS: (
        *_EVERYBODY,
        "SELECT, INSERT, UPDATE ON warden.api_keys",
        "SELECT, INSERT, UPDATE, DELETE ON warden.token_denials",
        "INSERT ON warden.audit_events",
    ),
}


def role_name(kind: RoleKind, name: str) -> str:
    """Raises RoleError for a name that no role can bear."""
    if not _NAME.fullmatch(name):
        raise RoleError(f"{name!r} cannot be a role: 1 to 53 letters, digits, dots, underscores and dashes")
    return _PREFIX[kind] + name


def is_of(kind: RoleKind, login: str) -> bool:
    """Whether that is a login of its own, as ``enroll`` makes them: one person's, or one service's."""
    return login.startswith(_PREFIX[kind])


def enroll(connection: sa.Connection, kind: RoleKind, name: str, secret: Secret, at: datetime, by: str) -> str:
    """Make the login, or give it a new secret; its name. Raises RoleError and the database's errors.

    The server never sees the secret: it is given its SCRAM verifier.
    """
    role, driver = role_name(kind, name), _driver(connection)
    verifier = driver.pgconn.encrypt_password(secret.reveal(), role.encode(), b"scram-sha-256").decode()
    there = connection.scalar(sa.text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role})
    act = "ALTER" if there else "CREATE"
    limit = f"CONNECTION LIMIT {SIDECAR_CONNECTIONS if kind is RoleKind.SIDECAR else -1}"
    rights = f"LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS {limit}"
    text = f"{act} ROLE {{}} {rights} PASSWORD {{}}"
    _run(driver, sql.SQL(text).format(sql.Identifier(role), sql.Literal(verifier)))
    _grant(driver, kind, role)
    values = {"kind": str(kind), "name": name, "made_at": at, "made_by": by, "revoked_at": None}
    statement = pg_insert(database_roles).values(role=role, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["role"], set_=values))
    return role


def dsn_for(dsn: str, role: str, secret: Secret, host: str | None = None) -> str:
    """The same database for another login, in libpq's key=value form; ``host``: HOST[:PORT] instead of its own."""
    given = psycopg.conninfo.conninfo_to_dict(dsn.replace("postgresql+psycopg://", "postgresql://", 1))
    if host is not None:
        name, _, port = host.rpartition(":")
        given |= {"host": name, "port": port} if name else {"host": host}
    return psycopg.conninfo.make_conninfo("", **{**given, "user": role, "password": secret.reveal().decode()})


def revoke(connection: sa.Connection, kind: RoleKind, name: str, at: datetime) -> bool:
    """Whether there was such a role. Its connections end, and it can make no new one."""
    role, driver = role_name(kind, name), _driver(connection)
    if not connection.scalar(sa.text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}):
        return False
    _run(driver, sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL").format(sql.Identifier(role)))
    for grant in GRANTS[kind]:
        _run(driver, sql.SQL(f"REVOKE {grant} FROM {{}}").format(sql.Identifier(role)))
    _run(driver, sql.SQL("REVOKE USAGE ON SCHEMA warden FROM {}").format(sql.Identifier(role)))
    connection.execute(sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :role"),
                       {"role": role})  # fmt: skip
    connection.execute(sa.update(database_roles).where(database_roles.c.role == role).values(revoked_at=at))
    return True


def grant_all(connection: sa.Connection) -> None:
    """Give every role that is enrolled what this release's tables ask for."""
    c = database_roles.c
    query = sa.select(c.role, c.kind).where(c.revoked_at.is_(None))
    for role, kind in connection.execute(query).all():
        if connection.scalar(sa.text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}):
            _grant(_driver(connection), RoleKind(kind), role)


def _grant(driver: psycopg.Connection[Any], kind: RoleKind, role: str) -> None:
    _run(driver, sql.SQL("GRANT USAGE ON SCHEMA warden TO {}").format(sql.Identifier(role)))
    for grant in GRANTS[kind]:
        _run(driver, sql.SQL(f"GRANT {grant} TO {{}}").format(sql.Identifier(role)))


def _driver(connection: sa.Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _run(driver: psycopg.Connection[Any], statement: sql.Composed) -> None:
    driver.execute(statement)


# --- whether it holds ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class InForce:
    """What keeps the evidence append-only in this database, for whoever is connected."""

    connected_as: str
    kind: str  # a RoleKind, "superuser", "owner" or "other"
    triggers_off: list[str] = field(default_factory=list)  # tables and partitions on which one is missing or off
    row_security_off: list[str] = field(default_factory=list)
    can_change: list[str] = field(default_factory=list)  # evidence that this login may alter, delete or truncate
    roles: list[dict[str, Any]] = field(default_factory=list)

    @property
    def append_only(self) -> bool:
        return not (self.triggers_off or self.row_security_off)


_TRIGGERS: Final = sa.text("""
WITH evidence AS (
    SELECT oid, relname FROM pg_class WHERE relnamespace = 'warden'::regnamespace AND relname = ANY(:tables)
    UNION ALL SELECT c.oid, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'warden.audit_calls'::regclass)
SELECT relname FROM evidence e WHERE (
    SELECT bit_or(t.tgtype & 56) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = e.oid AND t.tgenabled = 'A' AND p.proname = 'refuse_change') IS DISTINCT FROM 56
ORDER BY 1""")  # pg_trigger.h: 8 DELETE, 16 UPDATE, 32 TRUNCATE
_SECURITY: Final = sa.text(
    "SELECT relname FROM pg_class WHERE relnamespace = 'warden'::regnamespace AND relname = ANY(:tables)"
    " AND NOT (relrowsecurity AND relforcerowsecurity) ORDER BY 1"
)
_CAN: Final = sa.text(
    "SELECT relname FROM pg_class WHERE relnamespace = 'warden'::regnamespace AND relname = ANY(:tables)"
    " AND has_table_privilege(oid, 'UPDATE, DELETE, TRUNCATE') ORDER BY 1"
)
_WHO: Final = sa.text(
    "SELECT current_user::text, r.rolsuper, n.nspowner = r.oid FROM pg_roles r, pg_namespace n"
    " WHERE r.rolname = current_user AND n.nspname = 'warden'"
)


def in_force(connection: sa.Connection) -> InForce:
    """Asks the catalogue; what was revoked or enrolled is told to who may read it."""
    user, superuser, owner = connection.execute(_WHO).one()
    kind = next((str(kind) for kind, prefix in _PREFIX.items() if user.startswith(prefix)), "other")
    found = InForce(user, "superuser" if superuser else "owner" if owner else kind)
    evidence = {"tables": list(APPEND_ONLY)}
    found.triggers_off = list(connection.scalars(_TRIGGERS, evidence))
    found.row_security_off = list(connection.scalars(_SECURITY, {"tables": list(GUARDED)}))
    found.can_change = list(connection.scalars(_CAN, evidence))
    if connection.scalar(sa.text("SELECT has_table_privilege('warden.database_roles', 'SELECT')")):
        c = database_roles.c
        rows = connection.execute(sa.select(c.role, c.kind, c.made_at, c.made_by, c.revoked_at).order_by(c.role))
        found.roles = [dict(row) for row in rows.mappings()]
    return found

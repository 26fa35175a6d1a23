"""`warden db`: prepare the audit database for this release, and say what it is."""

from __future__ import annotations

import os
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from audit import roles, store
from audit.roles import InForce, RoleKind
from audit.store import AHEAD_DAYS
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.database import database
from sidecar.cli.desk import operator, record_act
from sidecar.core.model import Secret
from sidecar.runtime import migrate
from sidecar.runtime.migrate import Status

app = typer.Typer(
    no_args_is_help=True, help="The audit database: upgrade, status; logins of its own for each who uses it."
)


@app.command()
def upgrade(
    config: ConfigOption = DEFAULT_CONFIG, jurisdiction: JurisdictionOption = None, *, as_json: JsonOption = False
) -> None:
    """Bring the database to this release's schema. Doing it twice, or twice at once, is harmless."""
    with database(config, jurisdiction, application="warden-db") as opened:
        try:
            before, after = migrate.upgrade(opened.engine, jurisdiction=opened.jurisdiction, today=_today())
            if before.revision != after.revision:
                with store.transaction(opened.engine) as connection:
                    told = {"from": before.revision or "", "to": after.revision or ""}
                    record_act(connection, "database_upgraded", told)
        except migrate.BusyError as fault:
            fail(Exit.DEPENDENCY, str(fault))
    if as_json:
        emit({"from": before.revision, **_shape(after)})
        return
    step = "was current" if before.revision == after.revision else f"upgraded from {before.revision or 'nothing'}"
    sys.stdout.write(f"revision {after.revision} ({step}), jurisdiction {after.jurisdiction}\n")


@app.command()
def status(
    config: ConfigOption = DEFAULT_CONFIG, jurisdiction: JurisdictionOption = None, *, as_json: JsonOption = False
) -> None:
    """What the database is, and what keeps its evidence append-only for whom.

    Exit 1 where it needs an upgrade, belongs to another jurisdiction, or a guard is off.
    """
    with database(config, jurisdiction, application="warden-db") as opened:
        found = migrate.status(opened.engine, today=_today())
        configured = opened.jurisdiction
        shape = _shape(found)
        if found.current:
            with store.transaction(opened.engine) as connection:
                shape |= _guards(roles.in_force(connection), as_json=as_json)
    if as_json:
        emit(shape)
    else:
        table = Table(show_header=False)
        for name, value in shape.items():
            table.add_row(name.replace("_", " "), "" if value is None else str(value))
        Console(file=sys.stdout).print(table)
    if not found.current:
        fail(Exit.NO, "the database needs `warden db upgrade`")
    if found.jurisdiction != configured:
        fail(Exit.NO, f"the database belongs to jurisdiction {found.jurisdiction!r}, not {configured!r}")
    if not shape["append_only"]:
        fail(Exit.NO, "a guard of the evidence is off: run `warden db upgrade`, and `warden audit verify`")


@app.command()
def enroll(
    name: Annotated[str, typer.Argument(help="A sidecar's name (sidecar.name), or a person's or service's.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="A new file for the DSN, mode 0600.")],
    kind: Annotated[RoleKind, typer.Option("--for", help="What the login may do.")] = RoleKind.SIDECAR,
    host: Annotated[str | None, typer.Option(help="HOST[:PORT] in the DSN, where a pooler stands between.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Make a login with the least it needs, and write its DSN, secret included, once. Again: a new secret.

    A sidecar's login adds to its own log and reads no record; a reader's reads; an officer's also holds and erases; one
    for keys issues and revokes API keys. Needs a DSN that may create roles, as the tables' owner.
    """
    secret = Secret(secrets.token_urlsafe(32).encode())
    with database(config, jurisdiction, application="warden-db") as opened:
        _write_new(out, "")
        try:
            with store.transaction(opened.engine) as connection:
                store.check_jurisdiction(connection, opened.jurisdiction)
                role = roles.enroll(connection, kind, name, secret, datetime.now(UTC), f"cli:{operator()}")
                record_act(connection, "role_enrolled", {"role": role, "kind": str(kind)})
                out.write_text(roles.dsn_for(opened.dsn, role, secret, host) + "\n", encoding="utf-8")
        except BaseException as fault:
            out.unlink(missing_ok=True)
            if isinstance(fault, roles.RoleError):
                fail(Exit.USAGE, str(fault))
            raise
    emit({"role": role, "kind": str(kind), "dsn_file": str(out)}) if as_json else typer.echo(f"{role}: DSN in {out}")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="As it was enrolled.")],
    kind: Annotated[RoleKind, typer.Option("--for", help="What the login was for.")] = RoleKind.SIDECAR,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
) -> None:
    """End a login: its connections are cut and its rights taken away; what it wrote stays."""
    with database(config, jurisdiction, application="warden-db") as opened:
        try:
            with store.transaction(opened.engine) as connection:
                done = roles.revoke(connection, kind, name, datetime.now(UTC))
                if done:
                    record_act(connection, "role_revoked", {"role": roles.role_name(kind, name), "kind": str(kind)})
        except roles.RoleError as fault:
            fail(Exit.USAGE, str(fault))
    if not done:
        fail(Exit.NO, f"no {kind} {name!r} is enrolled")


def _write_new(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        fail(Exit.USAGE, f"{path}: {fault.strerror}")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _shape(found: Status) -> dict[str, Any]:
    return {
        "revision": found.revision,
        "head": found.head,
        "current": found.current,
        "jurisdiction": found.jurisdiction,
        "partition_days": found.partition_days,
        "partition_days_wanted": AHEAD_DAYS,
    }


def _guards(found: InForce, *, as_json: bool) -> dict[str, Any]:
    """What keeps the evidence append-only, and whom it binds."""
    listed = [
        {name: value.isoformat() if isinstance(value, datetime) else value for name, value in each.items()}
        for each in found.roles
    ]
    told = {
        "append_only": found.append_only,
        "triggers_off": found.triggers_off,
        "row_security_off": found.row_security_off,
        "connected_as": found.connected_as,
        "connected_kind": found.kind,
        "connected_may_change": found.can_change,
        "roles": listed,
    }
    if as_json:
        return told
    alive = [str(each["role"]) for each in listed if each["revoked_at"] is None]
    lists = {name: ", ".join(value) for name, value in told.items() if isinstance(value, list) and name != "roles"}
    return {**told, **lists, "roles": ", ".join(alive)}


def _today() -> Any:
    return datetime.now(UTC).date()

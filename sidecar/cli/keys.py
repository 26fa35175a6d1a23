"""`warden keys`: the life of API keys, from issue to revoke or expire; a secret is printed once, when it is made."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.desk import done, key_desk, warn_of_unnamed
from sidecar.cli.words import (
    ROLES_HELP,
    duration,
    known_methods,
    known_roles,
    moment,
    names,
    networks,
    utc_now,
)
from sidecar.identity import leaks, store
from sidecar.identity.keys import ID_LENGTH
from sidecar.identity.store import Issued, KeyInfo, NewKey

app = typer.Typer(
    no_args_is_help=True, help="API keys: issue, list, show, rotate, revoke, expire; end those that leaked."
)

_WHERE = 500  # characters
_PIPE_WIDTH = 240  # columns


def _key_id(value: str) -> str:
    """Too long for an id: most likely the whole key, whose secret must not be told again, nor recorded."""
    if len(value) > ID_LENGTH:
        fail(Exit.USAGE, "give the 12 characters in the middle of the key, its id, and never the key itself")
    return value


KeyId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The key's public id: the 12 characters in its middle.", callback=_key_id),
]


@app.command()
def issue(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What the key is called in records and lists.")],
    expires: Annotated[str | None, typer.Option(help="After which it no longer works, such as 90d.")] = None,
    models: Annotated[str | None, typer.Option(help="Narrow it to these models, such as chat,embed-*.")] = None,
    roles: Annotated[str, typer.Option(help=ROLES_HELP)] = "tenant",
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    methods: Annotated[
        str | None, typer.Option(help="Narrow it to these methods, such as ModelInfer,ModelStreamInfer.")
    ] = None,
    regions: Annotated[str | None, typer.Option(help="Narrow it to sidecars in these regions.")] = None,
    cidr: Annotated[
        str | None, typer.Option(help="Narrow it to callers from these networks, such as 10.0.0.0/8,2001:db8::/32.")
    ] = None,
    not_before: Annotated[
        str | None, typer.Option(help="From when it works: a time such as 2027-01-01T00:00:00Z, or after 2h.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Make a key and print it, once."""
    for what, value in (("--tenant", tenant), ("--name", name)):
        if not 0 < len(value) <= 255 or not value.isprintable():
            fail(Exit.USAGE, f"{what} must be 1 to 255 printable characters")
    at = utc_now()
    new = NewKey(
        tenant=tenant,
        name=name,
        expires_at=None if expires is None else at + duration("--expires", expires),
        models=None if models is None else names("--models", models),
        roles=known_roles(roles),
        methods=None if methods is None else known_methods(methods),
        regions=None if regions is None else names("--regions", regions),
        networks=None if cidr is None else networks(cidr),
        not_before=None if not_before is None else moment("--not-before", not_before, at),
    )
    desk = key_desk(config)
    with desk.transaction() as connection:
        issued = done(store.issue(connection, desk.office, new, at))
    warn_of_unnamed(desk.settings, tenant, new.models or ())
    _tell_secret(issued, as_json=as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    as_json: JsonOption = False,
) -> None:
    """All keys, without their secrets; with --json one object a line."""
    with key_desk(config).transaction() as connection:
        found = store.list_keys(connection, tenant)
    at = utc_now()
    if as_json:
        for info in found:
            emit(_shape(info, at))
        return
    table = Table(Column("id", no_wrap=True))  # whole, however narrow the terminal: it is what other commands take
    for title in ("tenant", "name", "state", "expires", "models", "roles", "last used"):
        table.add_column(title, overflow="fold")
    for info in found:
        models = "all" if info.models is None else ", ".join(info.models)
        table.add_row(
            info.id,
            info.tenant,
            info.name,
            info.state(at),
            _iso(info.expires_at) or "never",
            models,
            ", ".join(info.roles),
            _iso(info.last_used_at) or "",
        )
    # Names are told as they are: brackets in one are no markup. Into a file or a pipe, lines are as long as they need.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(file=sys.stdout, width=width, markup=False, emoji=False).print(table)


@app.command()
def show(key_id: KeyId, config: ConfigOption = DEFAULT_CONFIG, *, as_json: JsonOption = False) -> None:
    """One key, without its secret."""
    with key_desk(config).transaction() as connection:
        info = store.show(connection, key_id)
    if info is None:
        fail(Exit.NO, f"no key {key_id}")
    _tell(info, as_json=as_json)


@app.command()
def rotate(
    key_id: KeyId,
    grace: Annotated[str, typer.Option(help="How long the old secret still works.")] = "24h",
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Another new secret while a rotation runs; the first is lost."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Give a key a new secret, printed once; id and name stay, and the old secret works until the grace ends."""
    overlap = duration("--grace", grace)
    desk = key_desk(config)
    with desk.transaction() as connection:
        issued = done(store.rotate(connection, desk.office, key_id, overlap, utc_now(), replace=replace))
    _tell_secret(issued, as_json=as_json)


@app.command()
def revoke(key_id: KeyId, config: ConfigOption = DEFAULT_CONFIG, *, as_json: JsonOption = False) -> None:
    """End a key for good, everywhere, within about a second."""
    desk = key_desk(config)
    with desk.transaction() as connection:
        info = done(store.revoke(connection, desk.office, key_id, utc_now()))
    _tell(info, as_json=as_json)


@app.command()
def leaked(
    where: Annotated[str, typer.Option(help="Where it was found, such as a commit's URL; recorded.")] = "",
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line on stdout.")] = False,
) -> None:
    """Find keys in the text on stdin (a commit, a log, a scanner's report), and revoke those that are ours.

    A key is never an argument: those are seen by everyone on the machine. Exit 1: no key of ours is in it.
    """
    if len(where) > _WHERE or (where and not where.isprintable()) or leaks.find(where.encode()):
        fail(Exit.USAGE, f"--where must be at most {_WHERE} printable characters, and hold no key")
    desk = key_desk(config)
    text = sys.stdin.buffer.read(leaks.MAX_TEXT + 1)
    if len(text) > leaks.MAX_TEXT:
        fail(Exit.USAGE, f"stdin: more than {leaks.MAX_TEXT} bytes; give it in pieces")
    found = leaks.find(text)
    with desk.transaction() as connection:
        results = [leaks.report(connection, desk.office, key, where, utc_now()) for key in found]
    for leak in results:
        known = {} if leak.info is None else {"tenant": leak.info.tenant, "name": leak.info.name}
        if as_json:
            emit({"id": leak.key_id, "result": leak.result, **known})
        else:
            sys.stdout.write(f"{leak.key_id}  {leak.result:8} {' '.join(known.values())}\n")
    if not any(leak.info for leak in results):
        fail(Exit.NO, "no key of ours was found")


@app.command()
def expire(
    key_id: KeyId,
    when: Annotated[str, typer.Option("--when", help="A time, or how long from now; 0s is now.")] = "0s",
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    as_json: JsonOption = False,
) -> None:
    """Let a key end, now or at a time; calls under way are let finish (`revoke` ends them)."""
    at = utc_now()
    desk = key_desk(config)
    with desk.transaction() as connection:
        info = done(store.expire(connection, desk.office, key_id, moment("--when", when, at), at))
    _tell(info, as_json=as_json)


# --- what is said -------------------------------------------------------------------------------------------------


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _shape(info: KeyInfo, at: datetime) -> dict[str, Any]:
    return {
        "id": info.id,
        "tenant": info.tenant,
        "name": info.name,
        "environment": info.environment,
        "state": info.state(at),
        "created_at": _iso(info.created_at),
        "created_by": info.created_by,
        "expires_at": _iso(info.expires_at),
        "not_before": _iso(info.not_before),
        "revoked_at": _iso(info.revoked_at),
        "rotating_until": _iso(info.rotated_until),
        "models": None if info.models is None else list(info.models),
        "roles": list(info.roles),
        "methods": None if info.methods is None else list(info.methods),
        "regions": None if info.regions is None else list(info.regions),
        "networks": None if info.networks is None else list(info.networks),
        "last_used_at": _iso(info.last_used_at),
        "history": [dict(step) for step in info.history],
    }


def _tell(info: KeyInfo, *, as_json: bool) -> None:
    shape = _shape(info, utc_now())
    if as_json:
        emit(shape)
        return
    for name, value in shape.items():
        told = [f"{step['kind']} {step['at']} by {step['actor']}" for step in value] if name == "history" else value
        said = ", ".join(told) if isinstance(told, list) else told
        sys.stdout.write(f"{name:15} {said if said is not None else '-'}\n")


def _tell_secret(issued: Issued, *, as_json: bool) -> None:
    info, key = issued.info, issued.key.reveal().decode()
    if as_json:
        emit(
            {
                "id": info.id,
                "key": key,
                "tenant": info.tenant,
                "name": info.name,
                "expires_at": _iso(info.expires_at),
            }
            | ({"old_secret_until": _iso(info.rotated_until)} if info.rotated_until is not None else {})
        )
        return
    sys.stdout.write(f"{key}\n")
    old = f"; the old secret works until {_iso(info.rotated_until)}" if info.rotated_until is not None else ""
    sys.stderr.write(
        f"Key {info.id} ({info.name}) of {info.tenant}, expires {_iso(info.expires_at) or 'never'}{old}.\n"
        "It is shown this once; keep it where secrets are kept.\n"
    )

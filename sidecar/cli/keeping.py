"""`warden audit hold`, `erase` and `retain`: what must be kept, and what must not be any longer."""

from __future__ import annotations

import itertools
import os
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer

from audit import erasing, store
from audit.certificate import certificate, read_certificate
from audit.decisions import in_force
from audit.erasing import Erasure, ErasureError, HeldError, Officer, UnknownError
from audit.fleet import FLEET
from audit.journal_bounds import segment_seconds
from audit.keys import KeyFaultError
from audit.logbook import log_signer, origin_of
from audit.object_sweep import sweep
from audit.opening import Opener
from audit.retain import BusyError, RestoredError
from audit.retain import retain as run_retention
from audit.tlog import NoteError, Verifier, parse_verifier
from policies.bundle import compile_bundle
from policies.bundle import load as load_bundle
from policies.files import unpack
from sidecar.cli.anchors import outside
from sidecar.cli.audit import app
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.database import Database, database, opener_of, root_of, settings_of
from sidecar.cli.desk import operator
from sidecar.cli.records import harmless
from sidecar.runtime.clock import now
from sidecar.runtime.ids import uuid7
from sidecar.runtime.shipping import tensor_store

__all__ = ["Desk", "app", "officers_desk"]

_holds = typer.Typer(no_args_is_help=True, help="Legal holds: what neither erasure nor retention may touch.")
app.add_typer(_holds, name="hold")

_Tenant = Annotated[str, typer.Option("--tenant", help="Whose records.")]
_Subject = Annotated[str | None, typer.Option("--subject", help="Whom the tenant acts for, as it said.")]
_Reason = Annotated[str, typer.Option("--reason", help="Why; kept with your name.")]


@dataclass(frozen=True, slots=True)
class Desk:
    """What an officer's act needs."""

    opened: Database
    connection: sa.Connection
    opener: Opener
    officer: Officer


@contextmanager
def officers_desk(config: Path, jurisdiction: str | None, reason: str) -> Iterator[Desk]:
    """One transaction of an officer's; its faults end the command."""
    at = now()
    ids = (uuid7(at.wall_ns, os.urandom(10)) for _ in itertools.count())
    officer = Officer(f"cli:{operator()}", datetime.fromtimestamp(at.wall, UTC), ids, reason)
    with database(config, jurisdiction, application="warden-audit") as opened:
        try:
            with store.transaction(opened.engine, statement_ms=300_000, deadline_s=3600.0) as connection:
                store.check_jurisdiction(connection, opened.jurisdiction)
                yield Desk(opened, connection, opener_of(opened), officer)
        except (HeldError, UnknownError) as fault:
            fail(Exit.NO, str(fault))
        except ErasureError as fault:
            fail(Exit.USAGE, str(fault))


@_holds.command(name="add")
def hold_add(
    tenant: _Tenant,
    reason: _Reason,
    subject: _Subject = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Keep everything of a tenant, or of one of its subjects, until the hold is released."""
    hold_id = uuid7(now().wall_ns, os.urandom(10))
    with officers_desk(config, jurisdiction, reason) as desk:
        erasing.place_hold(desk.connection, desk.opener.provider, desk.officer, hold_id, tenant, subject)
    emit({"id": hold_id, "tenant": tenant}) if as_json else typer.echo(hold_id)


@_holds.command(name="list")
def hold_list(
    config: ConfigOption = DEFAULT_CONFIG, jurisdiction: JurisdictionOption = None, *, as_json: JsonOption = False
) -> None:
    """The holds in force."""
    with officers_desk(config, jurisdiction, "") as desk:
        found = erasing.holds(desk.connection, desk.opener.provider)
        erasing.record_act(desk.connection, desk.officer, "holds_read", {"holds": [hold.id for hold in found]})
    for hold in found:
        told = {
            "id": hold.id, "tenant": hold.tenant, "subject": hold.subject, "reason": hold.reason,
            "placed_by": hold.placed_by, "placed_at": hold.placed_at.astimezone(UTC).isoformat(),
        }  # fmt: skip
        emit(told) if as_json else typer.echo(harmless("  ".join(str(value or "-") for value in told.values())))


@_holds.command(name="release")
def hold_release(
    hold_id: str, reason: _Reason, config: ConfigOption = DEFAULT_CONFIG, jurisdiction: JurisdictionOption = None
) -> None:
    """End a hold; exit 1 where there is none of that id in force."""
    with officers_desk(config, jurisdiction, reason) as desk:
        done = erasing.release_hold(desk.connection, desk.officer, hold_id)
    if not done:
        fail(Exit.NO, f"no hold {hold_id} is in force")


@app.command()
def erase(
    tenant: Annotated[str | None, typer.Option(help="Whose subject.")] = None,
    subject: _Subject = None,
    reason: Annotated[str, typer.Option(help="Why; kept with your name.")] = "",
    confirm: Annotated[str | None, typer.Option(help="ID: confirm what another person asked for.")] = None,
    show: Annotated[str | None, typer.Option(help="ID: the certificate of an erasure.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the certificate, signed, to FILE.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    unknown: Annotated[bool, typer.Option("--unknown", help="Also where nothing is recorded of it yet.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Erase one subject by destroying the keys of everything recorded of it; prints the certificate.

    It says `pending`, and in `depends_on` for what: copies that others may hold (journals, backups of the keys), by the
    configuration and by what each sidecar says it still keeps, and `warden audit retain`, which destroys the tenant's
    old master key; `requested` while a second person must confirm it. `excludes` names what it cannot speak of. Exit 1
    where a hold stands in the way, or nothing is recorded of that subject.
    """
    asked = [confirm is not None, show is not None, tenant is not None or subject is not None]
    if sum(asked) != 1 or (asked[2] and (tenant is None or subject is None)):
        fail(Exit.USAGE, "give --tenant and --subject, or --confirm ID, or --show ID")
    if show is None and not reason.strip():
        fail(Exit.USAGE, "an erasure needs --reason TEXT: it is kept with your name")
    with officers_desk(config, jurisdiction, reason) as desk:
        if show is not None:
            found = erasing.erasure(desk.connection, show, desk.officer.at)
        elif confirm is not None:
            found = erasing.confirm(
                desk.connection, desk.opener, desk.officer, erasure_id=confirm, copies=_copies(desk.opened)
            )
        else:
            assert tenant is not None
            assert subject is not None
            found = erasing.request(
                desk.connection, desk.opener, desk.officer, erasure_id=secrets.token_hex(16), tenant=tenant,
                subject=subject, two_people=_two_people(desk.opened, config, tenant), copies=_copies(desk.opened),
                unknown=unknown,
            )  # fmt: skip
    _certificate(desk.opened, found, as_json=as_json, out=out)


@app.command(name="certificate")
def check_certificate(
    file: Annotated[Path, typer.Argument(help="A certificate, as `erase -o FILE` wrote it.")],
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    keys: Annotated[Path | None, typer.Option(help="Verifier keys, one a line, instead of a configuration.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a certificate's signature, offline, and print what it certifies; exit 1 where it is not signed so.

    Its `state` is of when it was signed: `pending` says until when copies may still be read.
    """
    try:
        note = file.read_text(encoding="utf-8")
        found = read_certificate(note, *_trusted(config, jurisdiction, keys))
    except (OSError, UnicodeDecodeError) as fault:
        fail(Exit.USAGE, f"{file}: {fault}")
    except NoteError as fault:
        fail(Exit.NO, f"{file}: {fault}")
    if as_json:
        emit({"ok": True, **found})
        return
    for name, value in found.items():
        typer.echo(f"{name.replace('_', ' '):14} {harmless(value)}")


def _trusted(config: Path, asked: str | None, keys: Path | None) -> tuple[str, Verifier]:
    """The jurisdiction, and the key of its fleet's log. Raises OSError and NoteError."""
    if keys is None:
        settings = settings_of(config, asked)
        jurisdiction = settings.audit.database.jurisdiction
        return jurisdiction, log_signer(root_of(settings), origin_of(jurisdiction, FLEET)).verifier
    for line in keys.read_text(encoding="utf-8").splitlines():
        if line.strip():
            found = parse_verifier(line)
            _, jurisdiction, log = [*found.name.split("/"), "", ""][:3]
            if log == FLEET:
                return jurisdiction, found
    raise NoteError(f"{keys} has no key of a fleet's log")


@app.command()
def retain(
    config: ConfigOption = DEFAULT_CONFIG, jurisdiction: JurisdictionOption = None, *, as_json: JsonOption = False
) -> None:
    """End what was kept as long as its record says, close erasures whose time has come; run it daily.

    Keys are destroyed at once. A day's records go when all of them are over: first that is put on record, and once a
    signed head of the fleet's log holds it, a later run drops them. Holds are honoured.
    """
    at = now()
    ids = (uuid7(at.wall_ns, os.urandom(10)) for _ in itertools.count())
    officer = Officer(f"cli:{operator()}", datetime.fromtimestamp(at.wall, UTC), ids, "retention")
    with database(config, jurisdiction, application="warden-retain") as opened:
        with store.transaction(opened.engine) as connection:
            store.check_jurisdiction(connection, opened.jurisdiction)
        root = root_of(opened.settings)
        try:
            done = run_retention(
                opened.engine, opener_of(opened), officer, copies=_copies(opened),
                signer_of=lambda log: log_signer(root, origin_of(opened.jurisdiction, log)),
                anchor=outside(opened.settings)[0],
            )  # fmt: skip
        except (BusyError, RestoredError) as fault:
            fail(Exit.NO, str(fault))
        except KeyFaultError:
            _swept(opened, officer.at)  # what lost its keys goes all the same
            raise
        objects, trouble = _swept(opened, officer.at)
    shape = {**done.shape(), "objects": objects}
    if as_json:
        emit(shape)
    else:
        for name, value in shape.items():
            typer.echo(f"{name.replace('_', ' '):14} {', '.join(value) if isinstance(value, list) else value}")
    if trouble:
        fail(Exit.DEPENDENCY, f"what lost its keys is still in the object store, unreadable: {trouble}; run it again")


def _swept(opened: Database, at: datetime) -> tuple[int, str]:
    """How many objects went from the store because their keys are gone, and why no more did."""
    place = tensor_store(opened.settings)
    if place is None:
        return 0, ""
    try:
        with opened.engine.connect() as connection:
            return sweep(connection, place.at.open(), at.date()).objects, ""
    except OSError as fault:
        return 0, str(fault)


def _copies(opened: Database) -> timedelta:
    """How long what was erased may still be read from a journal, a sealed batch or a copy of the keys."""
    audit = opened.settings.audit
    keep = audit.journal.keep
    return timedelta(seconds=max(keep + segment_seconds(keep), audit.keys.backups))


def _two_people(opened: Database, config: Path, tenant: str) -> bool:
    """Whether one person may not erase: by this machine's bundle, or by one that a sidecar loaded last.

    Whoever runs this can write this machine's; what the sidecars decide by is in the database. A tenant that a bundle
    doesn't name, and a bundle that cannot be read, let nobody erase alone.
    """
    own = load_bundle(opened.settings.policy.bundle)
    if isinstance(own, list):
        fail(Exit.USAGE, f"the bundle cannot be read: {own[0]}")
    found = own.tenants.get(tenant)
    if found is None or found.audit.two_people:
        return True
    home = opened.settings.audit.database.jurisdiction  # the pods' own database alone keeps bundles
    with database(config, home, application="warden-audit") as pods, store.transaction(pods.engine) as connection:
        recorded = in_force(connection, datetime.now(UTC) - erasing.WAIT)
    return any(_asks_two(content, tenant) for content in recorded)


def _asks_two(content: bytes, tenant: str) -> bool:
    try:
        bundle = compile_bundle(unpack(content))
    except (ValueError, OSError, EOFError, tarfile.TarError):
        return True
    if isinstance(bundle, list):
        return True
    found = bundle.tenants.get(tenant)
    return found is not None and found.audit.two_people


def _certificate(opened: Database, found: Erasure, *, as_json: bool, out: Path | None) -> None:
    note = certificate(found, opened.jurisdiction, root_of(opened.settings))
    if out is not None:
        try:
            out.write_text(note, encoding="utf-8")
        except OSError as fault:
            fail(Exit.DEPENDENCY, f"{out}: {fault.strerror}; `erase --show {found.id} -o FILE` writes it again")
    if as_json:
        emit({**found.shape(), "note": note})
        return
    for name, value in found.shape().items():
        for one in value if isinstance(value, list) else [value]:
            told = f"{one.get('what')} {one.get('log', '')}: {one.get('why')}" if isinstance(one, dict) else one
            typer.echo(f"{name.replace('_', ' '):16} {harmless(told)}")

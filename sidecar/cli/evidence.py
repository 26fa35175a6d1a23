"""`warden audit verify` (and with it all of `warden audit`): whether the record is what was recorded, all of it."""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NoReturn

import psycopg
import sqlalchemy as sa
import typer

from audit.evidence import Fault
from audit.export import Trust, export
from audit.export_tensors import DIRECTORY
from audit.fleet import FLEET
from audit.logbook import log_signer, origin_of
from audit.search import Filter, SearchError
from audit.store import transaction
from audit.tables import audit_logs
from audit.tlog import Signer, Verifier, parse_verifier
from audit.verify import Options, Report, ResumeError, verify
from audit.verify_export import verify_export
from policies.units import parse_duration
from sidecar.cli.anchors import outside
from sidecar.cli.audit import ReasonOption, RevealOption, asker_of
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.database import Database, database, opener_of, root_of, settings_of
from sidecar.cli.desk import record_act
from sidecar.cli.events import app
from sidecar.cli.filters import (
    CallOption,
    ConversationOption,
    DataClassOption,
    KeyOption,
    ModelOption,
    OutcomeOption,
    PrincipalOption,
    RegionOption,
    RuleOption,
    SinceOption,
    TenantOption,
    UntilOption,
    key_id,
    one_of,
)
from sidecar.cli.records import harmless
from sidecar.cli.times import moment
from sidecar.core.model import OutcomeKind, Secret
from sidecar.runtime.clock import now
from sidecar.runtime.shipping import tensor_store, witnesses_of

__all__ = ["app"]

_TOLD = 50  # faults printed for a person


_Export = Annotated[Path | None, typer.Argument(metavar="[DIR]", help="An export, instead of the database.")]


@app.command(name="export")
def export_command(  # noqa: PLR0917 — one option a filter (DESIGN §6)
    out: Annotated[Path, typer.Option("-o", "--out", help="A directory, new or empty.")],
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    principal: PrincipalOption = None,
    key: KeyOption = None,
    subject: Annotated[str | None, typer.Option(help="Everything about one subject (GDPR 15), with --tenant.")] = None,
    conversation: ConversationOption = None,
    data_class: DataClassOption = None,
    rule: RuleOption = None,
    region: RegionOption = None,
    call: CallOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    reveal: RevealOption = False,
    reason: ReasonOption = "",
    tensors: Annotated[
        bool, typer.Option("--tensors/--no-tensors", help="With --reveal: also the bytes of tensors (audit.objects).")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Write records with their leaves, proofs and signed heads to a directory that `audit verify DIR` checks offline.

    records.ndjson and .csv, proofs.ndjson, checkpoints.ndjson, and manifest.json with its signature in manifest.note;
    of tensors whose bytes were kept each in a file of its own, under tensors/. Exit 1 where some of those are gone.
    """
    at = now()
    key_id(key)
    one_of("--outcome", outcome, OutcomeKind)
    asked = Filter(
        tenant=tenant, since=moment("--since", since, at), until=moment("--until", until, at), model=model,
        outcome=outcome, principal=principal, key=key, subject=subject, conversation=conversation,
        data_class=data_class, rule=rule, region=region, call=call,
    )  # fmt: skip
    with database(config, jurisdiction, application="warden-export") as opened:
        trust = Trust(_verifier(root_of(opened.settings), opened.jurisdiction), _fleet_signer(opened))
        asker = asker_of(at, reason, reveal=reveal)
        place = tensor_store(opened.settings) if reveal and tensors else None
        try:
            objects = None if place is None else place.at.open()
        except OSError as fault:
            fail(Exit.DEPENDENCY, f"audit.objects: {fault}")
        try:
            done = export(
                opened.engine, asked, asker, opener_of(opened), opened.jurisdiction, out, trust, objects,
                tensors=tensors,
            )  # fmt: skip
        except SearchError as fault:
            fail(Exit.USAGE, str(fault))
        except OSError as fault:
            fail(Exit.USAGE, f"{fault.filename or out}: {fault.strerror or fault}")
    if as_json:
        told = {"records": done.records, "unproven": done.unproven, "tensors": done.tensors, "lost": done.lost}
        emit({"directory": str(done.directory), **told})
    else:
        typer.echo(f"{done.records} records in {done.directory}; {done.unproven} newer than the last signed head")
        if done.tensors:
            typer.echo(f"{done.tensors} tensors in {done.directory / DIRECTORY}")
    if done.lost:
        fail(Exit.NO, f"of {done.lost} calls' inputs or outputs the tensors could not be had; their records say why")


def _fleet_signer(opened: Database) -> Signer:
    return log_signer(root_of(opened.settings), origin_of(opened.jurisdiction, FLEET))


@app.command(name="verify")
def verify_command(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="An export, instead of the database.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    keys: Annotated[
        Path | None, typer.Option(help="Verifier keys, one a line, instead of a configuration (DIR).")
    ] = None,
    anchor: Annotated[
        Path | None,
        typer.Option(help="An anchor's file, or a directory of its objects, instead of the configuration's."),
    ] = None,
    objects: Annotated[
        bool, typer.Option("--objects/--no-objects", help="Read every object that a record names (audit.objects).")
    ] = True,
    resume: Annotated[Path | None, typer.Option(help="Keep how far this came in FILE, and go on from there.")] = None,
    full_every: Annotated[
        str, typer.Option(help="With --resume: after so long everything is read again; an age, or never.")
    ] = "7d",
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = min(4, os.cpu_count() or 1),
    as_json: JsonOption = False,
) -> None:
    """Recompute every leaf, tree and signed head, and look for missing logs; exit 1 where anything is wrong."""
    if directory is not None:
        _end(_verify_directory(directory, config, jurisdiction, keys), as_json=as_json)
    with database(config, jurisdiction, application="warden-verify") as opened:
        settings, root = opened.settings, root_of(opened.settings)
        notes, anchored_in = outside(settings, anchor)
        place = tensor_store(settings) if objects else None
        options = Options(
            verifier=_verifier(root, opened.jurisdiction),
            now=datetime.now(UTC),
            anchor=notes,
            anchored_in=anchored_in,
            witnesses=[witness.verifier for witness in witnesses_of(settings)],
            resume=resume,
            resume_key=hmac.digest(root.reveal(), b"warden verify " + opened.jurisdiction.encode(), hashlib.sha256),
            full_every=_full_every(full_every),
            jobs=jobs,
            progress=_bar if sys.stderr.isatty() else None,
        )
        try:
            if place is not None:
                options = replace(options, objects=place.at.open())
            report = verify(opened.dsn, options, jurisdiction=opened.jurisdiction)
            _record(opened, report)
        except ResumeError as fault:
            fail(Exit.USAGE, str(fault))
        except OSError as fault:
            fail(Exit.DEPENDENCY, f"{fault.filename or resume}: {fault.strerror}" if fault.strerror else str(fault))
    _end(report, as_json=as_json)


def _full_every(written: str) -> timedelta | None:
    if written == "never":
        return None
    try:
        return timedelta(seconds=parse_duration(written))
    except ValueError as fault:
        fail(Exit.USAGE, f"--full-every: {fault}")


def _record(opened: Database, report: Report) -> None:
    """That the record was examined, by whom and with what result, is evidence too."""
    oldest = report.oldest_read or datetime.now(UTC)
    told = {
        "ok": report.ok, "records": report.records, "faults": len(report.faults), "anchored": report.anchored,
        "unsigned": report.unsigned, "resumed": report.resumed, "oldest_read": oldest.isoformat(),
    }  # fmt: skip
    try:
        with transaction(opened.engine) as connection:
            record_act(connection, "audit_verify", told)
    except sa.exc.DBAPIError as fault:  # a standby, or a login that may only read: what was found is found all the same
        if not isinstance(fault.orig, psycopg.errors.InsufficientPrivilege | psycopg.errors.ReadOnlySqlTransaction):
            raise
        sys.stderr.write("warden: that it was verified could not be put on record: this login may not write\n")


@app.command()
def verifiers(
    config: ConfigOption = DEFAULT_CONFIG, jurisdiction: JurisdictionOption = None, *, as_json: JsonOption = False
) -> None:
    """Print each log's verifier key, one a line, for `verify DIR --keys FILE` and `certificate --keys FILE`.

    Hand them to an auditor by another way than what they are to verify. They are made of the jurisdiction's root key,
    never of what the database says; it only says which logs there are.
    """
    with database(config, jurisdiction, application="warden-verify") as opened:
        of = _verifier(root_of(opened.settings), opened.jurisdiction)
        with transaction(opened.engine) as connection:
            logs = list(connection.scalars(sa.select(audit_logs.c.log).order_by(audit_logs.c.log)))
    for log in dict.fromkeys([FLEET, *logs]):
        if as_json:
            emit({"log": log, "verifier": of(log).text})
        else:
            typer.echo(of(log).text)


def _verify_directory(directory: Path, config: Path, jurisdiction: str | None, keys: Path | None) -> Report:
    try:
        if keys is not None:
            known = [parse_verifier(line) for line in keys.read_text(encoding="utf-8").splitlines() if line.strip()]
            trust = {found.name.rpartition("/")[2]: found for found in known}
            return verify_export(directory, lambda log: trust.get(log, Verifier("nobody", bytes(32))))
        settings = settings_of(config, jurisdiction)
        return verify_export(directory, _verifier(root_of(settings), settings.audit.database.jurisdiction))
    except OSError as fault:
        fail(Exit.USAGE, f"{fault.filename or directory}: {fault.strerror}")
    except (ValueError, KeyError, TypeError) as fault:
        fail(Exit.USAGE, f"{directory} is no export: {fault}")


def _end(report: Report, *, as_json: bool) -> NoReturn:
    if as_json:
        emit(report.shape())
    else:
        _print(report)
    raise typer.Exit(int(Exit.DONE if report.ok else Exit.NO))


def _verifier(root: Secret, jurisdiction: str) -> Callable[[str], Verifier]:
    def of(log: str) -> Verifier:
        return log_signer(root, origin_of(jurisdiction, log)).verifier

    return of


def _bar(done: int, total: int) -> None:
    share = done / total if total else 1.0
    sys.stderr.write(f"\r[{'#' * round(share * 40):40}] {done}/{total} ")
    sys.stderr.flush()


def _print(report: Report) -> None:
    among = f" in {len(report.logs)} logs" if report.logs else ""  # an export's report counts no logs
    typer.echo(f"{report.records} records{among}, {report.checkpoints} signed heads that fit")
    if report.resumed:
        since = report.oldest_read.isoformat(timespec="seconds") if report.oldest_read else "?"
        typer.echo(f"{report.resumed} of them were found sound by an earlier run, since {since}, and not read again")
    if report.unsigned:
        typer.echo(f"{report.unsigned} records are newer than the last signed head")
    if report.logs and not report.anchored:
        typer.echo("not anchored: nothing outside this database says how long the fleet's log is")
    elif report.anchored_size:
        typer.echo(f"anchored: a head of the fleet's first {report.anchored_size} entries was read in the anchor")
    if report.tensors_lost:
        typer.echo(f"of {report.tensors_lost} calls' inputs or outputs the tensors were not to be had for it")
    if report.objects is not None and (report.objects.checked or report.objects.erased):
        told = report.objects
        typer.echo(
            f"{told.checked} objects read, {told.late} of them not there yet; {told.erased} erased with their keys"
        )
    if report.uncopied:
        words = "what they have not shipped yet is lost with a disk (audit.journal.copy)"
        typer.echo(f"not copied: {len(report.uncopied)} sidecars at work copy nothing outside their node; {words}")
    for fault in report.faults[:_TOLD]:
        typer.echo(_told(fault))
    if len(report.faults) > _TOLD:
        typer.echo(f"and {len(report.faults) - _TOLD} more (--json tells all)")
    typer.echo("ok" if report.ok else f"NOT ok: {len(report.faults)} faults")


def _told(fault: Fault) -> str:
    place = f" at {fault.position}" if fault.position is not None else ""
    return harmless(f"{fault.kind}{place} in {fault.log}: {fault.detail} {fault.call_id or ''}".rstrip())

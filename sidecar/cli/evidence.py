"""`warden audit verify` (and with it all of `warden audit`): whether the record is what was recorded, all of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from audit.evidence import Fault
from audit.fleet import read_notes
from audit.logbook import log_signer, origin_of
from audit.seal import KeyFault
from audit.tlog import Verifier
from audit.verify import Options, Report, verify
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.database import database
from sidecar.cli.keeping import app
from sidecar.cli.records import harmless
from sidecar.core.model import Secret
from sidecar.runtime.shipping import content_root

__all__ = ["app"]

_TOLD = 50  # faults printed for a person


@app.command(name="verify")
def verify_command(
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    anchor: Annotated[Path | None, typer.Option(help="The anchor's file, instead of the configuration's.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Keep how far this came in FILE, and go on from there.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = min(4, os.cpu_count() or 1),
    as_json: JsonOption = False,
) -> None:
    """Recompute every leaf, tree and signed head, and look for missing logs; exit 1 where anything is wrong."""
    with database(config, application="warden-verify") as opened:
        settings, root = opened.settings, content_root(opened.settings)
        if isinstance(root, KeyFault):
            fail(Exit.USAGE, root.detail)
        section = settings.audit.anchor
        path = anchor or (section.file if section is not None else None)
        try:
            notes = [] if path is None else read_notes(path)
        except OSError as fault:
            fail(Exit.DEPENDENCY, f"{path}: {fault.strerror}")
        options = Options(
            verifier=_verifier(root, opened.jurisdiction),
            now=datetime.now(UTC),
            anchor=notes[-1:],
            resume=resume,
            jobs=jobs,
            progress=_bar if sys.stderr.isatty() else None,
        )
        report = verify(settings.audit.database.dsn, options, jurisdiction=opened.jurisdiction)
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
    typer.echo(f"{report.records} records in {len(report.logs)} logs, {report.checkpoints} signed heads that fit")
    if report.unsigned:
        typer.echo(f"{report.unsigned} records are newer than the last signed head")
    if not report.anchored:
        typer.echo("not anchored: nothing outside this database says how long the fleet's log is")
    for fault in report.faults[:_TOLD]:
        typer.echo(_told(fault))
    if len(report.faults) > _TOLD:
        typer.echo(f"and {len(report.faults) - _TOLD} more (--json tells all)")
    typer.echo("ok" if report.ok else f"NOT ok: {len(report.faults)} faults")


def _told(fault: Fault) -> str:
    place = f" at {fault.position}" if fault.position is not None else ""
    return harmless(f"{fault.kind}{place} in {fault.log}: {fault.detail} {fault.call_id or ''}".rstrip())

"""`warden db`: prepare the audit database for this release, and say what it is."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from audit.store import AHEAD_DAYS
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.database import database
from sidecar.runtime import migrate
from sidecar.runtime.migrate import Status

app = typer.Typer(no_args_is_help=True, help="The audit database: upgrade, status.")


@app.command()
def upgrade(config: ConfigOption = DEFAULT_CONFIG, *, as_json: JsonOption = False) -> None:
    """Bring the database to this release's schema. Doing it twice, or twice at once, is harmless."""
    with database(config, application="warden-db") as opened:
        try:
            before, after = migrate.upgrade(opened.engine, jurisdiction=opened.jurisdiction, today=_today())
        except migrate.BusyError as fault:
            fail(Exit.DEPENDENCY, str(fault))
    if as_json:
        emit({"from": before.revision, **_shape(after)})
        return
    step = "was current" if before.revision == after.revision else f"upgraded from {before.revision or 'nothing'}"
    sys.stdout.write(f"revision {after.revision} ({step}), jurisdiction {after.jurisdiction}\n")


@app.command()
def status(config: ConfigOption = DEFAULT_CONFIG, *, as_json: JsonOption = False) -> None:
    """What the database is; exit 1 where it needs an upgrade or belongs to another jurisdiction."""
    with database(config, application="warden-db") as opened:
        found = migrate.status(opened.engine, today=_today())
        configured = opened.jurisdiction
    if as_json:
        emit(_shape(found))
    else:
        table = Table(show_header=False)
        for name, value in _shape(found).items():
            table.add_row(name.replace("_", " "), "" if value is None else str(value))
        Console(file=sys.stdout).print(table)
    if not found.current:
        fail(Exit.NO, "the database needs `warden db upgrade`")
    if found.jurisdiction != configured:
        fail(Exit.NO, f"the database belongs to jurisdiction {found.jurisdiction!r}, not {configured!r}")


def _shape(found: Status) -> dict[str, Any]:
    return {
        "revision": found.revision,
        "head": found.head,
        "current": found.current,
        "jurisdiction": found.jurisdiction,
        "partition_days": found.partition_days,
        "partition_days_wanted": AHEAD_DAYS,
    }


def _today() -> Any:
    return datetime.now(UTC).date()

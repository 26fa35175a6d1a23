"""`warden usage`: what each tenant used, for chargeback."""

from __future__ import annotations

import csv
import sys
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from audit.usage import COLUMNS, Used
from audit.usage import usage as read_usage
from sidecar.cli.audit import asker_of, moment
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.database import database
from sidecar.cli.records import harmless
from sidecar.runtime.clock import now


def usage(
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    since: Annotated[str, typer.Option(help="A time with its zone, or an age such as 24h.")] = "24h",
    until: Annotated[str | None, typer.Option(help="The same; not included.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, with a header.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Calls, tokens, bytes and seconds by hour (UTC), tenant, model and key, of calls that were forwarded."""
    at = now()
    begin, end = moment("--since", since, at), moment("--until", until, at)
    assert begin is not None
    end = end or datetime.fromtimestamp(at.wall, UTC)
    if begin >= end:
        fail(Exit.USAGE, "--since is not before --until")
    with database(config, application="warden-usage") as opened:
        asker = asker_of(at, "", reveal=False)
        rows = list(read_usage(opened.engine, begin, end, tenant, asker, opened.jurisdiction))
    if as_json:
        for row in rows:
            emit(dict(zip(COLUMNS, _values(row), strict=True)))
        return
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_unread(value) for value in _values(row)] for row in rows)
        return
    table = [COLUMNS, *([harmless(str(value)) for value in _values(row)] for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    for line in table:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def _values(row: Used) -> tuple[Any, ...]:
    hour, *rest = astuple(row)
    return (hour.strftime("%Y-%m-%dT%H:00Z"), *rest)


def _unread(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is told to be none."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

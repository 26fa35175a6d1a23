"""`warden usage`: what each tenant used, for chargeback."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from audit.usage import BY, MEASURES, hour_of
from audit.usage import usage as read_usage
from sidecar.cli.audit import asker_of
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.database import database
from sidecar.cli.records import harmless
from sidecar.cli.times import TIME_HELP, moment
from sidecar.runtime.clock import now


def usage(
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    since: Annotated[str, typer.Option(help=f"From when, with its whole hour. {TIME_HELP}")] = "24h",
    until: Annotated[str | None, typer.Option(help="The same; not included, but for its part of an hour.")] = None,
    by: Annotated[
        str, typer.Option(help=f"What to sum by, of {','.join(BY)}; key is key_id.")
    ] = "hour,tenant,model,key",
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, with a header.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Calls, tokens, bytes, seconds of compute and of KV cache, by hour (UTC), tenant, model and key.

    Of calls that were forwarded, whatever their end. Sums are kept by the hour, apart from the records, and outlive
    them; so whole hours are told: that in which --since lies, to that in which --until does.
    """
    at = now()
    begin, end = moment("--since", since, at), moment("--until", until, at)
    assert begin is not None
    end = end or datetime.fromtimestamp(at.wall, UTC)
    if begin >= end:
        fail(Exit.USAGE, "--since is not before --until")
    groups = _groups(by)
    begin, last = hour_of(begin.astimezone(UTC)), hour_of(end.astimezone(UTC))
    end = last if last == end else last + timedelta(hours=1)
    with database(config, jurisdiction, application="warden-usage") as opened:
        asker = asker_of(at, "", reveal=False)
        rows = read_usage(opened.engine, begin, end, tenant, groups, asker, opened.jurisdiction)
        lines = [[_written(value) for value in row] for row in rows]
    _print(groups, lines, as_csv=as_csv, as_json=as_json)


def _groups(by: str) -> tuple[str, ...]:
    asked = tuple("key_id" if name == "key" else name for name in filter(None, by.replace(" ", "").split(",")))
    unknown = [name for name in asked if name not in BY]
    if unknown or len(set(asked)) < len(asked):
        fail(
            Exit.USAGE,
            f"--by: {unknown[0] if unknown else 'twice the same'}; one or more of {', '.join(BY)}, each once",
        )
    return asked


def _print(groups: Sequence[str], lines: Sequence[Sequence[Any]], *, as_csv: bool, as_json: bool) -> None:
    columns = (*groups, *MEASURES)
    if as_json:
        for line in lines:
            emit(dict(zip(columns, line, strict=True)))
        return
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_unread(value) for value in line] for line in lines)
        return
    table = [columns, *([harmless(str(value)) for value in line] for line in lines)]
    widths = [max(len(line[column]) for line in table) for column in range(len(columns))]
    for cells in table:
        sys.stdout.write(
            "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() + "\n"
        )


def _written(value: Any) -> Any:
    """An hour or a day as ISO 8601."""
    return value.strftime("%Y-%m-%dT%H:00Z") if isinstance(value, datetime) else value


def _unread(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is told to be none."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

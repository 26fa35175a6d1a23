"""`warden audit events`: what is recorded beside calls, above all who looked at what and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from audit.asked import SearchError
from audit.events import MOST, Asked, find
from sidecar.cli.audit import ReasonOption, asker_of
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.database import database
from sidecar.cli.filters import SinceOption, UntilOption
from sidecar.cli.masterkeys import app
from sidecar.cli.records import harmless
from sidecar.cli.times import moment
from sidecar.runtime.clock import now

__all__ = ["app"]


@app.command()
def events(  # noqa: PLR0917 — one option a filter
    kind: Annotated[str | None, typer.Option(help="Of one kind, such as content_revealed or journal_gap.")] = None,
    actor: Annotated[str | None, typer.Option(help="Whose act it was, as recorded: cli:NAME, ship:SIDECAR.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Those that name this tenant; a search of all names none.")] = None,
    sidecar: Annotated[str | None, typer.Option(help="What this sidecar recorded.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(help=f"At most this many, the newest; {MOST} at most.")] = 100,
    after: Annotated[str | None, typer.Option(help="Go on where a page ended, with the same filters.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """What is recorded beside calls, newest first: searches, reveals, holds, erasures, keys, bundles, models, starts.

    With --json one object a line; the last has next, where there are more. That you asked is recorded too.
    """
    at = now()
    asked = Asked(
        since=moment("--since", since, at), until=moment("--until", until, at), kind=kind, actor=actor, tenant=tenant,
        sidecar=sidecar, limit=limit, after=after,
    )  # fmt: skip
    with database(config, jurisdiction, application="warden-audit") as opened:
        try:
            page = find(opened.engine, asked, asker_of(at, reason, reveal=False), opened.jurisdiction)
        except SearchError as fault:
            fail(Exit.USAGE, str(fault))
    for number, event in enumerate(page.found, 1):
        if as_json:
            emit({**event, "next": page.next} if number == len(page.found) and page.next is not None else dict(event))
        else:
            typer.echo(_line(event))
    if not page.found:
        sys.stderr.write("warden: no event fits\n")
    if page.kinds:
        sys.stderr.write(f"warden: there is none of kind {kind}; there are {', '.join(map(harmless, page.kinds))}\n")
    if page.next is not None:
        sys.stderr.write(f"warden: there are more, with the same filters: --after {page.next}\n")


def _line(event: Mapping[str, Any]) -> str:
    detail = " ".join(f"{name}={harmless(value)}" for name, value in event["detail"].items())
    because = f"reason={event['reason']!r}" if event["reason"] else ""
    cells = (f"{event['at'][:19]}Z", event["kind"], event["actor"] or "-", because, detail)
    return harmless("  ".join(filter(None, cells))).replace("\n", "\ufffd")

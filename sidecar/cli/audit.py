"""`warden audit`: search the records of calls and show one; content only with a reason, and every look is recorded."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from audit.search import Asker, Filter, Messages, Page, SearchError
from audit.search import search as search_records
from audit.search import show as show_record
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.database import database, opener_of
from sidecar.cli.desk import operator
from sidecar.cli.records import harmless, told, told_whole
from sidecar.core.model import Instant, OutcomeKind
from sidecar.core.reasons import Reason
from sidecar.identity.keys import ID_LENGTH
from sidecar.runtime.clock import now
from sidecar.runtime.ids import uuid7

app = typer.Typer(no_args_is_help=True, help="The audit records: search, show, verify, export, hold, erase.")

_AGO: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h|d)$")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME_HELP: Final = "A time with its zone (2026-11-30T09:00+01:00, …Z) or an age (90s, 15m, 24h, 7d)."

_TEXT_HELP: Final = (
    "Whole words of a prompt or output, case ignored, where a tenant's calls are indexed (searchable: true);"
    " elsewhere any part of one, with --reveal."
)

_AFTER_HELP: Final = (
    "Go on where a page ended, with the same filters (it told you how; with --json its last object's next). The pages"
    " show what was stored when the first was asked."
)

RevealOption = Annotated[bool, typer.Option("--reveal", help="Show prompts and outputs; needs --reason.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why you look; kept with your name.")]
_Filtered = Annotated[str | None, typer.Option()]


@app.command()
def search(  # noqa: PLR0917 — one option a filter (DESIGN §6)
    tenant: _Filtered = None,
    since: Annotated[str | None, typer.Option(help=_TIME_HELP)] = None,
    until: Annotated[str | None, typer.Option(help=_TIME_HELP)] = None,
    model: _Filtered = None,
    outcome: Annotated[str | None, typer.Option(help="completed, refused, failed, cancelled or aborted.")] = None,
    refused_for: Annotated[str | None, typer.Option(help="A refusal's reason, such as RATE_TOKENS.")] = None,
    would_refuse: Annotated[str | None, typer.Option(help="What mode observe would have refused it for.")] = None,
    principal: _Filtered = None,
    key: Annotated[str | None, typer.Option(help="An API key's id.")] = None,
    subject: _Filtered = None,
    conversation: _Filtered = None,
    data_class: _Filtered = None,
    rule: _Filtered = None,
    region: _Filtered = None,
    call: Annotated[str | None, typer.Option(help="A call's id, or a stream's: then all its messages.")] = None,
    trace: Annotated[str | None, typer.Option(help="A trace's id (32 hex digits).")] = None,
    text: Annotated[str | None, typer.Option(help=_TEXT_HELP)] = None,
    limit: Annotated[int, typer.Option(help="At most this many, the newest.")] = 100,
    after: Annotated[str | None, typer.Option(help=_AFTER_HELP)] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    scan: Annotated[bool, typer.Option("--scan", help="Seek --text by opening every record; needs --reveal.")] = False,
    reveal: RevealOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Find records, newest first; with --json one object a line. Prompts and outputs stay sealed without --reveal."""
    at = now()
    if key is not None and len(key) > ID_LENGTH:  # never told again, nor kept with the record of this asking
        fail(Exit.USAGE, "--key takes the 12 characters in the middle of the key, its id, and never the key itself")
    _known("--outcome", outcome, OutcomeKind)
    _known("--refused-for", refused_for, Reason)
    _known("--would-refuse", would_refuse, Reason)
    asked = Filter(
        tenant=tenant,
        since=moment("--since", since, at),
        until=moment("--until", until, at),
        model=model,
        outcome=outcome,
        refused_for=refused_for,
        would_refuse=would_refuse,
        principal=principal,
        key=key,
        subject=subject,
        conversation=conversation,
        data_class=data_class,
        rule=rule,
        region=region,
        call=call,
        trace=trace,
        text=text,
        limit=limit,
        after=after,
        scan=scan,
    )
    page = _search(config, jurisdiction, asked, asker_of(at, reason, reveal=reveal))
    if as_json:
        for number, record in enumerate(page.found, 1):
            last = number == len(page.found)
            emit(record.shape() | ({"next": page.next} if last and page.next is not None else {}))
    else:
        _print(told(page.found, _width(), reveal=reveal))
    _tell_rest(page)


@app.command()
def show(
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The call's id (x-warden-call-id).")],
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    reveal: RevealOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Everything recorded of one call; exit 1 where there is no record of it, or several (a stream's messages)."""
    asker = asker_of(now(), reason, reveal=reveal)
    with database(config, jurisdiction, application="warden-audit") as opened:
        try:
            found = show_record(opened.engine, call_id, asker, opener_of(opened), opened.jurisdiction)
        except SearchError as fault:
            fail(Exit.USAGE, str(fault))
    if found is None:
        fail(Exit.NO, f"no record of call {call_id}")
    if isinstance(found, Messages):
        several = f"{'more than ' if found.more else ''}{len(found.call_ids)} messages"
        fail(Exit.NO, f"{call_id} is a stream of {several}; show one of\n" + "\n".join(map(harmless, found.call_ids)))
    if as_json:
        emit(found.whole())
        return
    _print(told_whole(found, _width()))


def _search(config: Path, jurisdiction: str | None, asked: Filter, asker: Asker) -> Page:
    with database(config, jurisdiction, application="warden-audit") as opened:
        try:
            return search_records(opened.engine, asked, asker, opener_of(opened), opened.jurisdiction)
        except SearchError as fault:
            fail(Exit.USAGE, str(fault))


# --- what was asked -----------------------------------------------------------------------------------------------


def asker_of(at: Instant, reason: str, *, reveal: bool) -> Asker:
    """Who asks here, and why; exit 2 where content is to be shown without a reason."""
    if reveal and not reason.strip():
        fail(Exit.USAGE, "--reveal needs --reason TEXT: it is kept with your name")
    ids: Iterator[str] = (uuid7(at.wall_ns, os.urandom(10)) for _ in itertools.count())
    return Asker(f"cli:{operator()}", datetime.fromtimestamp(at.wall, UTC), ids, reason, reveal)


def moment(option: str, value: str | None, at: Instant) -> datetime | None:
    """What ``option`` says; exit 2 where it is no time."""
    if value is None:
        return None
    ago = _AGO.match(value)
    try:
        if ago is not None:
            return datetime.fromtimestamp(at.wall, UTC) - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        found = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        fail(Exit.USAGE, f"{option} {value!r} is no time: write 2026-11-30T09:00+01:00, …Z, or an age such as 24h")
    if found.tzinfo is None:
        fail(Exit.USAGE, f"{option} {value!r} needs its zone: {value}Z, or {value}+01:00")
    return found


def _known(option: str, value: str | None, members: type[OutcomeKind] | type[Reason]) -> None:
    if value is not None and value not in set(members):
        fail(Exit.USAGE, f"{option} {value!r} is none of {', '.join(members)}")


# --- what is shown ------------------------------------------------------------------------------------------------


def _print(lines: list[Text]) -> None:
    """Whole: a terminal gets lines that fit it, whatever else reads gets each as it is."""
    console = Console(file=sys.stdout, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _tell_rest(page: Page) -> None:
    """On stderr, so that stdout holds records only."""
    if page.told:
        sys.stderr.write(f"warden: {page.told}\n")
    if page.cut:
        sys.stderr.write("warden: the search stopped at its bound before the window's end\n")
    if page.next is not None:
        sys.stderr.write(f"warden: there may be more, with the same filters: --after {page.next}\n")

"""`warden audit`: search the records of calls and show one; content only with a reason, and every look is recorded."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
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
from sidecar.cli.records import harmless, told, told_whole
from sidecar.cli.tensors import objects_of, write_tensors
from sidecar.cli.times import moment
from sidecar.core.model import Instant, OutcomeKind
from sidecar.core.reasons import Reason
from sidecar.runtime.clock import now
from sidecar.runtime.ids import uuid7

app = typer.Typer(no_args_is_help=True, help="The audit records: find, show, export, verify, hold, erase, retain.")

_TRACE: Final = re.compile(r"[0-9a-f]{32}")

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
SubjectOption = Annotated[str | None, typer.Option(help="Whom the tenant acted for, as it said (x-warden-subject).")]


@app.command()
def search(  # noqa: PLR0917 — one option a filter (DESIGN §6)
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    refused_for: Annotated[str | None, typer.Option(help="A refusal's reason, such as RATE_TOKENS.")] = None,
    would_refuse: Annotated[str | None, typer.Option(help="What mode observe would have refused it for.")] = None,
    principal: PrincipalOption = None,
    key: KeyOption = None,
    subject: SubjectOption = None,
    conversation: ConversationOption = None,
    data_class: DataClassOption = None,
    rule: RuleOption = None,
    region: RegionOption = None,
    call: CallOption = None,
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
    key_id(key)
    one_of("--outcome", outcome, OutcomeKind)
    one_of("--refused-for", refused_for, Reason)
    one_of("--would-refuse", would_refuse, Reason)
    if trace is not None and _TRACE.fullmatch(trace) is None:
        fail(Exit.USAGE, f"--trace {trace!r} is no trace's id: 32 hexadecimal digits, in small letters")
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
    tensors: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --reveal, write its tensors' bytes there (audit.objects).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Everything recorded of one call; exit 1 where there is no record of it, or several (a stream's messages)."""
    asker = asker_of(now(), reason, reveal=reveal)
    if tensors is not None and not reveal:
        fail(Exit.USAGE, "--tensors shows content: it needs --reveal --reason TEXT")
    with database(config, jurisdiction, application="warden-audit") as opened:
        opener = opener_of(opened)
        try:
            found = show_record(opened.engine, call_id, asker, opener, opened.jurisdiction)
        except SearchError as fault:
            fail(Exit.USAGE, str(fault))
    if found is None:
        fail(Exit.NO, f"no record of call {call_id}")
    if isinstance(found, Messages):
        several = f"{'more than ' if found.more else ''}{len(found.call_ids)} messages"
        fail(Exit.NO, f"{call_id} is a stream of {several}; show one of\n" + "\n".join(map(harmless, found.call_ids)))
    objects = objects_of(found, opened.settings, asker.at)
    if tensors is not None:
        write_tensors(found, objects, opener.record_key(found.columns), tensors)
    found = replace(found, columns={**found.columns, "objects": [each.shape() for each in objects]})
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
    if not page.found:
        sys.stderr.write("warden: no record fits\n")
    if page.told:
        sys.stderr.write(f"warden: {page.told}\n")
    if page.cut:
        sys.stderr.write("warden: the search stopped at its bound before the window's end\n")
    if page.next is not None:
        sys.stderr.write(f"warden: there may be more, with the same filters: --after {page.next}\n")

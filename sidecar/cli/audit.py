"""`warden audit`: search the records of calls and show one; content only with a reason, and every look is recorded."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from audit.search import Asker, Filter, Found, Keyset, Page, SearchError
from audit.search import search as search_records
from audit.search import show as show_record
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.database import database, sealer_of
from sidecar.cli.keys import operator
from sidecar.core.model import Instant, OutcomeKind
from sidecar.core.reasons import Code, Reason
from sidecar.runtime.clock import now
from sidecar.runtime.ids import uuid7

app = typer.Typer(no_args_is_help=True, help="The audit records: search, show.")

_AGO: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h|d)$")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME_HELP: Final = "A time with its zone (2026-11-30T09:00+01:00, …Z) or an age (90s, 15m, 24h, 7d)."

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
    principal: _Filtered = None,
    key: Annotated[str | None, typer.Option(help="An API key's id.")] = None,
    subject: _Filtered = None,
    conversation: _Filtered = None,
    data_class: _Filtered = None,
    rule: _Filtered = None,
    region: _Filtered = None,
    call: Annotated[str | None, typer.Option(help="A call's id.")] = None,
    trace: Annotated[str | None, typer.Option(help="A trace's id (32 hex digits).")] = None,
    text: Annotated[str | None, typer.Option(help="Words in a prompt or output, case ignored; needs --reveal.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many, the newest.")] = 100,
    before: Annotated[str | None, typer.Option(help="Go on where a page ended (it told you how).")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    reveal: RevealOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Find records, newest first; with --json one object a line. Prompts and outputs stay sealed without --reveal."""
    at = now()
    _known("--outcome", outcome, OutcomeKind)
    _known("--refused-for", refused_for, Reason)
    asked = Filter(
        tenant=tenant,
        since=_moment("--since", since, at),
        until=_moment("--until", until, at),
        model=model,
        outcome=outcome,
        refused_for=refused_for,
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
        before=_keyset(before),
    )
    page = _search(config, asked, _asker(at, reason, reveal=reveal))
    if as_json:
        for record in page.found:
            emit(record.shape())
    else:
        _print(page.found, reveal=reveal)
    _tell_rest(page, limit)


@app.command()
def show(
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The call's id (x-warden-call-id).")],
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    reveal: RevealOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Everything recorded of one call; exit 1 where there is no record of it."""
    asker = _asker(now(), reason, reveal=reveal)
    with database(config, application="warden-audit") as opened:
        sealer = sealer_of(opened.settings) if reveal else None
        try:
            found = show_record(opened.engine, call_id, asker, sealer, opened.jurisdiction)
        except SearchError as fault:
            fail(Exit.USAGE, str(fault))
    if found is None:
        fail(Exit.NO, f"no record of call {call_id}")
    if as_json:
        emit(found.whole())
        return
    table = Table(show_header=False)
    for name, value in found.whole().items():
        table.add_row(name.replace("_", " "), _cell(value))
    Console(file=sys.stdout).print(table)


def _search(config: Any, asked: Filter, asker: Asker) -> Page:
    with database(config, application="warden-audit") as opened:
        sealer = sealer_of(opened.settings) if asker.reveal else None
        try:
            return search_records(opened.engine, asked, asker, sealer, opened.jurisdiction)
        except SearchError as fault:
            fail(Exit.USAGE, str(fault))


# --- what was asked -----------------------------------------------------------------------------------------------


def _asker(at: Instant, reason: str, *, reveal: bool) -> Asker:
    if reveal and not reason.strip():
        fail(Exit.USAGE, "--reveal needs --reason TEXT: it is kept with your name")
    ids: Iterator[str] = (uuid7(at.wall_ns, os.urandom(10)) for _ in itertools.count())
    return Asker(f"cli:{operator()}", datetime.fromtimestamp(at.wall, UTC), ids, reason, reveal)


def _moment(option: str, value: str | None, at: Instant) -> datetime | None:
    if value is None:
        return None
    ago = _AGO.match(value)
    try:
        if ago is not None:
            return datetime.fromtimestamp(at.wall, UTC) - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        fail(Exit.USAGE, f"{option} {value!r} is no time: write 2026-11-30T09:00+01:00, …Z, or an age such as 24h")
    if moment.tzinfo is None:
        fail(Exit.USAGE, f"{option} {value!r} needs its zone: {value}Z, or {value}+01:00")
    return moment


def _keyset(value: str | None) -> Keyset | None:
    if value is None:
        return None
    moment, _, call_id = value.partition("/")
    started = _moment("--before", moment, now())
    if started is None or not call_id:
        fail(Exit.USAGE, "--before takes TIME/CALL, as the page before printed it")
    return Keyset(started, call_id)


def _known(option: str, value: str | None, members: type[OutcomeKind] | type[Reason]) -> None:
    if value is not None and value not in set(members):
        fail(Exit.USAGE, f"{option} {value!r} is none of {', '.join(members)}")


# --- what is shown ------------------------------------------------------------------------------------------------


def _print(found: list[Found], *, reveal: bool) -> None:
    table = Table("started", "tenant", "who", "model", "outcome", "why", "tokens", "ms", "call")
    for record in found:
        shape = record.shape()
        table.add_row(
            shape["started_at"],
            _cell(shape["tenant"]),
            _cell(shape["key_id"] or shape["principal"]),
            _cell(shape["model"] or shape["method"].rpartition("/")[2]),
            shape["outcome"],
            _cell(_why(shape)),
            f"{shape['input_tokens']}+{shape['output_tokens']}",
            f"{shape['duration_ms']:.0f}",
            _cell(shape["call_id"]),
        )
        if reveal:
            table.add_row(
                "", "", "", "prompt", _cell(shape["prompt"] if shape["prompt"] is not None else record.content)
            )
            table.add_row(
                "", "", "", "output", _cell(shape["output"] if shape["output"] is not None else record.content)
            )
    Console(file=sys.stdout).print(table)


def _why(shape: dict[str, Any]) -> str:
    """The reason, else the status where it is not OK; and what mode observe did not enforce."""
    words = [shape["reason"] or ("" if shape["status"] == Code.OK else str(shape["status"]))]
    if shape["would_refuse"]:
        words.append(f"would be {shape['would_refuse']}")
    return "; ".join(filter(None, words))


def _cell(value: Any) -> str:
    """Text that a tenant chose must not act on the officer's terminal: no control characters, no markup."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text))


def _tell_rest(page: Page, limit: int) -> None:
    """On stderr, so that stdout holds records only."""
    if page.cut:
        sys.stderr.write("warden: the search stopped at its bound before the window's end\n")
    if page.following is not None and (page.cut or len(page.found) == limit):
        started = page.following.started_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        sys.stderr.write(f"warden: there may be more: --before {started}/{page.following.call_id}\n")

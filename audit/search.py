"""Answers "who sent what, where, with what result": filters, pages, reveals; and records each asking first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONPATH

from audit import store
from audit.asked import Asker, Filter, Found, Keyset, Messages, Page, SearchError, replaced
from audit.by_text import by_text, windowed
from audit.opening import Opener, day_range
from audit.paging import KIND, as_stored, continued, sizes, token
from audit.rows import officer_row
from audit.tables import audit_calls

__all__ = [
    "IDENTITY", "Asker", "Filter", "Found", "Keyset", "Messages", "Page", "SearchError", "found", "replaced", "rows",
    "search", "show",
]  # fmt: skip

LIMIT: Final = 10_000  # records of one search
REVEAL_LIMIT: Final = 1_000  # records of one search whose content is shown
MESSAGES_LISTED: Final = 1_000  # ids told of one stream
TALK: Final = 1_000  # calls of a conversation that are looked up at once
STATEMENT_MS: Final = 30_000

_WHEN: Final = sa.DateTime(timezone=True)
_GUARDS: Final = "guards."  # before a guard's or a rule's id, where it is what decided
_HAS_FINDINGS: Final = sa.text("findings <> '[]'::jsonb")  # as its index says it
_EXACT: Final = {
    "tenant": "tenant",
    "model": "model",
    "outcome": "outcome",
    "refused_for": "reason",
    "would_refuse": "would_refuse",
    "key": "key_id",
    "data_class": "data_class",
    "region": "region",
    "trace": "trace_id",
}


def search(engine: sa.Engine, asked: Filter, asker: Asker, opener: Opener | None, jurisdiction: str) -> Page:
    """Raises SearchError, store.MismatchError and SQLAlchemy's errors. Recorded before anything is returned.

    What asked for more pages with a page's ``next`` is asked of what the first page could see.
    """
    asked = _checked(asked, asker)
    with store.transaction(engine, statement_ms=STATEMENT_MS, frozen=True) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        first = None
        if asked.after is not None:
            asked, first = continued(connection, asked, opener)
        if asked.text:
            asked = windowed(asked, asker.at)

        def pages(some: Filter) -> Page:
            return _page(connection, some, asker, opener)

        page = by_text(connection, asked, asker, opener, pages) if asked.text else pages(asked)
        told = {"filter": asked.told(opener), "reveal": asker.reveal}
        if first is not None:
            told["page_of"] = first
        elif page.following is not None:
            told["logs"] = sizes(connection)
        event = _record(connection, asker, KIND, told)
        _record_reveal(connection, asker, page.found)
    return page if page.following is None else replace(page, next=token(first or event, page.following))


def show(
    engine: sa.Engine, call_id: str, asker: Asker, opener: Opener | None, jurisdiction: str
) -> Found | Messages | None:
    """One record, whole, also by the id of its stream where that has no other; None where there is no such call.

    That it was looked for is recorded in every case.
    """
    asked = _checked(Filter(call=call_id, limit=1), asker)
    with store.transaction(engine, statement_ms=STATEMENT_MS, frozen=True) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        ids = _messages(connection, call_id)
        _record(connection, asker, "audit_show", {"call": call_id, "found": bool(ids), "reveal": asker.reveal})
        if len(ids) > 1:
            return Messages(ids[:MESSAGES_LISTED], len(ids) > MESSAGES_LISTED)
        page = _page(connection, asked, asker, opener)
        _record_reveal(connection, asker, page.found)
    return page.found[0] if page.found else None


def _checked(asked: Filter, asker: Asker) -> Filter:
    if asker.reveal and not asker.reason.strip():
        raise SearchError("content is revealed only with a reason")
    most = REVEAL_LIMIT if asker.reveal else LIMIT
    if not 1 <= asked.limit <= most:
        raise SearchError(f"limit must be from 1 to {most}")
    return asked


# --- reading ------------------------------------------------------------------------------------------------------


def _messages(connection: sa.Connection, call_id: str) -> tuple[str, ...]:
    """The ids that ``call_id`` stands for, oldest first: one more than are listed, so that this can be told."""
    c = audit_calls.c
    query = sa.select(c.call_id).where(_of_call(call_id)).order_by(c.started_at, c.call_id)
    return tuple(connection.scalars(query.limit(MESSAGES_LISTED + 1)))


def _of_call(call_id: str) -> sa.ColumnElement[bool]:
    """The call of that id and, where it is a stream's, its messages.

    The range is for the index: it holds every ``<id>/<n>`` in a collation that orders by byte, and in one that skips
    punctuation. What else it holds is sorted out by the prefix.
    """
    column = audit_calls.c.call_id
    if "/" in call_id:
        return column == call_id
    prefix = f"{call_id}/"
    return sa.and_(
        column.between(call_id, prefix + "9" * 20),
        sa.or_(column == call_id, sa.func.starts_with(column, prefix)),
    )


def _select(asked: Filter, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The newest ``limit`` records that are asked for, but for what is sealed in them: ``conditions`` are of that."""
    c = audit_calls.c
    query = sa.select(audit_calls)
    for name, column in _EXACT.items():
        value = getattr(asked, name)
        if value is not None:
            query = query.where(c[column] == value)
    for condition in (*_by_rule(asked.rule), *conditions):
        query = query.where(condition)
    if asked.call is not None:
        query = query.where(_of_call(asked.call))
    if asked.refused_for is not None:
        query = query.where(c.outcome == "refused")
    if asked.since is not None:
        query = query.where(c.started_at >= asked.since)
    if asked.until is not None:
        query = query.where(c.started_at < asked.until)
    for condition in _places(asked):
        query = query.where(condition)
    return query.order_by(c.started_at.desc(), c.call_id.desc()).limit(asked.limit)


def _places(asked: Filter) -> Iterator[sa.ColumnElement[bool]]:
    """Where in the order of pages, and what was stored at the time."""
    c = audit_calls.c
    if asked.among is not None:
        times = [each.started_at for each in asked.among]
        yield c.started_at.between(min(times), max(times))
        wanted = (
            sa.func.unnest(
                sa.cast(sa.literal(times, ARRAY(_WHEN)), ARRAY(_WHEN)),
                sa.cast(sa.literal([each.call_id for each in asked.among], ARRAY(sa.Text)), ARRAY(sa.Text)),
            )
            .table_valued(sa.column("at", _WHEN), sa.column("id", sa.Text), name="wanted")
            .render_derived()
        )
        yield sa.exists().where(wanted.c.at == c.started_at, wanted.c.id == c.call_id)
    if asked.logs is not None:
        yield as_stored(asked.logs)
    if asked.before is not None:
        key = sa.tuple_(sa.literal(asked.before.started_at), sa.literal(asked.before.call_id))
        yield sa.tuple_(c.started_at, c.call_id) < key


def _by_rule(rule: str | None) -> Iterator[sa.ColumnElement[bool]]:
    """What decided; a guard also by what it found in calls that went on, or that it cut off later."""
    c = audit_calls.c
    if rule is None:
        return
    guard = rule.removeprefix(_GUARDS)
    found: sa.ColumnElement[bool] = c.rule == rule
    yield found if guard == rule else sa.or_(found, sa.and_(_HAS_FINDINGS, _found_by(guard)))


def _found_by(guard: str) -> sa.ColumnElement[bool]:
    """Its name stands first in a finding; nothing else of one counts."""
    path = sa.cast("strict $[*] ? (@[0] == $guard)", JSONPATH)  # lax would look into each finding
    return sa.func.jsonb_path_exists(audit_calls.c.findings, path, sa.func.jsonb_build_object("guard", guard))


@dataclass(frozen=True, slots=True)
class _Day:
    """What holds of the records that began on one day; ``macs``: of the conversations, where one was asked for."""

    day: date
    conditions: Sequence[sa.ColumnElement[bool]] = ()
    macs: list[bytes] | None = None


def _sealed_conditions(
    connection: sa.Connection, asked: Filter, opener: Opener | None
) -> tuple[Sequence[sa.ColumnElement[bool]], list[_Day] | None]:
    """Who somebody is, is sealed: found by the data keys of that name, each of which is of one day.

    (conditions on every day; the days that are left, newest first, None: none is left out). Raises SearchError.
    """
    c = audit_calls.c
    if asked.subject is None and asked.principal is None and asked.conversation is None:
        return (), None
    if opener is None:
        raise SearchError("who somebody is, is sealed: finding it needs the tenants' master keys")
    always: list[sa.ColumnElement[bool]] = []
    if asked.principal is not None:
        own = opener.keys_of(connection, asked.tenant, asked.principal)
        named = sa.and_(c.principal == asked.principal, c.principal != "")  # as its index says it
        always.append(sa.or_(named, sa.and_(c.principal == "", c.data_key.in_(own))))
    talks, keys = None, None
    if asked.conversation is not None:
        span = day_range(asked.since, asked.until)
        talks = _grouped(opener.conversation_macs(connection, asked.conversation, tenant=asked.tenant, days=span))
    if asked.subject is not None:
        keys = _grouped(opener.dated_keys_of(connection, asked.tenant, asked.subject))
    if talks is None and keys is None:
        return always, None
    days = set.intersection(*(set(each) for each in (talks, keys) if each is not None))
    return always, [
        _Day(day, () if keys is None else (_one_of(c.data_key, keys[day]),), None if talks is None else talks[day])
        for day in sorted(days, reverse=True)
    ]


def _grouped(found: list[tuple[Any, date]]) -> dict[date, list[Any]]:
    by_day: dict[date, list[Any]] = {}
    for value, day in found:
        by_day.setdefault(day, []).append(value)
    return by_day


def _one_of(column: sa.ColumnElement[Any], values: list[Any]) -> sa.ColumnElement[bool]:
    kind = ARRAY(column.type)
    return column == values[0] if len(values) == 1 else column == sa.any_(sa.cast(sa.literal(values, kind), kind))


def rows(connection: sa.Connection, asked: Filter, opener: Opener | None) -> list[dict[str, Any]]:
    """The newest ``limit`` records that are asked for, with what is sealed in them. Raises SearchError.

    Where somebody's days are known each is asked by itself, until there are enough.

    Asked of all days at once, Postgres would rather look through the newest millions for one of those names.
    """
    always, days = _sealed_conditions(connection, asked, opener)
    if days is None:
        return [dict(row) for row in connection.execute(_select(asked, *always)).mappings()]
    found: list[dict[str, Any]] = []
    for each in days:
        begins = datetime(each.day.year, each.day.month, each.day.day, tzinfo=UTC)
        since, until = _within(asked, begins, begins + timedelta(days=1))
        if since >= until:
            continue
        day = replaced(asked, since=since, until=until)
        for among in (day.among,) if each.macs is None else _talked(connection, day, each.macs):
            narrowed = replaced(day, among=among, limit=asked.limit - len(found))
            query = _select(narrowed, *always, *each.conditions)
            found += [dict(row) for row in connection.execute(query).mappings()]
            if len(found) == asked.limit:
                return found
    return found


def _talked(connection: sa.Connection, day: Filter, macs: list[bytes]) -> Iterator[tuple[Keyset, ...]]:
    """The day's calls of these conversations, newest first, some at a time.

    Found by those first, for without its tenant a conversation has a mac for each subject: ordered at once, Postgres
    would rather look through the whole day from its end on. The newest are mostly enough, and sorted out soonest by
    themselves; of a cursor come all others, for asked anew for each thousand, hundreds of thousands of calls would be
    found and sorted hundreds of times.
    """
    c = audit_calls.c
    window = c.started_at >= day.since, c.started_at < day.until
    held = sa.select(c.started_at, c.call_id).where(*window, _one_of(c.conversation_mac, macs))
    hits = held.cte("hits").prefix_with("MATERIALIZED", dialect="postgresql")
    query = sa.select(hits).order_by(hits.c.started_at.desc(), hits.c.call_id.desc())
    wanted = None if day.among is None else set(day.among)

    def of(page: Sequence[Any]) -> tuple[Keyset, ...]:
        keys = (Keyset(row.started_at, row.call_id) for row in page)
        return tuple(key for key in keys if wanted is None or key in wanted)

    newest = connection.execute(query.limit(TALK)).all()
    if some := of(newest):
        yield some
    if len(newest) < TALK:
        return
    last = sa.tuple_(sa.literal(newest[-1].started_at), sa.literal(newest[-1].call_id))
    older = query.where(sa.tuple_(hits.c.started_at, hits.c.call_id) < last)
    with connection.execute(older, execution_options={"yield_per": TALK}) as found:
        for page in found.partitions():
            if some := of(page):
                yield some


def _within(asked: Filter, begins: datetime, ends: datetime) -> tuple[datetime, datetime]:
    since = begins if asked.since is None else max(asked.since, begins)
    until = ends if asked.until is None else min(asked.until, ends)
    if asked.among is not None:
        times = [each.started_at for each in asked.among]
        since, until = max(since, min(times)), min(until, max(times) + timedelta(microseconds=1))
    return since, until if asked.before is None else min(until, asked.before.started_at + timedelta(microseconds=1))


def _page(connection: sa.Connection, asked: Filter, asker: Asker, opener: Opener | None) -> Page:
    there = rows(connection, asked, opener)
    if opener is not None:
        opener.load(connection, [row["data_key"] for row in there])
    told = [found(row, opener, reveal=asker.reveal) for row in there]
    full = len(there) == asked.limit
    return Page(told, told[-1].key if full else None)


IDENTITY: Final = ("subject", "conversation", "peer", "request_id", "parameters", "actor")


def found(row: Mapping[str, Any], opener: Opener | None, *, reveal: bool) -> Found:
    """One stored row as it is shown; its data key must have been loaded."""
    columns = {name: value for name, value in row.items() if not name.endswith(("_sealed", "_mac"))}
    columns |= dict.fromkeys(IDENTITY)
    if opener is None:
        return Found(columns)
    opened = opener.open(row, content=reveal)
    if opened.identity is None:
        return Found(columns, content=opened.why)
    columns |= {name: getattr(opened.identity, name) for name in IDENTITY}
    columns["principal"] = opened.identity.principal or columns["principal"]
    if not reveal:
        return Found(columns)

    def joined(parts: list[bytes] | None, joint: bytes) -> str | None:
        # Joined first: a character may be split over two chunks of a stream.
        return None if parts is None else joint.join(parts).decode("utf-8", "replace")

    prompt, output, error = joined(opened.prompt, b"\n"), joined(opened.output, b""), joined(opened.error, b"")
    none = prompt is None and output is None and error is None and not row.get("payloads")
    return Found(columns, prompt, output, "none" if none else "revealed", error)


# --- the asking is a record too -----------------------------------------------------------------------------------


def _record(connection: sa.Connection, asker: Asker, kind: str, detail: dict[str, Any]) -> str:
    event_id = next(asker.event_ids)
    store.record_event(connection, officer_row(event_id, asker.at, kind, asker.actor, asker.reason, detail))
    return event_id


def _record_reveal(connection: sa.Connection, asker: Asker, found: list[Found]) -> None:
    """Who has seen what: each record whose content was shown, by id."""
    seen = [record.columns for record in found if record.content == "revealed"]
    if asker.reveal and seen:
        told = {"calls": [each["call_id"] for each in seen], "tenants": sorted({each["tenant"] for each in seen})}
        _record(connection, asker, "content_revealed", told)

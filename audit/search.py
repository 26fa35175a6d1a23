"""Answers "who sent what, where, with what result": filters, pages, reveals; and records each asking first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from audit import store
from audit.opening import Opener, day_range
from audit.rows import officer_row
from audit.tables import audit_calls

__all__ = [
    "IDENTITY", "Asker", "Filter", "Found", "Keyset", "Messages", "Page", "SearchError", "found", "replaced", "search",
    "select", "show",
]  # fmt: skip

LIMIT: Final = 10_000  # records of one search
REVEAL_LIMIT: Final = 1_000  # records of one search whose content is shown
TEXT_WINDOW: Final = timedelta(days=31)  # a word search opens every record of its window
TEXT_DEFAULT: Final = timedelta(hours=24)
TEXT_SCANNED: Final = 100_000  # records opened by one word search
MESSAGES_LISTED: Final = 1_000  # ids told of one stream
PAGE: Final = 200  # records fetched at once by a word search
STATEMENT_MS: Final = 30_000

_FINDING: Final = ("guard", "on", "verdict", "enforced")
_EXACT: Final = {
    "tenant": "tenant",
    "model": "model",
    "outcome": "outcome",
    "refused_for": "reason",
    "would_refuse": "would_refuse",
    "key": "key_id",
    "data_class": "data_class",
    "rule": "rule",
    "region": "region",
    "trace": "trace_id",
}


class SearchError(Exception):
    """The question cannot be asked like this; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Keyset:
    """Where a page ends: the next one goes on with what is older."""

    started_at: datetime
    call_id: str


@dataclass(frozen=True, slots=True)
class Filter:
    """What is asked for; None is "any". ``since`` is included, ``until`` is not; ``text`` is sought without case.

    ``call`` is a call's id, or a stream's: then every message of it is meant (``<stream id>/<n>``).
    """

    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    model: str | None = None
    outcome: str | None = None
    refused_for: str | None = None
    would_refuse: str | None = None  # what mode observe did not enforce
    principal: str | None = None
    key: str | None = None
    subject: str | None = None
    conversation: str | None = None
    data_class: str | None = None
    rule: str | None = None
    region: str | None = None
    call: str | None = None
    trace: str | None = None
    text: str | None = None
    limit: int = 100
    before: Keyset | None = None

    def told(self, opener: Opener | None) -> dict[str, Any]:
        """As its record shows it: whoever was sought is not named in it, for that record outlives an erasure."""
        asked = {name: getattr(self, name) for name in (field.name for field in fields(self))}
        for name in ("subject", "conversation", "principal"):
            if asked[name] is not None and opener is not None:
                asked[name] = f"mac:{opener.pseudonym(self.tenant, asked[name])}"
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asked.items()
            if value is not None and name != "before"
        }


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, when, why, and whether content is to be shown. ``event_ids`` names the records of this asking."""

    actor: str
    at: datetime
    event_ids: Iterator[str]
    reason: str = ""
    reveal: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One record: all columns but content, and the content where it was revealed and could be opened."""

    columns: Mapping[str, Any]
    prompt: str | None = None
    output: str | None = None
    content: str = "withheld"  # withheld | revealed | none (the level kept none) | erased | unreadable: why
    error: str | None = None  # Triton's words that the client was not told

    def shape(self) -> dict[str, Any]:
        """The JSON object of DESIGN §6, then the content's lengths and digests."""
        c = self.columns
        return {
            "call_id": c["call_id"],
            "started_at": _iso(c["started_at"]),
            "tenant": c["tenant"] or None,
            "principal": c["principal"] or None,
            "key_id": c["key_id"] or None,
            "subject": c["subject"] or None,
            "conversation": c["conversation"] or None,
            "method": c["method"],
            "model": c["model"] or None,
            "model_version": c["model_version"] or c["requested_version"] or None,
            "model_digest": c["model_digest"],
            "data_class": c["data_class"] or None,
            "rule": c["rule"] or None,
            "outcome": c["outcome"],
            "reason": c["reason"] or None,
            "status": c["status"],
            "prompt": self.prompt,
            "output": self.output,
            "input_tokens": c["input_tokens"],
            "output_tokens": c["output_tokens"],
            "ttft_ms": None if c["ttft_ns"] is None else round(c["ttft_ns"] / 1e6, 3),
            "duration_ms": round(c["duration_ns"] / 1e6, 3),
            "region": c["region"],
            "jurisdiction": c["jurisdiction"],
            "bundle": c["bundle"] or None,
            "trace_id": c["trace_id"] or None,
            "sidecar": c["sidecar"],
            "position": c["position"],
            "principal_kind": c["principal_kind"] or None,  # how it was authenticated
            "alias": c["alias"] or None,  # what the caller called the model
            "routed_version": c["routed_version"] or None,  # that the sidecar picked, and why
            "route": c["route"] or None,
            "route_why": c["route_why"] or None,
            "would_refuse": c["would_refuse"] or None,  # what mode observe did not enforce
            "findings": [dict(zip(_FINDING, found, strict=True)) for found in c["findings"]],  # of guards
            "redacted": c["redacted"],  # identifiers taken out before it was stored, by class
            "would_refuse_rule": c["decision"].get("would_rule") or None,
            "evidence": c["decision"].get("evidence") or None,  # what agreed on the region
            "content": self.content,
            "error": self.error,
            **{name: c[name] for name in ("prompt_bytes", "output_bytes", "prompt_truncated", "output_truncated")},
            "error_bytes": c["error_bytes"],
            **{name: _hex(c[name]) for name in ("prompt_digest", "output_digest")},  # audit.vault.commitment
        }

    def whole(self) -> dict[str, Any]:
        """The shape and every other column."""
        shape = self.shape()
        rest = {name: value for name, value in self.columns.items() if name not in shape}
        return shape | {name: _plain(value) for name, value in rest.items()}


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. ``following`` goes on from here; ``cut`` says that a word search stopped at its bound."""

    found: list[Found]
    following: Keyset | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Messages:
    """A stream's id was given where one call's was meant: its messages, oldest first; ``more``: not all are listed."""

    call_ids: tuple[str, ...]
    more: bool


def search(engine: sa.Engine, asked: Filter, asker: Asker, opener: Opener | None, jurisdiction: str) -> Page:
    """Raises SearchError, store.MismatchError and SQLAlchemy's errors. Recorded before anything is returned."""
    asked = _checked(asked, asker)
    with store.transaction(engine, statement_ms=STATEMENT_MS, frozen=True) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        _record(connection, asker, "audit_search", {"filter": asked.told(opener), "reveal": asker.reveal})
        page = _by_text(connection, asked, asker, opener) if asked.text else _page(connection, asked, asker, opener)
        _record_reveal(connection, asker, page.found)
    return page


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
    if asked.text is not None and not asker.reveal:
        raise SearchError("searching for a text opens the records' content: it needs --reveal and --reason")
    most = REVEAL_LIMIT if asker.reveal else LIMIT
    if not 1 <= asked.limit <= most:
        raise SearchError(f"limit must be from 1 to {most}")
    if not asked.text:
        return asked
    until = asked.until or asker.at
    since = asked.since or until - TEXT_DEFAULT
    if until - since > TEXT_WINDOW:
        raise SearchError(f"a text is sought over at most {TEXT_WINDOW.days} days at once; narrow --since and --until")
    return replaced(asked, since=since, until=until)


def replaced(asked: Filter, **changes: Any) -> Filter:
    """The same question but for ``changes``."""
    return Filter(**{field.name: getattr(asked, field.name) for field in fields(asked)} | changes)


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


def select(connection: sa.Connection, asked: Filter, opener: Opener | None) -> sa.Select[Any]:
    """The newest ``limit`` records that are asked for, with what is sealed in them."""
    c = audit_calls.c
    query = sa.select(audit_calls)
    for name, column in _EXACT.items():
        value = getattr(asked, name)
        if value is not None:
            query = query.where(c[column] == value)
    for condition in _sealed_conditions(connection, asked, opener):
        query = query.where(condition)
    if asked.call is not None:
        query = query.where(_of_call(asked.call))
    if asked.refused_for is not None:
        query = query.where(c.outcome == "refused")
    if asked.since is not None:
        query = query.where(c.started_at >= asked.since)
    if asked.until is not None:
        query = query.where(c.started_at < asked.until)
    if asked.before is not None:
        key = sa.tuple_(sa.literal(asked.before.started_at), sa.literal(asked.before.call_id))
        query = query.where(sa.tuple_(c.started_at, c.call_id) < key)
    return query.order_by(c.started_at.desc(), c.call_id.desc()).limit(asked.limit)


def _sealed_conditions(
    connection: sa.Connection, asked: Filter, opener: Opener | None
) -> Iterator[sa.ColumnElement[bool]]:
    """Who somebody is, is sealed: found by the data keys of that name."""
    c = audit_calls.c
    if asked.subject is None and asked.principal is None and asked.conversation is None:
        return
    if opener is None:
        raise SearchError("who somebody is, is sealed: finding it needs the tenants' master keys")
    if asked.subject is not None:
        yield c.data_key.in_(opener.keys_of(connection, asked.tenant, asked.subject))
    if asked.principal is not None:
        own = opener.keys_of(connection, asked.tenant, asked.principal)
        yield sa.or_(c.principal == asked.principal, sa.and_(c.principal == "", c.data_key.in_(own)))
    if asked.conversation is not None:
        days = day_range(asked.since, asked.until)
        macs = opener.conversation_macs(connection, asked.conversation, tenant=asked.tenant, days=days)
        yield c.conversation_mac.in_(macs)


def _page(connection: sa.Connection, asked: Filter, asker: Asker, opener: Opener | None) -> Page:
    query = select(connection, asked, opener)
    rows: list[dict[str, Any]] = [dict(row) for row in connection.execute(query).mappings()]
    if opener is not None:
        opener.load(connection, [row["data_key"] for row in rows])
    told = [found(row, opener, reveal=asker.reveal) for row in rows]
    full = len(rows) == asked.limit
    return Page(told, _key(rows[-1]) if full else None)


def _by_text(connection: sa.Connection, asked: Filter, asker: Asker, opener: Opener | None) -> Page:
    """Open record after record, newest first, until enough match; bounded by the window and by TEXT_SCANNED."""
    word = (asked.text or "").casefold()
    found: list[Found] = []
    before = asked.before
    for _ in range(TEXT_SCANNED // PAGE):
        page = _page(connection, replaced(asked, limit=PAGE, before=before), asker, opener)
        for record in page.found:
            if any(word in (text or "").casefold() for text in (record.prompt, record.output, record.error)):
                found.append(record)
                if len(found) == asked.limit:
                    return Page(found, _key(record.columns))
        if page.following is None:
            return Page(found)
        before = page.following
    return Page(found, before, cut=True)


def _key(row: Mapping[str, Any]) -> Keyset:
    return Keyset(row["started_at"], row["call_id"])


IDENTITY: Final = ("subject", "conversation", "peer", "request_id", "parameters")


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
    none = prompt is None and output is None and error is None
    return Found(columns, prompt, output, "none" if none else "revealed", error)


# --- the asking is a record too -----------------------------------------------------------------------------------


def _record(connection: sa.Connection, asker: Asker, kind: str, detail: dict[str, Any]) -> None:
    event = officer_row(next(asker.event_ids), asker.at, kind, asker.actor, asker.reason, detail)
    store.record_event(connection, event)


def _record_reveal(connection: sa.Connection, asker: Asker, found: list[Found]) -> None:
    """Who has seen what: each record whose content was shown, by id."""
    seen = [record.columns["call_id"] for record in found if record.content == "revealed"]
    if asker.reveal and seen:
        _record(connection, asker, "content_revealed", {"calls": seen})


def _iso(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _hex(value: bytes | memoryview | None) -> str | None:
    return None if value is None else bytes(value).hex()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return _iso(value)
    return _hex(value) if isinstance(value, bytes | memoryview) else value

"""Reads back what calls were decided from, and the bundles they were decided under; every such look is a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from audit import store
from audit.opening import Opener, Unsealed
from audit.rows import officer_row
from audit.search import Asker
from audit.tables import audit_calls, audit_events, bundles, journal_cursors

__all__ = ["bundle_content", "content_of", "decision_of", "decisions_since", "in_force"]

PAGE: Final = 1000  # rows fetched at once
BUNDLES: Final = 8  # in force at once: one roll-out, and another, under way
STATEMENT_MS: Final = 60_000
_COLUMNS: Final = [
    audit_calls.c[name]
    for name in (
        "call_id", "started_at", "decided_at", "tenant", "principal", "principal_kind", "issuer", "method", "model",
        "alias", "requested_version", "data_class", "rule", "bundle", "outcome", "reason", "would_refuse",
        "region", "jurisdiction", "decision", "data_key", "identity_sealed", "findings", "level", "requested_tokens",
        "prompt_bytes", "prompt_truncated", "output_bytes", "output_truncated", "redacted",
    )
]  # fmt: skip
_CONTENT: Final = [audit_calls.c[name] for name in ("prompt_sealed", "output_sealed", "error_sealed")]


def decision_of(
    engine: sa.Engine, call_id: str, asker: Asker, opener: Opener, jurisdiction: str, *, content: bool = False
) -> Mapping[str, Any] | None:
    """One call's columns, with ``principal`` and ``peer`` as far as they can be opened; None: there is no such call.

    Raises store.MismatchError, KeyFaultError and SQLAlchemy's errors.
    """
    with store.transaction(engine) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        row = connection.execute(sa.select(*_COLUMNS).where(audit_calls.c.call_id == call_id)).mappings().first()
        detail = {"call": call_id, "found": row is not None, **({"content": True} if content else {})}
        store.record_event(
            connection,
            officer_row(next(asker.event_ids), asker.at, "policy_explain", asker.actor, asker.reason, detail),
        )
        return None if row is None else _opened(connection, [dict(row)], opener)[0]


def decisions_since(
    engine: sa.Engine,
    since: datetime,
    until: datetime,
    asker: Asker,
    opener: Opener,
    jurisdiction: str,
    *,
    content: bool = False,
) -> Iterator[Mapping[str, Any]]:
    """Every call from ``since`` (included) until ``until`` (not), oldest first, a page a transaction.

    ``content``: that contents will be opened too (``content_of``), which the event says.
    """
    with store.transaction(engine) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        detail = {"since": since.isoformat(), "until": until.isoformat(), **({"content": True} if content else {})}
        store.record_event(
            connection, officer_row(next(asker.event_ids), asker.at, "policy_replay", asker.actor, asker.reason, detail)
        )
    place = (since, "")
    while True:
        with store.transaction(engine, statement_ms=STATEMENT_MS) as connection:
            after = sa.tuple_(audit_calls.c.started_at, audit_calls.c.call_id) > sa.tuple_(*map(sa.literal, place))
            rows = connection.execute(
                sa.select(*_COLUMNS)
                .where(audit_calls.c.started_at >= since, audit_calls.c.started_at < until, after)
                .order_by(audit_calls.c.started_at, audit_calls.c.call_id)
                .limit(PAGE)
            ).mappings()
            found = _opened(connection, [dict(row) for row in rows], opener)
        yield from found
        if len(found) < PAGE:
            return
        place = (found[-1]["started_at"], found[-1]["call_id"])


def content_of(engine: sa.Engine, row: Mapping[str, Any], opener: Opener) -> Unsealed:
    """Prompt and output of a row of the page that is being read, as far as they were kept and can be opened."""
    with store.transaction(engine, statement_ms=STATEMENT_MS) as connection:
        found = connection.execute(
            sa.select(*_CONTENT).where(
                audit_calls.c.started_at == row["started_at"], audit_calls.c.call_id == row["call_id"]
            )
        ).mappings().first()  # fmt: skip
    return Unsealed(why="its record is gone") if found is None else opener.open({**row, **found}, content=True)


def _opened(connection: sa.Connection, rows: list[dict[str, Any]], opener: Opener) -> list[dict[str, Any]]:
    """Who exactly asked, and from where, is sealed: policies may look at both. "" where it was erased."""
    opener.load(connection, [row["data_key"] for row in rows])
    for row in rows:
        identity = opener.open(row, content=False).identity
        row["peer"] = "" if identity is None else identity.peer
        row["principal"] = row["principal"] or ("" if identity is None else identity.principal)
    return rows


def in_force(connection: sa.Connection, since: datetime) -> list[bytes]:
    """What each sidecar loaded last that was heard of since then and has not ended; at most BUNDLES, the newest."""
    c, j = audit_events.c, journal_cursors.c
    at_work = sa.select(j.log).where(j.updated_at >= since, j.closed_at.is_(None))
    rank = sa.func.row_number().over(partition_by=c.log, order_by=c.at.desc()).label("rank")
    loads = sa.select(c.at, c.detail["digest"].as_string().label("digest"), rank)
    last = loads.where(c.kind == "bundle_loaded", c.log.in_(at_work)).subquery()
    by_age = sa.func.max(last.c.at).desc()
    newest = sa.select(last.c.digest).where(last.c.rank == 1).group_by(last.c.digest).order_by(by_age).limit(BUNDLES)
    found = connection.scalars(sa.select(bundles.c.content).where(bundles.c.digest.in_(newest)))
    return [bytes(content) for content in found]


def bundle_content(engine: sa.Engine, digest: str) -> bytes | None:
    """The bundle as it was stored when it was first in force; None where this database has none of that digest."""
    with store.transaction(engine, statement_ms=STATEMENT_MS) as connection:
        found = connection.execute(sa.select(bundles.c.content).where(bundles.c.digest == digest)).scalar_one_or_none()
        return None if found is None else bytes(found)

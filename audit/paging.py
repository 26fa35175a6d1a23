"""Pages of one search that stay what they were: each reads only what was stored when its first page was asked.

The first page's record (``audit_search``) keeps the size that each log then had. What arrives later has positions
beyond those, however old its calls are: an hour that a sidecar was cut off lands in no page that was already read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from audit.asked import Filter, Keyset, SearchError, replaced
from audit.fleet import FLEET
from audit.opening import Opener
from audit.tables import audit_calls, audit_events, audit_logs

__all__ = ["as_stored", "continued", "sizes", "token"]

KIND: Final = "audit_search"
TOKEN_CHARS: Final = 512
_UNLIKE: Final = ("since", "until", "limit")  # may be said otherwise for the next page; the times are the first one's


def token(event: str, following: Keyset) -> str:
    """What the next page is asked with: the first page's record, and where this page ends."""
    started = following.started_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return f"{event}~{started}~{following.call_id}"


def sizes(connection: sa.Connection) -> dict[str, int]:
    """Of each sidecar's log that holds something, as this transaction sees it."""
    c = audit_logs.c
    query = sa.select(c.log, c.next_position).where(c.next_position > 0, c.log != FLEET)
    return {row.log: row.next_position for row in connection.execute(query)}


def as_stored(logs: Mapping[str, int]) -> sa.ColumnElement[bool]:
    """Of a call: that it was stored when the logs had these sizes."""
    c = audit_calls.c
    known = sa.type_coerce(sa.func.jsonb_extract_path_text(sa.cast(dict(logs), JSONB), c.log), sa.Text)
    return c.position < sa.cast(known, sa.BigInteger)  # of a log that began later: null


def continued(connection: sa.Connection, asked: Filter, opener: Opener | None) -> tuple[Filter, str]:
    """The question as the first page asked it, from where the last one ended; and the first page's record.

    Raises SearchError: a token is none, or of another question.
    """
    assert asked.after is not None
    event, before = _parsed(asked.after)
    c = audit_events.c
    first: Mapping[str, Any] | None = connection.execute(
        sa.select(c.detail).where(c.id == event, c.kind == KIND)
    ).scalar_one_or_none()
    if first is None or "logs" not in first:
        raise SearchError("--after: there is no search of that name here whose pages go on")
    was = dict(first["filter"])
    told = replaced(asked, after=None).told(opener)
    differ = sorted(name for name in {*was, *told} - {*_UNLIKE} if was.get(name) != told.get(name))
    if differ:
        raise SearchError(f"--after goes on with the search that gave it, and this one differs in {', '.join(differ)}")
    times = {name: datetime.fromisoformat(was[name]) if name in was else None for name in ("since", "until")}
    return replaced(asked, after=None, before=before, logs=first["logs"], **times), event


def _parsed(text: str) -> tuple[str, Keyset]:
    event, _, place = text.partition("~")
    told, _, call_id = place.partition("~")
    try:
        started = datetime.fromisoformat(told)
    except ValueError:
        started = None
    if len(text) > TOKEN_CHARS or not event or not call_id or started is None or started.tzinfo is None:
        raise SearchError("--after takes what the page before gave as next, whole")
    return event, Keyset(started, call_id)

"""What is recorded beside calls: who looked, what was held and erased, how keys, bundles and journals changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from audit import store
from audit.asked import Asker, SearchError
from audit.paging import KIND as SEARCHED
from audit.rows import officer_row
from audit.tables import audit_events

__all__ = ["MOST", "Asked", "Events", "find"]

MOST: Final = 10_000  # events a page
_TOKEN_CHARS: Final = 512
_STATEMENT_MS: Final = 30_000
_SHOWN: Final = (
    "id", "at", "kind", "actor", "reason", "detail", "sidecar", "region", "jurisdiction", "log", "position",
    "recorded_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events; None: any. ``since`` is inclusive, ``until`` is not. ``after``: what a page gave as ``next``.

    Of a ``tenant`` are those that name it; a search of every tenant's calls names none.
    """

    since: datetime | None = None
    until: datetime | None = None
    kind: str | None = None
    actor: str | None = None
    tenant: str | None = None
    sidecar: str | None = None
    limit: int = 100
    after: str | None = None

    def told(self) -> dict[str, str | int]:
        """What was asked, for the record of the asking."""
        asked = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asked.items()
            if value is not None
        }


@dataclass(frozen=True, slots=True)
class Events:
    """Newest first. ``next`` asks for those behind them. ``kinds``: all there are, where there is none of the asked."""

    found: Sequence[Mapping[str, Any]]
    next: str | None = None
    kinds: Sequence[str] = ()


def find(engine: sa.Engine, asked: Asked, asker: Asker, jurisdiction: str) -> Events:
    """Raises SearchError, store.MismatchError and SQLAlchemy's errors. Recorded before anything is returned."""
    if not 1 <= asked.limit <= MOST:
        raise SearchError(f"--limit is 1 to {MOST}, not {asked.limit}")
    c = audit_events.c
    query = sa.select(*(c[name] for name in _SHOWN)).order_by(c.at.desc(), c.id.desc()).limit(asked.limit + 1)
    for condition in _conditions(asked):
        query = query.where(condition)
    with store.transaction(engine, statement_ms=_STATEMENT_MS, frozen=True) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        rows = [_shape(row) for row in connection.execute(query).mappings()]
        kinds = _kinds(connection) if asked.kind is not None and not rows else []
        told = {"of": "events", "filter": asked.told()}
        event = officer_row(next(asker.event_ids), asker.at, SEARCHED, asker.actor, asker.reason, told)
        store.record_event(connection, event)
    shown = rows[: asked.limit]
    more = len(rows) > asked.limit
    return Events(shown, _token(shown[-1]) if more else None, [] if asked.kind in kinds else kinds)


def _conditions(asked: Asked) -> list[sa.ColumnElement[bool]]:
    c = audit_events.c
    conditions = [c[name] == getattr(asked, name) for name in ("kind", "actor", "sidecar") if getattr(asked, name)]
    if asked.tenant:
        named = (c.detail["tenant"].astext, c.detail["filter"]["tenant"].astext)
        conditions.append(sa.or_(*(name == asked.tenant for name in named), c.detail["tenants"].has_key(asked.tenant)))
    if asked.since is not None:
        conditions.append(c.at >= asked.since)
    if asked.until is not None:
        conditions.append(c.at < asked.until)
    if asked.after is not None:
        conditions.append(sa.tuple_(c.at, c.id) < sa.tuple_(*map(sa.literal, _place(asked.after))))
    return conditions


def _kinds(connection: sa.Connection) -> list[str]:
    return sorted(connection.scalars(sa.select(audit_events.c.kind).distinct()))


def _shape(row: sa.RowMapping) -> dict[str, Any]:
    return {name: _utc(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _token(last: Mapping[str, Any]) -> str:
    return f"{last['at']}~{last['id']}"


def _place(token: str) -> tuple[datetime, str]:
    told, _, event = token.partition("~")
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        at = None
    if len(token) > _TOKEN_CHARS or not event or at is None or at.tzinfo is None:
        raise SearchError("--after takes what the page before gave as next, whole")
    return at, event

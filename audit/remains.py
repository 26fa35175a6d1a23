"""What a sidecar can still read of the past beside the database: told by its shipper, and what an erasure waits for."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from audit.mending import FOREIGN_MARK
from audit.recovery import DAMAGE_MARK
from audit.segments import read_info, segments_in
from audit.tables import audit_events, journal_cursors

__all__ = ["WAIT", "Exports", "Keeps", "Remains", "keeps_in", "remains", "tell", "unheard"]

WAIT: Final = timedelta(days=30)  # for a sidecar that was not heard of; GDPR 12(3) gives a month
LISTED: Final = 100  # of each kind that a certificate names; the rest are counted


class Keeps(msgspec.Struct, frozen=True):
    """Of one journal: since when it can be read (ISO, UTC; "": it is empty), and what stays until a person acts."""

    since: str = ""
    damaged: int = 0  # segments kept as evidence, and foreign files found under a segment's name
    poisoned: int = 0  # records that the database did not take, kept whole
    copied_to: str = ""  # where copies of it lie, which go when its segments do
    at: str = ""  # when this was looked at


def keeps_in(directory: Path, poison: Path, now: datetime, copied_to: str = "") -> Keeps:
    """Raises OSError."""
    segments = segments_in(directory)
    names = os.listdir(directory)  # noqa: PTH208 — names only
    damaged = sum(name.endswith((DAMAGE_MARK, FOREIGN_MARK)) for name in names)
    poisoned = sum(1 for _ in poison.glob("*.json")) if poison.is_dir() else 0
    since = _began(segments[0][1]) if segments else ""
    return Keeps(since, damaged, poisoned, copied_to, now.isoformat())


def _began(path: Path) -> str:
    """When that segment's first entry can be from; the epoch where its head can't be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = read_info(descriptor)
    finally:
        os.close(descriptor)
    return datetime.fromtimestamp(0 if found is None else found[0].created_ns / 1e9, UTC).isoformat()


def tell(connection: sa.Connection, log: str, keeps: Keeps) -> None:
    """By its shipper, about once a minute."""
    told = sa.update(journal_cursors).where(journal_cursors.c.log == log)
    connection.execute(told.values(keeps=msgspec.to_builtins(keeps)))


@dataclass(frozen=True, slots=True)
class Remains:
    """``waits``: what must go first. ``excludes``: what nobody can say of, or that went out on purpose."""

    waits: list[dict[str, Any]]
    excludes: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Log:
    name: str
    seen: datetime
    closed: bool
    keeps: Keeps | None


def unheard(connection: sa.Connection, since: datetime, at: datetime) -> list[str]:
    """Logs that were at work within WAIT before ``since``, have not ended, and were not heard of after it.

    Nobody waits for them longer than WAIT: a sidecar that is lost must not keep a subject from being erased.
    """
    if at - since > WAIT:
        return []
    return [log.name for log in _logs(connection) if not log.closed and since - WAIT < log.seen <= since]


def _logs(connection: sa.Connection) -> Iterable[_Log]:
    c = journal_cursors.c
    query = sa.select(c.log, c.updated_at, c.closed_at, c.keeps).order_by(c.log, c.updated_at)
    found: dict[str, _Log] = {}
    for log, seen, closed_at, keeps in connection.execute(query):
        known = found.get(log)
        open_still = closed_at is None or (known is not None and not known.closed)
        last = None if known is None else known.keeps
        told = last if keeps is None else msgspec.convert(keeps, Keeps)
        found[log] = _Log(log, seen, not open_still, told)
    return found.values()


def remains(
    connection: sa.Connection, erased_at: datetime, at: datetime, *, tenant: str, exports: Exports | None = None
) -> Remains:
    """Who may still read what was recorded before ``erased_at`` beside the database, as each sidecar said last.

    ``exports``: where they were read already, for several erasures.
    """
    waits, excludes = [], []
    for log in _logs(connection):
        if (at - erased_at > WAIT and log.seen <= erased_at) or log.seen <= erased_at - WAIT:
            excludes.append({"what": "journal", "log": log.name, "why": f"not heard of since {log.seen.isoformat()}"})
            continue
        waits += [{"what": what, "log": log.name, "why": why} for what, why in _of(log, erased_at)]
    known = exports or Exports(connection)
    return Remains(_listed(waits), _listed(excludes) + known.before(erased_at, tenant))


def _of(log: _Log, erased_at: datetime) -> Iterable[tuple[str, str]]:
    if log.seen <= erased_at and not log.closed:
        yield "sidecar", f"not heard of since {log.seen.isoformat()}; it may hold what is not stored yet"
    if log.keeps is None:
        yield "journal", "its sidecar has not said what its journal still holds"
        return
    if not log.closed and datetime.fromisoformat(log.keeps.at) <= erased_at:
        yield "journal", "its sidecar has not said since then what its journal still holds"
        return
    copies = f", and its copies at {log.keeps.copied_to}" if log.keeps.copied_to else ""
    if log.keeps.since and datetime.fromisoformat(log.keeps.since) <= erased_at:
        ended = "; its sidecar ended, so its volume must be removed or started again" if log.closed else ""
        yield "journal", f"its journal{copies} can be read from {log.keeps.since} on{ended}"
    if log.keeps.damaged:
        yield "damaged_segments", f"{log.keeps.damaged} kept as evidence until somebody has removed them"
    if log.keeps.poisoned:
        yield "poison", f"{log.keeps.poisoned} records kept whole until somebody has removed them"


class Exports:
    """What was written out with its content, as one transaction sees it: nobody here knows where it is."""

    def __init__(self, connection: sa.Connection) -> None:
        c = audit_events.c
        query = sa.select(c.id, c.at, c.detail["filter"]["tenant"].as_string()).where(
            c.kind == "audit_export", c.log.is_(None), c.detail.contains({"reveal": True})
        )
        self._of: dict[str | None, list[tuple[datetime, str]]] = {}  # by tenant, None: of all of them
        for event, when, tenant in connection.execute(query.order_by(c.at, c.id)):
            self._of.setdefault(tenant, []).append((when, event))

    def before(self, erased_at: datetime, tenant: str) -> list[dict[str, Any]]:
        """Those that may hold what is of ``tenant``, newest first, as a certificate lists them."""
        told, count = list[tuple[datetime, str]](), 0
        for each in (self._of.get(None, []), self._of.get(tenant, [])):
            end = bisect_right(each, erased_at, key=lambda one: one[0])
            told += each[max(0, end - LISTED) : end]
            count += end
        found = [
            {"what": "export", "event": event, "why": f"written out with its content at {when.isoformat()}"}
            for when, event in sorted(told, reverse=True)
        ]
        return _listed(found, count)


def _listed(found: list[dict[str, Any]], count: int | None = None) -> list[dict[str, Any]]:
    """``count``: how many there are, where not all of them were given."""
    more = (len(found) if count is None else count) - LISTED
    return found if more <= 0 else [*found[:LISTED], {"what": "more", "why": f"{more} more of the kind"}]

"""Finds records by the words of their sealed content: by the blind index, or by opening one record after another.

The index (``audit_terms``) holds keyed hashes of words, under the data key that the content itself is sealed under: it
tells nothing without the master keys, equal words of two subjects look different, and it dies with them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from audit.asked import Asker, Filter, Found, Keyset, Page, SearchError, replaced
from audit.opening import Opener, key_row
from audit.tables import audit_terms, data_keys
from audit.vault import CUT_TERM, terms, unwrap
from audit.words import STOP, holds, sought

__all__ = ["by_text", "windowed"]

WINDOW: Final = timedelta(days=31)
DEFAULT: Final = timedelta(hours=24)
SCANNED: Final = 100_000  # records opened by one search
PAGE: Final = 200  # records fetched at once
KEYS: Final = 100_000  # data keys whose words one search computes
KEYS_AT_ONCE: Final = 5_000
SCAN_TOLD: Final = "no index: each record of that time was opened and read"
INDEX_TOLD: Final = (
    "found by the index of words, which has the calls of tenants that are searchable (audit.searchable in the bundle);"
    " --scan with --reveal opens every record instead"
)

Pages = Callable[[Filter], Page]


def by_text(connection: sa.Connection, asked: Filter, asker: Asker, opener: Opener | None, pages: Pages) -> Page:
    """``pages`` answers a question as if it had no text; ``asked`` is ``windowed``. Raises SearchError.

    By the index where any of the window's calls is in it; what it finds is confirmed on the content only where that is
    to be revealed. Newest first, as everything.
    """
    if opener is None:
        raise SearchError("content is sealed: finding words in it needs the tenants' master keys")
    if not asked.scan:
        days = _days(connection, asked)
        if days:
            return _Indexed(connection, asked, opener, pages, confirm=asker.reveal).run(days)
    if not asker.reveal:
        why = "it was asked to open each record" if asked.scan else "no call of that time is indexed (audit.searchable)"
        raise SearchError(f"searching for a text opens the records' content, for {why}: it needs --reveal and --reason")
    return _scanned(asked, pages)


def windowed(asked: Filter, at: datetime) -> Filter:
    """With the times that a text is sought in. Raises SearchError."""
    until = asked.until or at
    since = asked.since or until - DEFAULT
    if until - since > WINDOW:
        raise SearchError(f"a text is sought over at most {WINDOW.days} days at once; narrow --since and --until")
    return replaced(asked, since=since, until=until)


# --- without an index ---------------------------------------------------------------------------------------------


def _scanned(asked: Filter, pages: Pages) -> Page:
    """Open record after record, newest first, until enough match; bounded by the window and by SCANNED."""
    word = (asked.text or "").casefold()
    found: list[Found] = []
    before = asked.before
    for _ in range(SCANNED // PAGE):
        page = pages(replaced(asked, limit=PAGE, before=before))
        for record in page.found:
            if any(word in text.casefold() for text in record.texts):
                found.append(record)
                if len(found) == asked.limit:
                    return Page(found, record.key, told=SCAN_TOLD)
        if page.following is None:
            return Page(found, told=SCAN_TOLD)
        before = page.following
    return Page(found, before, cut=True, told=SCAN_TOLD)


# --- by the index -------------------------------------------------------------------------------------------------


def _keys(asked: Filter) -> sa.ColumnElement[bool]:
    """The data keys of the window that something is indexed under."""
    c, t = data_keys.c, audit_terms.c
    begins = sa.func.timezone("UTC", sa.cast(c.day, sa.DateTime))
    indexed = sa.exists().where(t.data_key == c.id, t.started_at >= begins, t.started_at < begins + timedelta(days=1))
    assert asked.since is not None
    assert asked.until is not None
    until = asked.until if asked.before is None else min(asked.until, asked.before.started_at)
    window = (c.day >= _day(asked.since), c.day <= _day(until), c.wrapped.is_not(None), indexed)
    return sa.and_(*window, *([] if asked.tenant is None else [c.tenant == asked.tenant]))


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()


def _days(connection: sa.Connection, asked: Filter) -> list[date]:
    """Newest first."""
    return list(connection.scalars(sa.select(data_keys.c.day).where(_keys(asked)).distinct().order_by(sa.desc("day"))))


class _Indexed:
    def __init__(
        self, connection: sa.Connection, asked: Filter, opener: Opener, pages: Pages, *, confirm: bool
    ) -> None:
        words = sought(asked.text or "")
        if words is None:
            some = ", ".join(sorted(STOP)[:6])
            raise SearchError(f"nothing of that text is a word that is indexed (single letters and {some} … are not)")
        self._words, self._confirm = words, confirm
        self._connection, self._asked, self._opener, self._pages = connection, asked, opener, pages
        self._left = KEYS

    def run(self, days: Sequence[date]) -> Page:
        asked = self._asked
        found: list[Found] = []
        last = asked.before
        for day in days:
            if self._left <= 0:
                return Page(found, last, cut=True, told=INDEX_TOLD)
            hits = self._hits(day)
            while some := list(itertools.islice(hits, PAGE)):
                for record in self._pages(replaced(asked, limit=len(some), before=None, among=tuple(some))).found:
                    if self._fits(record):
                        found.append(record)
                        if len(found) == asked.limit:
                            return Page(found, record.key, told=INDEX_TOLD)
                last = some[-1]
        return Page(found, told=INDEX_TOLD)

    def _fits(self, record: Found) -> bool:
        return not self._confirm or holds(record.texts, self._words)

    def _hits(self, day: date) -> Iterator[Keyset]:
        """The day's calls that the index has under all the words, newest first."""
        query = sa.select(data_keys).where(_keys(self._asked), data_keys.c.day == day).limit(self._left)
        rows = self._connection.execute(query.order_by(data_keys.c.id)).all()
        self._left -= len(rows)
        secrets = [unwrap(self._opener.provider, key_row(row)).secret for row in rows]
        known = [secret for secret in secrets if secret is not None]
        runs = [self._run(day, known[at : at + KEYS_AT_ONCE]) for at in range(0, len(known), KEYS_AT_ONCE)]
        return heapq.merge(*runs, key=lambda hit: (hit.started_at, hit.call_id), reverse=True)

    def _run(self, day: date, secrets: Sequence[bytes]) -> Iterator[Keyset]:
        """Those of some data keys."""
        c, asked = audit_terms.c, self._asked
        by_key = [terms(secret, self._words) for secret in secrets]
        conditions = [c.terms.overlap(self._array(hashes)) for hashes in zip(*by_key, strict=True)]
        begins = sa.text(f"'{day} 00:00:00+00'::timestamptz")
        ends = sa.text(f"'{day + timedelta(days=1)} 00:00:00+00'::timestamptz")
        window = (c.started_at >= begins, c.started_at < ends, c.started_at >= asked.since, c.started_at < asked.until)
        query = sa.select(c.started_at, c.call_id).where(*window, *conditions)
        before = asked.before
        while True:
            page = query.order_by(c.started_at.desc(), c.call_id.desc()).limit(PAGE)
            if before is not None:
                key = sa.tuple_(sa.literal(before.started_at), sa.literal(before.call_id))
                page = page.where(sa.tuple_(c.started_at, c.call_id) < key)
            rows = self._connection.execute(page).all()
            for row in rows:
                before = Keyset(row.started_at, row.call_id)
                yield before
            if len(rows) < PAGE:
                return

    def _array(self, hashes: Sequence[int]) -> Any:
        """Of one word under each key; what was cut short is a candidate where its content can be asked."""
        wanted = [*hashes, CUT_TERM] if self._confirm else list(hashes)
        return sa.cast(sa.literal(wanted, ARRAY(sa.BigInteger)), ARRAY(sa.BigInteger))

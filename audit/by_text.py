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
_LEAST: Final = "0"  # no call's id is before it
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
        page = _Indexed(connection, asked, opener, pages, confirm=asker.reveal).run()
        if page is not None:
            return page
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


def _days(asked: Filter) -> Iterator[date]:
    """Of the window, newest first; not those that earlier pages were of."""
    assert asked.since is not None
    assert asked.until is not None
    before = asked.before or Keyset(asked.until, _LEAST)
    day, first = min(before.started_at, asked.until).astimezone(UTC).date(), asked.since.astimezone(UTC).date()
    if before == Keyset(_begin(day), _LEAST):
        day -= timedelta(days=1)
    while day >= first:
        yield day
        day -= timedelta(days=1)


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _span(day: date) -> tuple[Any, Any]:
    """As literals, so that one partition is asked."""
    c = audit_terms.c
    begins, ends = (f"'{each} 00:00:00+00'::timestamptz" for each in (day, day + timedelta(days=1)))
    return c.started_at >= sa.text(begins), c.started_at < sa.text(ends)


class _Indexed:
    def __init__(
        self, connection: sa.Connection, asked: Filter, opener: Opener, pages: Pages, *, confirm: bool
    ) -> None:
        self._words, self._confirm = sought(asked.text or "") or [], confirm
        self._connection, self._asked, self._opener, self._pages = connection, asked, opener, pages
        self._left = KEYS

    def run(self) -> Page | None:
        """None: nothing of that time is indexed. Raises SearchError."""
        asked = self._asked
        found: list[Found] = []
        there = asked.before is not None
        for day in _days(asked):
            if self._left <= 0:  # the next page begins with this day, found or not
                return Page(found, Keyset(_begin(day + timedelta(days=1)), _LEAST), cut=True, told=INDEX_TOLD)
            secrets = self._secrets(day)
            if secrets and not self._words:
                few = ", ".join(sorted(STOP)[:6])
                raise SearchError(
                    f"nothing of that text is a word that is indexed (single letters and {few} … are not)"
                )
            there = there or bool(secrets)
            hits = self._hits(day, secrets)
            while some := list(itertools.islice(hits, PAGE)):
                for record in self._pages(replaced(asked, limit=len(some), before=None, among=tuple(some))).found:
                    if self._fits(record):
                        found.append(record)
                        if len(found) == asked.limit:
                            return Page(found, record.key, told=INDEX_TOLD)
        return Page(found, cut=self._left <= 0, told=INDEX_TOLD) if there else None

    def _fits(self, record: Found) -> bool:
        return not self._confirm or holds(record.texts, self._words)

    def _secrets(self, day: date) -> list[bytes | None]:
        """Of the data keys that something of the day is indexed under; None: of one that can't be unwrapped."""
        c, t = data_keys.c, audit_terms.c
        # One look into the index a key: asked whether there is any, Postgres may read all that are indexed instead.
        any_of = sa.select(t.call_id).where(t.data_key == c.id, *_span(day)).limit(1).lateral("indexed")
        query = sa.select(data_keys).join(any_of, sa.true()).where(c.day == day, c.wrapped.is_not(None))
        if self._asked.tenant is not None:
            query = query.where(c.tenant == self._asked.tenant)
        rows = self._connection.execute(query.order_by(c.id).limit(self._left)).all()
        self._left -= len(rows)
        return [unwrap(self._opener.provider, key_row(row)).secret for row in rows]

    def _hits(self, day: date, secrets: Sequence[bytes | None]) -> Iterator[Keyset]:
        """The day's calls that the index has under all the words, newest first."""
        known = [secret for secret in secrets if secret is not None]
        runs = [self._run(day, known[at : at + KEYS_AT_ONCE]) for at in range(0, len(known), KEYS_AT_ONCE)]
        return heapq.merge(*runs, key=lambda hit: (hit.started_at, hit.call_id), reverse=True)

    def _run(self, day: date, secrets: Sequence[bytes]) -> Iterator[Keyset]:
        """Those of some data keys."""
        c, asked = audit_terms.c, self._asked
        by_key = [terms(secret, self._words) for secret in secrets]
        conditions = [c.terms.overlap(self._array(hashes)) for hashes in zip(*by_key, strict=True)]
        window = (*_span(day), c.started_at >= asked.since, c.started_at < asked.until)
        before = asked.before
        while True:
            held = sa.select(c.started_at, c.call_id).where(*window, *conditions)
            if before is not None:
                key = sa.tuple_(sa.literal(before.started_at), sa.literal(before.call_id))
                held = held.where(sa.tuple_(c.started_at, c.call_id) < key)
            # Found by the words first: ordered at once, Postgres would rather look through all from the newest on.
            hits = held.cte("hits").prefix_with("MATERIALIZED", dialect="postgresql")
            page = sa.select(hits).order_by(hits.c.started_at.desc(), hits.c.call_id.desc()).limit(PAGE)
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

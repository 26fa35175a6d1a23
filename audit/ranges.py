"""Reads a log's rows by position and checks a range of them against its leaves, here or in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy.dialects.postgresql import JSONB

from audit import store
from audit.evidence import Fault, StoredRow, check_rows
from audit.leaf import canonical_json
from audit.merkle import HASH_BYTES
from audit.rows import CALL_COLUMNS, EVENT_COLUMNS
from audit.tables import audit_calls, audit_events

__all__ = ["Pool", "Range", "check_range", "rows_of"]

FETCHED: Final = 200  # rows in memory at once


@dataclass(frozen=True, slots=True)
class Range:
    """The leaves from position ``first`` on; ``gone``: ranges [first, last] whose rows were dropped on record."""

    log: str
    first: int
    hashes: bytes
    gone: Sequence[tuple[int, int]] = ()

    @property
    def count(self) -> int:
        return len(self.hashes) // HASH_BYTES


class _Select:
    """One table's rows in the order of its leaf's columns: JSON as text, so that equal texts are read once."""

    def __init__(self, kind: str, table: Any, columns: tuple[str, ...]) -> None:
        self._kind, self._position = kind, columns.index("position")
        self._json = tuple(place for place, name in enumerate(columns) if isinstance(table.c[name].type, JSONB))
        listed = sql.SQL(", ").join(
            sql.SQL("{}::text").format(sql.Identifier(name)) if place in self._json else sql.Identifier(name)
            for place, name in enumerate(columns)
        )
        where = sql.SQL(" WHERE log = %s AND position >= %s AND position < %s")
        self._query = sql.SQL("SELECT {} FROM {}").format(listed, sql.Identifier(table.schema, table.name)) + where

    def rows(self, driver: psycopg.Connection[Any], log: str, first: int, end: int) -> Iterator[StoredRow]:
        """At positions [first, end), in no order; a few at a time, however large they are."""
        with driver.cursor(binary=True) as cursor:
            for row in cursor.stream(self._query, (log, first, end), binary=True, size=FETCHED):
                values = list(row)
                for place in self._json:
                    values[place] = _canonical(values[place])
                yield StoredRow(self._kind, values[self._position], values)


_CALLS: Final = _Select("call", audit_calls, CALL_COLUMNS)
_EVENTS: Final = _Select("event", audit_events, EVENT_COLUMNS)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    return text if text in {"[]", "{}"} else canonical_json(json.loads(text))


def rows_of(driver: psycopg.Connection[Any], log: str, first: int, end: int) -> Iterator[StoredRow]:
    """Calls, then events, at positions [first, end)."""
    yield from _CALLS.rows(driver, log, first, end)
    yield from _EVENTS.rows(driver, log, first, end)


def check_range(driver: psycopg.Connection[Any], asked: Range) -> list[Fault]:
    """What is wrong with it."""
    rows = rows_of(driver, asked.log, asked.first, asked.first + asked.count)
    return list(check_rows(asked.log, asked.first, asked.hashes, rows, gone=asked.gone))


# --- processes ----------------------------------------------------------------------------------------------------

_apart: list[psycopg.Connection[Any]] = []  # of this process: its one connection, on the snapshot that all share


def _begin(dsn: str, snapshot: str) -> None:
    driver = store.plain_connection(dsn, application="warden-verify")
    driver.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    driver.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    _apart.append(driver)


def _check(asked: Range) -> list[Fault]:
    return check_range(_apart[0], asked)


class Pool(ProcessPoolExecutor):
    """``jobs`` processes that read the same snapshot of the database; the transaction that exported it must stay."""

    def __init__(self, jobs: int, dsn: str, snapshot: str) -> None:
        super().__init__(jobs, get_context("forkserver"), _begin, (dsn, snapshot))

    def check(self, asked: Range) -> Any:
        """A future of ``check_range``."""
        return self.submit(_check, asked)

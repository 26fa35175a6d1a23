"""Sums what the calls of a batch used, by hour, tenant, model and key, inside the transaction that stores them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit.rows import CallRow
from audit.tables import SUMS_OF_TIME, usage_hours

__all__ = ["LARGEST", "SUMS", "add", "summed"]

LARGEST: Final = 2**63 - 1  # that a count's column holds: a sum stops there, and keeps no record from being stored

SUMS: Final = (
    "calls", "input_tokens", "output_tokens", "exact_input_tokens", "exact_output_tokens", "estimated_calls",
    "request_bytes", "response_bytes", "call_ns", "compute_ns", "kv_byte_ms",
)  # fmt: skip
_KEY: Final = ("hour", "tenant", "model", "key_id", "log")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Key = tuple[datetime, str, str, str]


def summed(rows: Iterable[CallRow]) -> dict[Key, tuple[int, ...]]:
    """SUMS by hour, tenant, model and key; of calls that were forwarded to a model, whatever their end."""
    found: dict[tuple[int, str, str, str], list[tuple[int, ...]]] = {}
    for row in rows:
        if row.used is not None:
            hour, tenant, model, key_id, used = row.used
            found.setdefault((hour, tenant, model, key_id), []).append(used)
    return {
        (_EPOCH + timedelta(hours=hour), tenant, model, key_id): (len(each), *map(sum, zip(*each, strict=True)))
        for (hour, tenant, model, key_id), each in found.items()
    }


def add(connection: sa.Connection, log: str, rows: Iterable[CallRow]) -> None:
    """Inside the transaction that stores ``rows`` in ``log``: so each is counted once, as it is stored once."""
    values = [
        {**dict(zip(_KEY, key, strict=False)), "log": log, **dict(zip(SUMS, map(_held, SUMS, sums), strict=True))}
        for key, sums in sorted(summed(rows).items())
    ]
    if not values:
        return
    statement = pg_insert(usage_hours)
    grown = {name: _grown(usage_hours.c[name], statement.excluded[name]) for name in SUMS}
    connection.execute(statement.on_conflict_do_update(index_elements=_KEY, set_=grown), values)


def _held(name: str, value: int) -> int:
    return value if name in SUMS_OF_TIME else min(value, LARGEST)


def _grown(column: sa.Column[int], more: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    if column.name in SUMS_OF_TIME:
        return column + more
    return sa.func.least(sa.cast(column, sa.Numeric) + more, LARGEST)

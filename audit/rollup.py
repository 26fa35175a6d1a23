"""Sums what the calls of a batch used, by hour, tenant, model and key, inside the transaction that stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from operator import add as _plus
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit.rows import CALL_COLUMNS, CallRow
from audit.tables import usage_hours

__all__ = ["SUMS", "add", "summed"]

SUMS: Final = (
    "calls", "input_tokens", "output_tokens", "exact_input_tokens", "exact_output_tokens", "estimated_calls",
    "request_bytes", "response_bytes", "call_ns", "compute_ns", "kv_byte_ms",
)  # fmt: skip
_HOUR: Final = timedelta(hours=1)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_KEY: Final = ("hour", "tenant", "model", "key_id", "log")
_NOTHING: Final = (0,) * len(SUMS)


def _columns(*names: str) -> Callable[[list[Any]], tuple[Any, ...]]:
    return itemgetter(*map(CALL_COLUMNS.index, names))


_of: Final = _columns("outcome", "tenant", "model", "key_id")
_spent: Final = _columns(
    "input_tokens", "output_tokens", "duration_ns", "input_exact", "output_exact", "request_bytes", "response_bytes",
    "kv_byte_ms",
)  # fmt: skip

Key = tuple[datetime, str, str, str]


def summed(rows: Iterable[CallRow]) -> dict[Key, tuple[int, ...]]:
    """SUMS by hour, tenant, model and key; of calls that were forwarded to a model, whatever their end.

    ``compute_ns`` is of calls without tokens, which are charged for their time.
    """
    found: dict[Key, tuple[int, ...]] = {}
    hour = until = _EARLIEST
    for row in rows:
        outcome, tenant, model, key_id = _of(row.values)
        if outcome == "refused" or not model:
            continue
        if not hour <= row.started < until:
            hour = row.started.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            until = hour + _HOUR
        key = (hour, tenant, model, key_id)
        found[key] = tuple(map(_plus, found.get(key, _NOTHING), _used(row.values)))
    return found


def _used(value: list[Any]) -> tuple[int, ...]:
    tokens_in, tokens_out, spent, exact_in, exact_out, request_bytes, response_bytes, held = _spent(value)
    return (
        1, tokens_in, tokens_out, tokens_in if exact_in else 0, tokens_out if exact_out else 0,
        int(not (exact_in and exact_out)), request_bytes, response_bytes, spent,
        0 if tokens_in or tokens_out else spent, held,
    )  # fmt: skip


def add(connection: sa.Connection, log: str, rows: Iterable[CallRow]) -> None:
    """Inside the transaction that stores ``rows`` in ``log``: so each is counted once, as it is stored once."""
    values = [
        {**dict(zip(_KEY, key, strict=False)), "log": log, **dict(zip(SUMS, sums, strict=True))}
        for key, sums in sorted(summed(rows).items())
    ]
    if not values:
        return
    statement = pg_insert(usage_hours)
    grown = {name: usage_hours.c[name] + statement.excluded[name] for name in SUMS}
    connection.execute(statement.on_conflict_do_update(index_elements=_KEY, set_=grown), values)

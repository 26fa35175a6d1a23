"""Sums what the calls of a batch used, by hour, tenant, model and key, inside the transaction that stores them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
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
_AT: Final = {name: at for at, name in enumerate(CALL_COLUMNS)}
_KEY: Final = ("hour", "tenant", "model", "key_id", "log")
_NOTHING: Final = (0,) * len(SUMS)

Key = tuple[datetime, str, str, str]


def summed(rows: Iterable[CallRow]) -> dict[Key, tuple[int, ...]]:
    """SUMS by hour, tenant, model and key; of calls that were forwarded to a model, whatever their end.

    ``compute_ns`` is of calls without tokens, which are charged for their time.
    """
    found: dict[Key, tuple[int, ...]] = {}
    for row in rows:
        value = row.values
        if value[_AT["outcome"]] == "refused" or not value[_AT["model"]]:
            continue
        hour = row.started.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        key = (hour, value[_AT["tenant"]], value[_AT["model"]], value[_AT["key_id"]])
        into = found.get(key, _NOTHING)
        found[key] = tuple(map(int.__add__, into, _used(value)))
    return found


def _used(value: list[Any]) -> tuple[int, ...]:
    tokens_in, tokens_out, spent = value[_AT["input_tokens"]], value[_AT["output_tokens"]], value[_AT["duration_ns"]]
    exact_in, exact_out = value[_AT["input_exact"]], value[_AT["output_exact"]]
    return (
        1, tokens_in, tokens_out, tokens_in if exact_in else 0, tokens_out if exact_out else 0,
        int(not (exact_in and exact_out)), value[_AT["request_bytes"]], value[_AT["response_bytes"]], spent,
        0 if tokens_in or tokens_out else spent, value[_AT["kv_byte_ms"]],
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

"""What was used, for chargeback: the sums that were kept as the records were stored, and that outlive them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from audit import store
from audit.rollup import SUMS
from audit.rows import officer_row
from audit.search import Asker
from audit.tables import usage_hours

__all__ = ["BY", "MEASURES", "hour_of", "usage"]

STATEMENT_MS: Final = 60_000
BY: Final = ("hour", "day", "tenant", "model", "key_id")
"""What sums may be taken by; a day is UTC's."""

MEASURES: Final = (
    "calls", "input_tokens", "output_tokens", "exact_input_tokens", "exact_output_tokens", "estimated_calls",
    "request_bytes", "response_bytes", "call_seconds", "compute_seconds", "kv_byte_seconds",
)  # fmt: skip
"""``exact_*``: of the tokens, those that the backend counted. ``estimated_calls``: those of which it did not count all.

``call_seconds``: from arrival to end, the wait in Triton's queue included; ``compute_seconds``: those of models without
tokens, which are charged for time. ``kv_byte_seconds``: bytes of KV cache that were filled, for how long.
"""


def usage(
    engine: sa.Engine,
    since: datetime,
    until: datetime,
    tenant: str | None,
    by: Sequence[str],
    asker: Asker,
    jurisdiction: str,
) -> Iterator[tuple[Any, ...]]:
    """Lines of what ``by`` (of BY) names, in that order, and MEASURES; of hours that begin in ``[since, until)``.

    Calls that were forwarded to a model, whatever their end. That it was asked is recorded, as a search is.
    """
    c = usage_hours.c
    hour = sa.func.timezone("UTC", c.hour)
    of = {
        "hour": hour,
        "day": sa.func.date_trunc("day", hour),
        "tenant": c.tenant,
        "model": c.model,
        "key_id": c.key_id,
    }
    groups = [of[name].label(name) for name in by]
    query = (
        sa.select(*groups, *(sa.func.sum(c[name]) for name in SUMS))
        .where(c.hour >= since, c.hour < until)
        .group_by(*groups)
        .order_by(*groups)
    )
    if tenant is not None:
        query = query.where(c.tenant == tenant)
    with store.transaction(engine, statement_ms=STATEMENT_MS, frozen=True) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        detail = {"tenant": tenant, "since": since.isoformat(), "until": until.isoformat(), "by": list(by)}
        store.record_event(
            connection, officer_row(next(asker.event_ids), asker.at, "usage_read", asker.actor, asker.reason, detail)
        )
        rows = connection.execute(query).all()
    for row in rows:
        named, sums = row[: len(groups)], [int(value or 0) for value in row[len(groups) :]]
        if not groups and not sums[0]:
            return
        *plain, call_ns, compute_ns, kv_byte_ms = sums
        yield (*named, *plain, _seconds(call_ns, 10**9), _seconds(compute_ns, 10**9), _seconds(kv_byte_ms, 1000))


def _seconds(units: int, per_second: int) -> float:
    return round(units / per_second, 3)


def hour_of(at: datetime) -> datetime:
    """When the hour of ``at`` began."""
    return at - timedelta(minutes=at.minute, seconds=at.second, microseconds=at.microsecond)

"""What was used, by hour, tenant, model and key: summed from the records of the calls, so it is what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from audit import store
from audit.rows import officer_row
from audit.search import Asker
from audit.tables import audit_calls

__all__ = ["COLUMNS", "Used", "usage"]

STATEMENT_MS: Final = 60_000
COLUMNS: Final = (
    "hour", "tenant", "model", "key_id", "calls", "input_tokens", "output_tokens", "estimated_calls",
    "request_bytes", "response_bytes", "call_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Used:
    """One line. ``estimated_calls``: of ``calls``, those whose tokens the backend did not count.

    ``call_seconds`` is from a call's arrival to its end: what it occupied, its wait in Triton's queue included.
    """

    hour: datetime
    tenant: str
    model: str
    key_id: str
    calls: int
    input_tokens: int
    output_tokens: int
    estimated_calls: int
    request_bytes: int
    response_bytes: int
    call_seconds: float


def usage(
    engine: sa.Engine, since: datetime, until: datetime, tenant: str | None, asker: Asker, jurisdiction: str
) -> Iterator[Used]:
    """Calls that were forwarded and began in ``[since, until)``, in the order of COLUMNS' first four.

    That it was asked is recorded, as a search is.
    """
    c = audit_calls.c
    hour = sa.func.date_trunc("hour", sa.func.timezone("UTC", c.started_at)).label("hour")
    counted = sa.and_(c.input_exact, c.output_exact)
    query = (
        sa.select(
            hour, c.tenant, c.model, c.key_id, sa.func.count(), sa.func.sum(c.input_tokens),
            sa.func.sum(c.output_tokens), sa.func.count().filter(sa.not_(counted)), sa.func.sum(c.request_bytes),
            sa.func.sum(c.response_bytes), sa.func.sum(c.duration_ns),
        )
        .where(c.started_at >= since, c.started_at < until, c.outcome != "refused", c.model != "")
        .group_by(hour, c.tenant, c.model, c.key_id)
        .order_by(hour, c.tenant, c.model, c.key_id)
    )  # fmt: skip
    if tenant is not None:
        query = query.where(c.tenant == tenant)
    with store.transaction(engine, statement_ms=STATEMENT_MS, frozen=True) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        detail = {"tenant": tenant, "since": since.isoformat(), "until": until.isoformat()}
        store.record_event(
            connection, officer_row(next(asker.event_ids), asker.at, "usage_read", asker.actor, asker.reason, detail)
        )
        rows = connection.execute(query).all()
    for row in rows:
        calls, tokens_in, tokens_out, estimated, sent, received, spent_ns = (int(value or 0) for value in row[4:])
        seconds = round(spent_ns / 1e9, 3)
        yield Used(row[0], row[1], row[2], row[3], calls, tokens_in, tokens_out, estimated, sent, received, seconds)

"""Checks what follows from records, or names itself: sums of usage, and the bundles that calls were decided under."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from audit.evidence import Fault, FaultKind
from audit.rollup import LARGEST, SUMS
from audit.tables import SUMS_OF_TIME, bundles
from policies.files import digest, unpack

__all__ = ["check_bundles", "check_usage"]

LISTED: Final = 100
_LOG: Final = "fleet"
# As the shipper adds them up (audit.rollup). A day whose records were dropped keeps its sums: it isn't looked at.
_SUMS: Final = {
    "calls": "count(*)", "input_tokens": "sum(input_tokens)", "output_tokens": "sum(output_tokens)",
    "exact_input_tokens": "sum(input_tokens) FILTER (WHERE input_exact)",
    "exact_output_tokens": "sum(output_tokens) FILTER (WHERE output_exact)",
    "estimated_calls": "count(*) FILTER (WHERE NOT (input_exact AND output_exact))",
    "request_bytes": "sum(request_bytes)", "response_bytes": "sum(response_bytes)", "call_ns": "sum(duration_ns)",
    "compute_ns": "sum(duration_ns) FILTER (WHERE input_tokens = 0 AND output_tokens = 0)",
    "kv_byte_ms": "sum(kv_byte_ms)",
}  # fmt: skip
_KEY: Final = "hour, tenant, model, key_id, log"


def check_usage(connection: sa.Connection) -> Iterator[Fault]:
    """Hours whose sums are not those of their records; reads every record there is."""
    sums = ", ".join(f"{_held(name)} AS {name}" for name in SUMS)
    differ = f"({', '.join(f'u.{name}' for name in SUMS)}) IS DISTINCT FROM ({', '.join(f'c.{name}' for name in SUMS)})"
    query = f"""
WITH days AS (
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'warden.audit_calls'::regclass),
c AS (
    SELECT date_trunc('hour', started_at, 'UTC') AS hour, tenant, model, key_id, log, {sums}
    FROM warden.audit_calls WHERE outcome <> 'refused' AND model <> '' GROUP BY 1, 2, 3, 4, 5),
u AS (SELECT * FROM warden.usage_hours WHERE date_trunc('day', hour, 'UTC') IN (SELECT day FROM days))
SELECT {_KEY} FROM u FULL JOIN c USING ({_KEY}) WHERE {differ} ORDER BY {_KEY} LIMIT {LISTED}"""  # noqa: S608 — ours
    for hour, tenant, model, _, log in connection.execute(sa.text(query)):
        words = f"the usage of {tenant} on {model} in the hour of {hour.isoformat()} is not the sum of its records"
        yield Fault(FaultKind.ALTERED_COLUMN, log, words)


def _held(name: str) -> str:
    """The sum as audit.rollup lets its column hold it."""
    told = f"coalesce({_SUMS[name]}, 0)"
    return told if name in SUMS_OF_TIME else f"least({told}, {LARGEST})"


def check_bundles(connection: sa.Connection) -> Iterator[Fault]:
    """Bundles whose content is not what their digest says."""
    for name in connection.scalars(sa.select(bundles.c.digest)).all():
        content = connection.scalar(sa.select(bundles.c.content).where(bundles.c.digest == name))
        try:
            same = content is not None and digest(unpack(bytes(content))) == name
        except (tarfile.TarError, ValueError, EOFError):
            same = False
        if not same:
            yield Fault(FaultKind.ALTERED_COLUMN, _LOG, f"bundle {name} is not what its digest says")

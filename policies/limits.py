"""A tenant's quotas: its plan's, but where the tenant's own document says otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from policies.document import LimitsDoc, PlanDoc
from sidecar.core.model import Limits, RequestRate

__all__ = ["resolve"]


def resolve(plan: PlanDoc, overrides: Sequence[LimitsDoc]) -> Limits:
    """Each limit comes whole from the last override that writes it (``unlimited`` too), else from the plan."""
    written = {name: getattr(plan, name) for name in PlanDoc.model_fields if name in LimitsDoc.model_fields}
    for override in overrides:
        written |= {name: getattr(override, name) for name in written if name in override.model_fields_set}
    requests, tokens, timeout = written["requests"], written["tokens"], written["queue_timeout"]
    return Limits(
        requests=None if requests is None else RequestRate(requests.rate, requests.burst),
        tokens_per_minute=None if tokens is None else tokens.per_minute,
        concurrency=written["concurrency"],
        kv_bytes=written["kv_memory"],
        tensor_bytes=written["tensor_memory"],
        priority=written["priority"],
        queue_timeout_us=None if timeout is None else max(1, round(timeout * 1e6)),
    )

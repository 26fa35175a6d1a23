"""Turns what the rooms know into the readings that `/metrics` shows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sidecar.core.model import Quantity
from sidecar.telemetry.catalogue import JournalState
from sidecar.telemetry.instruments import Reading

__all__ = ["held", "info", "journal_state"]


def journal_state(state: JournalState) -> Reading:
    """``warden_journal_state``: 1 for the state it is in, 0 for the others, so that a change of state is a value."""
    return {(other.value,): float(other is state) for other in JournalState}


def held(tenants: Iterable[str], of: Callable[[str], tuple[int, int]]) -> Reading:
    """``warden_quota_held_bytes``: ``of`` a tenant gives its KV-cache and tensor bytes."""
    reading: dict[tuple[str, ...], float] = {}
    for tenant in tenants:
        kv_bytes, tensor_bytes = of(tenant)
        reading[tenant, Quantity.KV_BYTES.value] = float(kv_bytes)
        reading[tenant, Quantity.TENSOR_BYTES.value] = float(tensor_bytes)
    return reading


def info(*values: str) -> Reading:
    """An info metric: its label values, in the catalogue's order."""
    return {values: 1.0}

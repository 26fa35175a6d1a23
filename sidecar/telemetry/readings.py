"""Turns what the rooms know into the readings that `/metrics` shows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sidecar.core.model import LivePool, Quantity
from sidecar.telemetry.catalogue import JournalState
from sidecar.telemetry.instruments import Reading

__all__ = ["drift", "held", "info", "journal_state", "live"]


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


def used(pools: Mapping[tuple[str, str], tuple[int, int]]) -> Reading:
    """``warden_pool_used_ratio``: of each pool by (engine, quantity), what is held of how much."""
    return {pool: taken / size for pool, (taken, size) in pools.items()}


def live(told: Mapping[str, LivePool], faults: Mapping[str, str]) -> Reading:
    """``warden_pool_live``: of the pools that are to be as their engines tell, whether they are."""
    return {(engine,): float(engine in told) for engine in (*told, *faults)}


def drift(told: Mapping[str, LivePool], held: Callable[[str], int]) -> Reading:
    """``warden_pool_drift_ratio``: ``held`` of an engine gives the bytes reserved here now."""
    return {(engine,): (pool.used - held(engine)) / pool.capacity for engine, pool in told.items()}


def info(*values: str) -> Reading:
    """An info metric: its label values, in the catalogue's order."""
    return {values: 1.0}

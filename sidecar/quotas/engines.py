"""What an engine has for all tenants together, by its name in the bundle: slots and KV cache."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.core.model import Denial, Limits, LivePool, PoolSize, Quantity
from sidecar.quotas.account import Account, Ask
from sidecar.quotas.pool import Pool
from sidecar.quotas.words import NAMES, REASON_OF

__all__ = ["Engines", "Pools", "full_pool"]

Pools = tuple[tuple[Pool, int], ...]
"""The pools that a call takes from, and how much of each: slots, or bytes."""


class Engines:
    """Every engine's pools. Not locked: asked under the governor's lock, but for what a metrics thread may read."""

    def __init__(self) -> None:
        self._slots: dict[str, Pool] = {}
        self._memory: dict[str, Pool] = {}
        self._live: Mapping[str, LivePool] = {}  # swapped whole

    def held(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(held, capacity) of each pool by (engine, quantity), for a metrics snapshot from another thread."""
        return {
            (engine, str(pool.kind)): (pool.total + pool.foreign, pool.capacity)
            for pools in (self._slots, self._memory)
            for engine, pool in tuple(pools.items())
        }

    def peak(self, engine: str) -> int:
        """Bytes: the most that was reserved of its KV cache since this was last asked."""
        pool = self._memory.get(engine)
        if pool is None:
            return 0
        found, pool.peak = pool.peak, pool.total
        return max(found, pool.peak)

    def kv_held(self, engine: str) -> int:
        """Bytes of its KV cache that are reserved now."""
        pool = self._memory.get(engine)
        return 0 if pool is None else pool.total

    def tell(self, live: Mapping[str, LivePool]) -> None:
        """From now on pools that are to be live are as said here; those that aren't named, as the bundle states."""
        self._live = live

    def wanted(self, model: str, size: PoolSize, ask: Ask) -> Pools:
        """What a call of ``model`` that asks ``ask`` takes from its engine."""
        wanted: Pools = ()
        engine = size.engine or model
        if size.concurrency is not None:
            wanted = ((_pool(self._slots, engine, Quantity.CONCURRENCY, size.concurrency), 1),)
        if size.kv_bytes is not None and ask.kv > 0:
            live = self._live.get(engine) if size.live else None
            memory = _pool(self._memory, engine, Quantity.KV_BYTES, size.kv_bytes if live is None else live.capacity)
            memory.foreign = 0 if live is None else live.foreign
            wanted = (*wanted, (memory, ask.kv))
        return wanted


def _pool(pools: dict[str, Pool], model: str, kind: Quantity, capacity: int) -> Pool:
    found = pools.get(model)
    if found is None:
        found = pools[model] = Pool(kind, capacity)
    found.capacity = capacity
    return found


def full_pool(
    tenant: str, limits: Limits, own: Account, pools: Pools, now: int, *, enforce: bool
) -> tuple[Quantity, Denial] | None:
    """The first of the model's pools that has no room for the call."""
    for pool, units in pools:
        found = pool.ask(tenant, units, limits.share, now, claim=enforce and pool.kind not in limits.shadow)
        if not found.ok:
            return pool.kind, _pool_denial(own, pool.kind, never=found.never)
    return None


def _pool_denial(own: Account, kind: Quantity, *, never: bool) -> Denial:
    """The same words and a time from the tenant's own calls alone, whoever else holds what of the pool."""
    detail = f"the model's {NAMES[kind]} is in use"
    if never:
        detail = f"this call asks for more of the model's {NAMES[kind]} than the plan's share allows"
    metadata = (
        ("quota_subject", own.subject),
        ("quota_description", detail),
        ("quota", kind.value),
        ("limit", "the model's pool"),
    )
    retry = None if never else own.ledger.wait_s(1, 1)
    queue = 0 if never else own.limits.queue_ns
    return Denial(REASON_OF[kind], detail, retry, rule=f"quota:pool:{kind.value}", metadata=metadata, queue_ns=queue)

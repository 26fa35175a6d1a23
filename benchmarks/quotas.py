"""CPU of reserving and settling one call, by what is limited and by how many tenants take turns; and of a refusal."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Final

from sidecar.core.model import Demand, Denial, Instant, Limits, PoolSize, RequestRate, Reservation, Usage, replace
from sidecar.quotas.local import LocalQuotas

ROUNDS: Final = 5  # the best counts: the others met somebody else's load
TENANTS: Final = (1, 1_000, 100_000)
_FIVE: Final = Limits(RequestRate(1e6, 10**6), 10**9, 10**4, 2**40, 2**40)
_USAGE: Final = Usage(input_tokens=100, output_tokens=200, responses=1)
_TIMES: Final = 50_000


def measure(*, quick: bool) -> dict[str, float]:
    """µs by what was done."""
    times = _TIMES // 5 if quick else _TIMES
    found = {"reserve + settle, a tenant's five limits": _least(_own_limits(), times)}
    for tenants in TENANTS[:2] if quick else TENANTS:
        name = f"reserve + settle, every limit of {tenants:,} tenants, keys and models, and pools"
        found[name] = _least(_every_limit(tenants), max(times, tenants))
    return {**found, "refuse": _least(_refused(), times)}


def _least(step: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(times):
            step()
        best = min(best, (time.process_time_ns() - began) / times / 1000)
    return round(best, 2)


def _own_limits() -> Callable[[], None]:
    """As nearly every call has it: no pool, no limits of models or keys."""
    quotas, now, unsized = LocalQuotas(), 0, PoolSize()
    demand = Demand(500, 2**26, 2**20)

    def both() -> None:
        nonlocal now
        now += 100_000
        at = Instant(now, now)
        found = quotas.reserve("acme", "chat", _FIVE, demand, at, enforce=True, pool=unsized)
        assert isinstance(found, Reservation)
        quotas.settle(found, _USAGE, at)

    return both


def _every_limit(tenants: int) -> Callable[[], None]:
    """Limits of tenant, model and key, and the model's pools; tenants take turns."""
    quotas, now, turn = LocalQuotas(), 0, itertools.cycle([f"t{number}" for number in range(tenants)])
    limits, demand = replace(_FIVE, expected=True, per_key=_FIVE), Demand(500, 2**26, 2**20, 100)
    size = PoolSize(2**44, 10**6)

    def both() -> None:
        nonlocal now
        now += 100_000
        at = Instant(now, now)
        found = quotas.reserve(
            next(turn), "chat", limits, demand, at, enforce=True, key="k", model_limits=_FIVE, pool=size
        )
        assert isinstance(found, Reservation)
        quotas.settle(found, _USAGE, at)

    return both


def _refused() -> Callable[[], None]:
    quotas, none, at, demand = LocalQuotas(), Limits(concurrency=0), Instant(0, 0), Demand(500, 2**26, 2**20)

    def refuse() -> None:
        assert isinstance(quotas.reserve("acme", "chat", none, demand, at, enforce=True), Denial)

    return refuse

"""CPU of reserving and settling all five limits, and of a refusal: ``python -m benchmarks.identity_quotas``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from sidecar.core.model import Demand, Instant, Limits, PoolSize, RequestRate, Reservation, Usage, replace
from sidecar.quotas.local import LocalQuotas

ROUNDS = 5  # the best counts: the others met somebody else's load


def measure(name: str, step: Callable[[], object], times: int) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(times):
            step()
        best = min(best, (time.process_time_ns() - began) / times / 1000)
    print(f"{name:44} {best:8.2f} µs")


def every_limit(tenants: int) -> Callable[[], None]:
    """A call with limits of tenant, model and key, and the model's pools; tenants take turns."""
    quotas, now, turn = LocalQuotas(), 0, itertools.cycle([f"t{number}" for number in range(tenants)])
    narrow = Limits(RequestRate(1e6, 10**6), 10**9, 10**4, 2**40, 2**40)
    limits = replace(narrow, expected=True, per_key=narrow)
    demand, usage = Demand(500, 2**26, 2**20, 100), Usage(input_tokens=100, output_tokens=200, responses=1)
    size = PoolSize(2**44, 10**6)

    def both() -> None:
        nonlocal now
        now += 100_000
        at = Instant(now, now)
        found = quotas.reserve(
            next(turn), "chat", limits, demand, at, enforce=True, key="k", model_limits=narrow, pool=size
        )
        assert isinstance(found, Reservation)
        quotas.settle(found, usage, at)

    return both


def main() -> None:
    for tenants in (1, 1_000, 100_000):
        measure(f"reserve + settle, every limit, {tenants:,} tenants", every_limit(tenants), 100_000)
    held, now = LocalQuotas(), 0
    limits = Limits(RequestRate(1e6, 10**6), 10**9, 10**4, 2**40, 2**40)
    demand, usage = Demand(500, 2**26, 2**20), Usage(input_tokens=100, output_tokens=200)

    def both() -> None:
        nonlocal now
        now += 100_000
        at = Instant(now, now)
        found = held.reserve("acme", "chat", limits, demand, at, enforce=True)
        assert isinstance(found, Reservation)
        held.settle(found, usage, at)

    full, at = Limits(concurrency=0), Instant(0, 0)
    measure("reserve + settle, all five limited", both, 50_000)
    measure("reserve refused", lambda: held.reserve("x", "chat", full, demand, at, enforce=True), 20_000)


if __name__ == "__main__":
    main()

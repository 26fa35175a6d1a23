"""CPU of reserving and settling one call, by what is limited and by how many tenants take turns; lease traffic."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from sidecar.core.model import Demand, Denial, Instant, Limits, PoolSize, RequestRate, Reservation, Usage, replace
from sidecar.quotas.leases import ROUND_S, LeaseKeeper, Posture
from sidecar.quotas.local import LocalQuotas
from sidecar.quotas.script import PER_LEASE
from sidecar.quotas.shared import SharedQuotas
from sidecar.transports.render import ok

ROUNDS: Final = 5  # the best counts: the others met somebody else's load
TENANTS: Final = (1, 1_000, 100_000)
TRIPS: Final = "round trips to Redis per 1,000 calls at calls a second: "
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
        name = f"reserve + settle, requests, tokens and slots from leases, {tenants:,} tenants"
        found[name] = _least(_leased(tenants), max(times, tenants))
    found |= {"refuse": _least(_refused(), times), "what is left, as RateLimit fields": _least(_told(), times)}
    for each_second in (20, 200, 2_000):
        found[f"{TRIPS}{each_second:,}"] = _traffic(each_second)
    return found


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


_SHARED: Final = Limits(RequestRate(1e6, 10**6), 10**9, 10**4)


def _leased(tenants: int) -> Callable[[], None]:
    """Tenants take turns; a round for every 1,000 calls, in which all that is asked for is granted."""
    quotas, turn, calls = SharedQuotas(round_s=ROUND_S), itertools.cycle([f"t{n}" for n in range(tenants)]), 0
    keeper, demand = _keeper(quotas), Demand(500, prompt_tokens=100)

    def both() -> None:
        nonlocal calls
        calls += 1
        now = calls * 100_000
        at = Instant(now, now)
        if calls % 1000 == 1:
            keeper.round(now / 1e9, 0.1)
        found = quotas.reserve(next(turn), "chat", _SHARED, demand, at, enforce=True)
        if isinstance(found, Reservation):
            quotas.settle(found, _USAGE, at)

    return both


def _keeper(quotas: SharedQuotas) -> LeaseKeeper:
    """With a Redis that has enough of everything."""

    def run(keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        return [
            1,
            0,
            *itertools.chain.from_iterable((int(arguments[6 + PER_LEASE * n]), 0) for n in range(len(keys) - 2)),
        ]

    return LeaseKeeper(
        quotas, run, pod="p", prefix="eu", posture=Posture.FAIR_SHARE, monotonic=time.monotonic, between=random.uniform
    )


def _traffic(each_second: int) -> float:
    """Of one pod and one tenant, over ten seconds of even load."""
    quotas = SharedQuotas(round_s=ROUND_S)
    keeper, calls = _keeper(quotas), each_second * 10
    due = 0.0
    for n in range(calls):
        now = n / each_second
        while due <= now:
            keeper.round(due, ROUND_S)
            due += ROUND_S
        at = Instant(int(now * 1e9), int(now * 1e9))
        found = quotas.reserve("acme", "chat", _SHARED, Demand(500, prompt_tokens=100), at, enforce=True)
        assert isinstance(found, Reservation), "there is enough for all"
        quotas.settle(found, _USAGE, at)
    return round(1000 * keeper.round_trips / calls, 1)


def _told() -> Callable[[], object]:
    quotas, at = LocalQuotas(), Instant(0, 0)
    found = quotas.reserve("acme", "chat", _FIVE, Demand(500), at, enforce=True)
    assert isinstance(found, Reservation)
    return lambda: ok(quotas.left(found, at))


def _refused() -> Callable[[], None]:
    quotas, none, at, demand = LocalQuotas(), Limits(concurrency=0), Instant(0, 0), Demand(500, 2**26, 2**20)

    def refuse() -> None:
        assert isinstance(quotas.reserve("acme", "chat", none, demand, at, enforce=True), Denial)

    return refuse

"""Properties of the quotas: never above a limit, nothing leaked, exact retry times, under any interleaving."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Reservation, Usage
from sidecar.quotas import local
from sidecar.quotas.local import LocalQuotas

SECOND = 1_000_000_000
RATES = st.one_of(st.integers(1, 500).map(float), st.floats(0.01, 500))
STEPS = st.lists(st.integers(0, SECOND // 2), min_size=1, max_size=60)


def at(ns: int) -> Instant:
    return Instant(ns, ns)


def windows(times: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """(length of the window, what fell into it) for every window that begins and ends with an event."""
    for first in range(len(times)):
        total = 0
        for last in range(first, len(times)):
            total += times[last][1]
            yield times[last][0] - times[first][0], total


@given(RATES, st.integers(1, 20), STEPS)
def test_requests_admitted_in_any_window_stay_within_burst_and_rate(rate: float, burst: int, steps: list[int]) -> None:
    """Invariant: in every window of length w at most burst + w · rate requests are admitted."""
    limits, quotas, now = Limits(requests=RequestRate(rate, burst)), LocalQuotas(), 0
    admitted: list[tuple[int, int]] = []
    for step in steps:
        now += step
        if isinstance(quotas.reserve("t", "m", limits, Demand(), at(now), enforce=True), Reservation):
            admitted.append((now, 1))
    for length, count in windows(admitted):
        assert count <= burst + Fraction(rate) * length / SECOND


@given(st.integers(1, 5_000), st.lists(st.tuples(st.integers(0, 20 * SECOND), st.integers(0, 5_000)), max_size=40))
def test_tokens_charged_in_any_window_stay_within_the_budget(per_minute: int, calls: list[tuple[int, int]]) -> None:
    """Invariant: in every window of length w at most per_minute · (1 + w / 60 s) tokens are reserved and used."""
    limits, quotas, now = Limits(tokens_per_minute=per_minute), LocalQuotas(), 0
    charged: list[tuple[int, int]] = []
    for index, (step, tokens) in enumerate(calls):
        now += step
        found = quotas.reserve("t", "m", limits, Demand(tokens=tokens), at(now), enforce=True)
        if isinstance(found, Reservation):
            used = tokens if index % 2 else tokens // 3
            quotas.settle(found, Usage(output_tokens=used), at(now))
            charged.append((now, used))
    for length, total in windows(charged):
        assert total <= per_minute + Fraction(per_minute * length, 60 * SECOND)


@given(RATES, st.integers(1, 5), st.integers(1, 10_000), STEPS, st.integers(0, 10_000))
def test_retry_after_is_exact(rate: float, burst: int, per_minute: int, steps: list[int], tokens: int) -> None:
    """Invariant: a call refused for a rate passes after retry_after, and not a millisecond earlier."""
    limits = Limits(requests=RequestRate(rate, burst), tokens_per_minute=per_minute)
    quotas, now, demand = LocalQuotas(), 0, Demand(tokens=tokens)
    for step in steps:
        now += step
        found = quotas.reserve("t", "m", limits, demand, at(now), enforce=True)
        if not isinstance(found, Denial):
            continue
        if found.retry_after is None:
            assert tokens > per_minute
            return
        retry = now + round(found.retry_after * SECOND)
        early = quotas.reserve("t", "m", limits, demand, at(retry - 1_000_000), enforce=True)
        assert isinstance(early, Denial)
        assert isinstance(quotas.reserve("t", "m", limits, demand, at(retry), enforce=True), Reservation)
        now = retry


LIMITS = st.builds(
    Limits,
    requests=st.none() | st.builds(RequestRate, st.floats(0.5, 1000), st.integers(1, 50)),
    tokens_per_minute=st.none() | st.integers(0, 10_000),
    concurrency=st.none() | st.integers(0, 8),
    kv_bytes=st.none() | st.integers(0, 1000),
    tensor_bytes=st.none() | st.integers(0, 1000),
)
DEMANDS = st.builds(Demand, st.integers(0, 2000), st.integers(0, 400), st.integers(0, 400))
TENANTS = st.sampled_from(["acme", "birch", "cobalt"])


class Interleaved(RuleBasedStateMachine):
    """Invariant: balances equal what is in flight, whatever is reserved, settled, observed or reconfigured when."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = LocalQuotas()
        self.now = 0
        self.live: list[Reservation] = []
        self.limits = dict.fromkeys(["acme", "birch", "cobalt"], Limits())

    def sums(self, tenant: str) -> tuple[int, int, int]:
        own = [each for each in self.live if each.tenant == tenant]
        return len(own), sum(each.demand.kv_bytes for each in own), sum(each.demand.tensor_bytes for each in own)

    @rule(step=st.integers(0, 10 * SECOND))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(tenant=TENANTS, limits=LIMITS)
    def reconfigure(self, tenant: str, limits: Limits) -> None:
        self.limits[tenant] = limits

    @rule(tenant=TENANTS, demand=DEMANDS, enforce=st.booleans())
    def reserve(self, tenant: str, demand: Demand, enforce: bool) -> None:
        limits = self.limits[tenant]
        state = self.quotas._state(tenant, limits, self.now)
        short = [*local._rates(state, demand, self.now), *local._gauges(state, demand)]
        assert local._fits(state, demand, self.now) is not bool(short)  # the quick answer is the long one's
        found = self.quotas.reserve(tenant, "m", limits, demand, at(self.now), enforce=enforce)
        if isinstance(found, Denial):
            assert enforce
            return
        self.live.append(found)
        if found.over is not None:
            assert not enforce
            return
        calls, kv, tensor = self.sums(tenant)
        assert limits.concurrency is None or calls <= limits.concurrency
        assert limits.kv_bytes is None or not demand.kv_bytes or kv <= limits.kv_bytes
        assert limits.tensor_bytes is None or not demand.tensor_bytes or tensor <= limits.tensor_bytes

    @precondition(lambda self: self.live)
    @rule(data=st.data(), used=st.integers(0, 5000))
    def settle(self, data: st.DataObject, used: int) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        self.quotas.settle(self.live.pop(index), Usage(output_tokens=used), at(self.now))

    @rule(count=st.integers(1, 5))
    def strangers_come_and_go(self, count: int) -> None:
        for number in range(count):
            found = self.quotas.reserve(f"s{self.now}-{number}", "m", Limits(), Demand(), at(self.now), enforce=True)
            assert isinstance(found, Reservation)
            self.quotas.settle(found, Usage(), at(self.now))

    @invariant()
    def balances_are_what_is_in_flight(self) -> None:
        for tenant in self.limits:
            calls, kv, tensor = self.sums(tenant)
            assert self.quotas.in_flight(tenant) == calls
            assert self.quotas.held(tenant) == (kv, tensor)

    def teardown(self) -> None:
        while self.live:
            self.quotas.settle(self.live.pop(), Usage(), at(self.now))
        # Long after, every tenant gets again all that its limits allow: nothing leaked.
        full = Limits(RequestRate(1, 1), 5000, 1, 1000, 1000)
        for tenant in self.limits:
            # A budget of nothing pays nothing back, so time counts from when there is one again.
            found = self.quotas.reserve(tenant, "m", full, Demand(), at(self.now), enforce=False)
            self.quotas.settle(found, Usage(), at(self.now))
        later = at(self.now + 1000 * 60 * SECOND)
        for tenant in self.limits:
            found = self.quotas.reserve(tenant, "m", full, Demand(5000, 1000, 1000), later, enforce=True)
            assert isinstance(found, Reservation)


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

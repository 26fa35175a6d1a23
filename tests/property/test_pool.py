"""Properties of a model's pool: what is given out is what is held, nobody starves, the least over its share is next."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.core.model import Quantity, Share
from sidecar.quotas.pool import CLAIM_NS, Pool

CAPACITY = 100
SHARES = {"gold": Share(500, 1000), "silver": Share(200, 600), "none": Share(0, 400)}
NAMES = st.sampled_from(sorted(SHARES))
MS = 1_000_000


class Shared(RuleBasedStateMachine):
    """Invariant: the total is the sum of what is held, never above capacity, and no tenant is above its burst."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(Quantity.KV_BYTES, CAPACITY)
        self.live: list[tuple[str, int]] = []
        self.now = 0

    @rule(tenant=NAMES, units=st.integers(1, 60), step=st.integers(0, CLAIM_NS))
    def ask(self, tenant: str, units: int, step: int) -> None:
        self.now += step
        if self.pool.ask(tenant, units, SHARES[tenant], self.now).ok:
            self.pool.take(tenant, units)
            self.live.append((tenant, units))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        self.pool.give(*self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @invariant()
    def conserved(self) -> None:
        sums = {tenant: sum(units for name, units in self.live if name == tenant) for tenant in SHARES}
        assert {tenant: units for tenant, units in sums.items() if units} == self.pool.held
        assert self.pool.total == sum(sums.values()) <= CAPACITY
        for tenant, units in sums.items():
            assert units <= CAPACITY * SHARES[tenant].burst // 1000


TestShared = Shared.TestCase
TestShared.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=60), st.integers(1, 50))
def test_no_guaranteed_tenant_starves(calls: list[tuple[int, int]], wanted: int) -> None:
    """Invariant: a tenant within its guarantee is let in by the time that what was held when it asked has ended.

    Greedy ones fill the pool and ask again the moment anything is given back, before the guaranteed one does.
    """
    pool, now = Pool(Quantity.KV_BYTES, CAPACITY), 0
    running: list[tuple[str, int, int]] = []  # tenant, units, ends at
    greedy = {f"greedy{number}": Share(0, 1000) for number in range(3)}

    def fill() -> None:
        for number, (units, lasts) in enumerate(calls * 4):
            tenant = f"greedy{number % 3}"
            if pool.ask(tenant, units, greedy[tenant], now).ok:
                pool.take(tenant, units)
                running.append((tenant, units, now + lasts * MS))

    fill()
    last_of_before = max(ends for _, _, ends in running)
    while not pool.ask("guaranteed", wanted, Share(500, 1000), now).ok:
        assert now < last_of_before
        now += MS
        for call in [each for each in running if each[2] <= now]:
            running.remove(call)
            pool.give(call[0], call[1])
        fill()


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 10))
def test_under_pressure_the_one_furthest_over_its_share_is_refused(first: int, second: int, units: int) -> None:
    """Invariant: of two who were refused, room goes to the one that would be less over its share."""
    pool = Pool(Quantity.CONCURRENCY, CAPACITY)
    shares = {"a": Share(100, 1000), "b": Share(300, 1000)}
    pool.take("a", first)
    pool.take("b", second)
    pool.take("other", CAPACITY - first - second)
    for tenant in ("a", "b"):
        assert not pool.ask(tenant, units, shares[tenant], 0).ok
    pool.give("other", units)
    over = {"a": (first + units > 10, (first + units) / 100), "b": (second + units > 30, (second + units) / 300)}
    answers = {tenant: pool.ask(tenant, units, shares[tenant], 1).ok for tenant in ("a", "b")}
    if over["a"] == over["b"]:
        assert answers == {"a": True, "b": True}  # either; whoever comes first
    else:
        assert answers == {tenant: over[tenant] == min(over.values()) for tenant in ("a", "b")}


@given(st.lists(st.tuples(NAMES, st.integers(1, 60), st.integers(0, 120), st.booleans()), max_size=60))
def test_with_strangers_in_the_cache_no_more_than_the_rest_is_given_out(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    """Invariant: whoever is let in, what is held here and what others hold were within the capacity at that moment."""
    pool, live = Pool(Quantity.KV_BYTES, CAPACITY), list[tuple[str, int]]()
    for now, (tenant, units, foreign, gives) in enumerate(steps):
        pool.foreign = foreign
        if gives and live:
            pool.give(*live.pop(0))
        if pool.ask(tenant, units, SHARES[tenant], now).ok:
            pool.take(tenant, units)
            live.append((tenant, units))
            assert pool.total + foreign <= CAPACITY
        assert pool.total == sum(held for _, held in live)
        assert pool.peak >= pool.total


def test_who_stops_asking_is_waited_for_no_longer_than_a_claim_lasts() -> None:
    pool = Pool(Quantity.CONCURRENCY, 1)
    pool.take("greedy", 1)
    assert not pool.ask("gone", 1, Share(500, 1000), 0).ok
    pool.give("greedy", 1)
    assert not pool.ask("greedy", 1, Share(0, 1000), CLAIM_NS - 1).ok
    assert pool.ask("greedy", 1, Share(0, 1000), CLAIM_NS).ok


def test_what_no_pool_could_give_is_told_apart() -> None:
    pool = Pool(Quantity.KV_BYTES, 100)
    assert pool.ask("a", 51, Share(0, 500), 0).never
    assert pool.ask("a", 101, Share(0, 1000), 0).never
    assert not pool.ask("a", 100, Share(0, 1000), 0).never

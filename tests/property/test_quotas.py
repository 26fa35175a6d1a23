"""Properties of the quotas: never above a limit, nothing leaked, exact retry times, under any interleaving."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Reservation, Usage
from sidecar.quotas.account import Ask
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


@given(
    st.lists(st.tuples(st.integers(0, SECOND), st.sampled_from(["a", "b"]), st.sampled_from(["k1", "k2"])), max_size=40)
)
def test_three_accounts_are_all_kept_to_and_a_refusal_takes_from_none(
    calls: list[tuple[int, str, str]],
) -> None:
    """Invariant: tenant, model and key each stay within their own rate, and the retry time passes all three at once."""
    chat, keys = Limits(requests=RequestRate(2, 3)), Limits(tokens_per_minute=600)
    limits = Limits(requests=RequestRate(5, 6), models=(("a", chat),), per_key=keys)
    quotas, now, demand = LocalQuotas(), 0, Demand(tokens=100)
    admitted: list[tuple[int, str, str]] = []

    def ask(when: int, model: str, key: str) -> Reservation | Denial:
        narrow = chat if model == "a" else None
        return quotas.reserve("t", model, limits, demand, at(when), enforce=True, key=key, model_limits=narrow)

    for step, model, key in calls:
        now += step
        found = ask(now, model, key)
        if isinstance(found, Denial):
            assert found.retry_after is not None
            retry = now + round(found.retry_after * SECOND)
            assert isinstance(ask(retry - 1_000_000, model, key), Denial)
            found, now = ask(retry, model, key), retry
        assert isinstance(found, Reservation)
        admitted.append((now, model, key))
    for length, count in windows([(when, 1) for when, _, _ in admitted]):
        assert count <= 6 + Fraction(5 * length, SECOND)
    for length, count in windows([(when, 1) for when, model, _ in admitted if model == "a"]):
        assert count <= 3 + Fraction(2 * length, SECOND)
    for wanted in ("k1", "k2"):
        for length, count in windows([(when, 100) for when, _, key in admitted if key == wanted]):
            assert count <= 600 + Fraction(600 * length, 60 * SECOND)


@settings(deadline=None)
@given(
    st.booleans(),
    st.integers(100, 20_000),
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 600), st.integers(1, 400)), min_size=50, max_size=50),
    st.lists(st.integers(0, 49), max_size=400),
)
def test_fifty_streams_at_once_never_overshoot_a_token_budget(
    expected: bool, per_minute: int, streams: list[tuple[int, int, int]], order: list[int]
) -> None:
    """Invariant: in every window prompts and delivered tokens are within the budget, reserved in full or not."""
    limits, quotas, now = Limits(tokens_per_minute=per_minute, expected=expected), LocalQuotas(), 0
    for _ in range(25):  # so that something is expected: few of these streams keep to it
        warm = quotas.reserve("w", "m", Limits(expected=True), Demand(tokens=9), at(0), enforce=True)
        assert isinstance(warm, Reservation)
        quotas.settle(warm, Usage(output_tokens=20, responses=1), at(0))
    quotas._usual["t", "m"] = quotas._usual["w", "m"]
    delivered: list[tuple[int, int]] = []
    live: dict[int, tuple[Reservation, int]] = {}
    for index, (prompt, asks, _) in enumerate(streams):
        demand = Demand(tokens=prompt + asks, prompt_tokens=prompt)
        found = quotas.reserve("t", "m", limits, demand, at(now), enforce=True)
        if isinstance(found, Reservation):
            live[index] = (found, 0)
            delivered.append((now, prompt))
    for turn in order:
        now += 7_000_000
        if turn not in live:
            continue
        prompt, asks, chunk = streams[turn]
        held, output = live[turn]
        chunk = min(chunk, asks - output)  # a model that keeps to max_tokens
        if quotas.grow(held, prompt + output + chunk, at(now), exact=True) is None:
            delivered.append((now, chunk))
            live[turn] = (held, output + chunk)
            if output + chunk < asks:
                continue
        held, output = live.pop(turn)
        quotas.settle(held, Usage(input_tokens=prompt, output_tokens=output, responses=1), at(now))
    for length, total in windows(delivered):
        assert total <= per_minute + Fraction(per_minute * length, 60 * SECOND)


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
        self.running: list[Reservation] = []  # settled, but not ended by Triton
        self.limits = dict.fromkeys(["acme", "birch", "cobalt"], Limits())

    def sums(self, tenant: str) -> tuple[int, int, int]:
        own = [each for each in self.live + self.running if each.tenant == tenant]
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
        (account,) = self.quotas._accounts(tenant, "m", "", limits, None, None, self.now)
        ask = Ask(demand.tokens, 0, demand.kv_bytes, demand.tensor_bytes)
        short = list(account.shortfalls(ask, self.now))
        assert account.fits(ask, self.now) is not bool(short)  # the quick answer is the long one's
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

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        """What it holds on the GPU stays held."""
        held = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.quotas.settle(held, Usage(), at(self.now), running=True)
        self.running.append(held)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def triton_ends_it(self, data: st.DataObject) -> None:
        self.quotas.release(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))), at(self.now))

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
        while self.running:
            self.quotas.release(self.running.pop(), at(self.now))
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

"""A crash at any moment gives nobody anything: what is booked again is what the process that lived on would hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from audit.recovery import PastCall
from sidecar.core.model import (
    Contract,
    Demand,
    Instant,
    Limits,
    ModelProfile,
    PoolSize,
    RequestRate,
    Reservation,
    Usage,
)
from sidecar.quotas.local import LocalQuotas
from sidecar.runtime.ledger import Booked, Terms, rebuild

SECOND = 1_000_000_000
WALL, MONO = 1_700_000_000 * SECOND, 50 * SECOND  # of the process that crashes, when it begins
PROFILE = ModelProfile("m", Contract.VLLM, pool=PoolSize(10_000, 40), stops_ns=2 * SECOND)
LIMITS = Limits(RequestRate(5, 20), 20_000, 12, 4000, 4000, compute_per_minute=30_000)
CALLS = st.lists(
    st.tuples(
        st.integers(0, 2 * SECOND),  # after the one before
        st.sampled_from(["acme", "birch"]),
        st.integers(0, 900),  # tokens
        st.integers(0, 500),  # bytes of KV cache
        st.integers(0, 10 * SECOND),  # how long it takes
        st.booleans(),  # cancelled: what it holds is held two seconds longer
    ),
    max_size=40,
)


def terms(_tenant: str, _model: str, _key: str) -> Terms:
    return Terms(LIMITS, None, None, PROFILE)


def lived(calls: list[tuple[int, str, int, int, int, bool]], crash_ns: int) -> tuple[LocalQuotas, list[PastCall]]:
    """The books at the crash of the process that made these calls, and what its journal holds of them."""
    quotas, past, now = LocalQuotas(), [], 0
    live: dict[int, tuple[PastCall, Reservation, int, bool]] = {}
    running: dict[int, tuple[Reservation, int]] = {}

    def pass_to(then: int) -> None:
        for place, (call, held, ends, cancelled) in sorted(live.items(), key=lambda each: each[1][2]):
            if ends <= then:
                used = sum(call.reserved[:1]) // 2
                usage = Usage(output_tokens=used, responses=1, duration_ns=ends)
                quotas.settle(held, usage, Instant(WALL + ends, MONO + ends), running=cancelled)
                until = WALL + ends + PROFILE.stops_ns if cancelled else 0
                past[place] = replace(
                    call, ended_ns=WALL + ends, tokens=used, responses=1, duration_ns=ends, holds_until_ns=until
                )
                if cancelled:
                    running[place] = held, ends + PROFILE.stops_ns
                del live[place]
        for place, (held, until) in list(running.items()):
            if until <= then:
                quotas.release(held, Instant(WALL + until, MONO + until))
                del running[place]

    for step, tenant, tokens, kv, lasts, cancelled in calls:
        now += step
        if now > crash_ns:
            break
        pass_to(now)
        demand = Demand(tokens, kv, 0, 0)
        at = Instant(WALL + now, MONO + now)
        found = quotas.reserve(tenant, "m", LIMITS, demand, at, enforce=True, pool=PROFILE.pool)
        if isinstance(found, Reservation):
            place = len(past)
            past.append(PastCall(f"c-{place}", place, tenant, "", "m", WALL + now, 0, (tokens, kv, 0)))
            live[place] = (past[-1], found, now + lasts, cancelled)
    pass_to(crash_ns)
    return quotas, past


@example([(0, "acme", 0, 0, 0, False), (875_000_000, "acme", 0, 0, 1_000_000, False)], 4_877_000_000, 3 * SECOND)
@given(CALLS, st.integers(0, 60 * SECOND), st.integers(0, 3 * SECOND))
def test_after_a_crash_everybody_has_what_they_had(
    calls: list[tuple[int, str, int, int, int, bool]], crash_ns: int, down_ns: int
) -> None:
    """Invariant: rates, budgets, slots and bytes are as if the process had lived on, its open calls still running."""
    before, past = lived(calls, crash_ns)
    now = crash_ns + down_ns
    at = Instant(WALL + now, 7 * SECOND)  # the machine may have been started anew: another monotonic clock
    after, held = LocalQuotas(), dict[str, tuple[Reservation, int]]()
    booked = rebuild(
        past, terms, after, lambda call, kept, _, until: held.update({call: (kept, until)}), at, rates=True
    )
    assert booked == Booked(len(past), len(held))
    for tenant in ("acme", "birch"):
        old, new = before._tenants.get(tenant), after._tenants.get(tenant)
        assert (old is None) is (new is None)
        if old is None or new is None:
            continue
        assert new.rate.wait_ns(at.mono_ns) == old.rate.wait_ns(MONO + now)
        assert new.budget.left(at.mono_ns) == old.budget.left(MONO + now)
        assert new.compute.left(at.mono_ns) == old.compute.left(MONO + now)
        still = [each for each in past if each.tenant == tenant and (each.ended_ns is None or _holds(each, at))]
        assert after.in_flight(tenant) == len(still)
        assert after.held(tenant)[0] == sum(each.reserved[1] for each in still)
        own = sum(kept.demand.kv_bytes for kept, _ in held.values() if kept.tenant == tenant)
        assert after.engines._memory["m"].held.get(tenant, 0) == own if "m" in after.engines._memory else own == 0
    # A while later Triton has ended them all: nothing stays held.
    for kept, until in held.values():
        assert at.mono_ns < until <= at.mono_ns + PROFILE.stops_ns
        after.release(kept, Instant(WALL + now, until))
    assert all(after.in_flight(tenant) == 0 and after.held(tenant) == (0, 0) for tenant in ("acme", "birch"))
    assert all(held == 0 for held, _ in after.engines.held().values())


def _holds(call: PastCall, at: Instant) -> bool:
    return call.holds_until_ns > at.wall_ns


def test_a_clock_that_was_set_back_holds_nothing_longer_than_its_model_goes_on() -> None:
    ended = PastCall("c-1", 1, "acme", "", "m", WALL, 0, (900, 0, 0), ended_ns=WALL + 1)
    call, untils = replace(ended, holds_until_ns=WALL + 2 * SECOND), list[int]()
    at = Instant(WALL - 3600 * SECOND, 7 * SECOND)
    rebuild([call], terms, LocalQuotas(), lambda *held: untils.append(held[3]), at, rates=True)
    assert untils == [at.mono_ns + PROFILE.stops_ns]


def test_where_pods_share_the_limits_of_time_only_what_still_runs_is_booked() -> None:
    ended = PastCall("c-1", 1, "acme", "", "m", WALL, 0, (900, 0, 0), ended_ns=WALL + 1, tokens=900)
    running, after = replace(ended, call_id="c-2", ended_ns=None, tokens=0), LocalQuotas()
    at = Instant(WALL + SECOND, SECOND)
    booked = rebuild([ended, running], terms, after, lambda *_: None, at, rates=False)
    assert (booked, after.in_flight("acme")) == (Booked(1, 1), 1)


def test_a_tenant_the_bundle_has_no_more_is_passed_over() -> None:
    call = PastCall("c-1", 1, "gone", "", "m", WALL, 0, (900, 0, 0))
    assert rebuild([call], lambda *_: None, LocalQuotas(), lambda *_: None, Instant(WALL, 0), rates=True) == Booked(
        0, 0
    )


def test_a_keys_own_limits_hold_over_a_crash() -> None:
    """`ci` may have one call at once, and has one running; its neighbour may have as many as the tenant."""
    own, after = Limits(concurrency=1), LocalQuotas()
    running = PastCall("c-1", 1, "acme", "key-1", "m", WALL, 0, (0, 0, 0), key_name="ci")
    at = Instant(WALL + SECOND, SECOND)

    def by_key(_tenant: str, _model: str, key: str) -> Terms:
        return Terms(Limits(), None, own if key == "ci" else None, PROFILE)

    rebuild([running], by_key, after, lambda *_: None, at, rates=True)
    for key, limits, let_in in (("key-1", own, False), ("key-2", None, True)):
        found = after.reserve("acme", "m", Limits(), Demand(), at, enforce=True, key=key, key_limits=limits)
        assert isinstance(found, Reservation) is let_in

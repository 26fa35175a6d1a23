"""All five quotas together: order, words, retry times, observing, new limits in mid-flight, forgetting."""

from __future__ import annotations

import pytest

from sidecar.core.model import (
    Demand,
    Denial,
    Instant,
    KvProfile,
    Limits,
    LivePool,
    PoolSize,
    Quantity,
    RequestRate,
    Reservation,
    Share,
    Usage,
    replace,
)
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.quotas.account import size
from sidecar.quotas.local import REASON_OF, Held, LocalQuotas

GIB = 2**30
SECOND = 1_000_000_000
NOTHING = Demand()


def at(seconds: float) -> Instant:
    ns = round(seconds * SECOND)
    return Instant(1_800_000_000 * SECOND + ns, ns)


def reserve(
    quotas: LocalQuotas, limits: Limits, demand: Demand = NOTHING, when: float = 0.0, *, tenant: str = "acme"
) -> Reservation | Denial:
    return quotas.reserve(tenant, "chat", limits, demand, at(when), enforce=True)


def held(found: Reservation | Denial) -> Reservation:
    assert isinstance(found, Reservation), found
    return found


def refused(found: Reservation | Denial) -> Denial:
    assert isinstance(found, Denial), found
    return found


def test_every_quantity_has_its_reason() -> None:
    assert set(REASON_OF) == set(Quantity)
    assert {REASONS[reason].code for reason in REASON_OF.values()} == {Code.RESOURCE_EXHAUSTED}


def test_no_limits_no_refusals() -> None:
    quotas = LocalQuotas()
    for _ in range(100):
        held(reserve(quotas, Limits(), Demand(10**9, 10**15, 10**15)))
    assert quotas.in_flight("acme") == 100
    assert quotas.held("acme") == (100 * 10**15, 100 * 10**15)


@pytest.mark.parametrize(
    ("limits", "demand", "before", "reason", "detail", "limit"),
    [
        (
            Limits(requests=RequestRate(5, 2)),
            NOTHING,
            2,
            Reason.RATE_REQUESTS,
            "request rate 5/s, burst 2",
            "5/s, burst 2",
        ),
        (
            Limits(tokens_per_minute=60_000),
            Demand(tokens=40_000),
            1,
            Reason.RATE_TOKENS,
            "token budget 60000 per minute; this call asks for 40000 tokens",
            "60000 per minute",
        ),
        (Limits(concurrency=3), NOTHING, 3, Reason.CONCURRENCY, "concurrency 3 at once", "3 at once"),
        (
            Limits(kv_bytes=8 * GIB),
            Demand(kv_bytes=3 * GIB),
            2,
            Reason.MEMORY_KV,
            "KV-cache memory 8GiB; this call asks for 3GiB",
            "8GiB",
        ),
        (
            Limits(tensor_bytes=GIB // 2),
            Demand(tensor_bytes=GIB // 2),
            1,
            Reason.MEMORY_TENSOR,
            "tensor memory 512MiB; this call asks for 512MiB",
            "512MiB",
        ),
    ],
)
def test_a_refusal_names_limit_and_value(
    limits: Limits, demand: Demand, before: int, reason: Reason, detail: str, limit: str
) -> None:
    quotas = LocalQuotas()
    for _ in range(before):
        held(reserve(quotas, limits, demand))
    denial = refused(reserve(quotas, limits, demand))
    quantity = next(each for each, mapped in REASON_OF.items() if mapped is reason)
    assert (denial.reason, denial.detail, denial.rule) == (reason, detail, f"quota:{quantity}")
    assert denial.retry_after is not None
    assert dict(denial.metadata) == {
        "quota_subject": "tenant:acme",
        "quota_description": detail,
        "quota": quantity.value,
        "limit": limit,
    }


@pytest.mark.parametrize(
    ("limits", "demand", "reason"),
    [
        (Limits(requests=RequestRate(5, 0)), NOTHING, Reason.RATE_REQUESTS),
        (Limits(tokens_per_minute=100), Demand(tokens=101), Reason.RATE_TOKENS),
        (Limits(concurrency=0), NOTHING, Reason.CONCURRENCY),
        (Limits(kv_bytes=100), Demand(kv_bytes=101), Reason.MEMORY_KV),
        (Limits(tensor_bytes=100), Demand(tensor_bytes=101), Reason.MEMORY_TENSOR),
    ],
)
def test_what_can_never_fit_says_so_and_names_no_time(limits: Limits, demand: Demand, reason: Reason) -> None:
    denial = refused(reserve(LocalQuotas(), limits, demand))
    assert (denial.reason, denial.retry_after) == (reason, None)
    assert "can never fit" in denial.detail


def test_exactly_the_limit_fits() -> None:
    limits = Limits(RequestRate(1, 1), 100, 1, 100, 100)
    held(reserve(LocalQuotas(), limits, Demand(100, 100, 100)))


def test_the_retry_time_is_exact_to_the_millisecond() -> None:
    limits = Limits(requests=RequestRate(3, 1), tokens_per_minute=7_000)
    quotas = LocalQuotas()
    held(reserve(quotas, limits, Demand(tokens=6_999)))
    denial = refused(reserve(quotas, limits, Demand(tokens=1_000), 0.1))
    assert denial.reason is Reason.RATE_REQUESTS  # the first in order, but with the time by which both fit
    assert denial.retry_after is not None
    passes = 0.1 + denial.retry_after
    assert isinstance(reserve(quotas, limits, Demand(tokens=1_000), passes - 0.001), Denial)
    held(reserve(quotas, limits, Demand(tokens=1_000), passes))


def test_what_can_never_fit_is_told_before_what_only_has_to_wait() -> None:
    limits = Limits(requests=RequestRate(1, 1), kv_bytes=100)
    quotas = LocalQuotas()
    held(reserve(quotas, limits))
    assert refused(reserve(quotas, limits, Demand(kv_bytes=101))).reason is Reason.MEMORY_KV
    assert refused(reserve(quotas, limits, Demand(kv_bytes=100))).reason is Reason.RATE_REQUESTS


def test_all_or_none() -> None:
    """A call refused by the last quota has taken nothing from the first."""
    limits = Limits(RequestRate(1, 2), 100, 5, 100, 100)
    quotas = LocalQuotas()
    held(reserve(quotas, limits, Demand(10, 10, 100)))
    for _ in range(10):
        assert refused(reserve(quotas, limits, Demand(10, 10, 1))).reason is Reason.MEMORY_TENSOR
    assert quotas.in_flight("acme") == 1
    assert quotas.held("acme") == (10, 100)
    held(reserve(quotas, limits, Demand(90, 90, 0)))


def test_settling_gives_back_all_but_the_tokens_that_were_used() -> None:
    limits = Limits(tokens_per_minute=1000, concurrency=1, kv_bytes=100, tensor_bytes=100)
    quotas = LocalQuotas()
    first = held(reserve(quotas, limits, Demand(1000, 100, 100)))
    quotas.settle(first, Usage(input_tokens=100, output_tokens=200), at(0))
    assert quotas.in_flight("acme") == 0
    assert quotas.held("acme") == (0, 0)
    held(reserve(quotas, limits, Demand(700, 100, 100)))
    assert refused(reserve(quotas, Limits(tokens_per_minute=1000), Demand(1))).retry_after == 0.06


def test_settling_twice_is_our_bug() -> None:
    quotas = LocalQuotas()
    first = held(reserve(quotas, Limits(), NOTHING))
    quotas.settle(first, Usage(), at(0))
    with pytest.raises(RuntimeError):
        quotas.settle(first, Usage(), at(0))


def test_tenants_share_nothing() -> None:
    limits = Limits(RequestRate(1, 1), 100, 1, 100, 100)
    quotas = LocalQuotas()
    demand = Demand(100, 100, 100)
    held(reserve(quotas, limits, demand, tenant="acme"))
    alone = refused(reserve(quotas, limits, demand, tenant="acme"))
    for number in range(50):
        held(reserve(quotas, limits, demand, tenant=f"other-{number}"))
    assert refused(reserve(quotas, limits, demand, tenant="acme")) == alone


def test_observing_never_refuses_and_says_what_enforcing_would_have() -> None:
    limits = Limits(requests=RequestRate(1, 1), concurrency=1)
    quotas = LocalQuotas()
    overs = [
        held(quotas.reserve("acme", "chat", limits, NOTHING, at(when), enforce=False)).over
        for when in (0.0, 0.5, 1.0, 1.5)
    ]
    assert [None if over is None else over.reason for over in overs] == [
        None,
        Reason.RATE_REQUESTS,
        Reason.CONCURRENCY,
        Reason.CONCURRENCY,
    ]
    assert quotas.in_flight("acme") == 4


def test_observed_calls_return_what_they_held() -> None:
    limits = Limits(tokens_per_minute=100, kv_bytes=10)
    quotas = LocalQuotas()
    made = [held(quotas.reserve("acme", "chat", limits, Demand(60, 10, 5), at(0), enforce=False)) for _ in range(3)]
    assert [each.over is None for each in made] == [True, False, False]
    for each in made:
        quotas.settle(each, Usage(input_tokens=60), at(0))
    assert quotas.in_flight("acme") == 0
    assert quotas.held("acme") == (0, 0)
    held(reserve(quotas, limits, Demand(tokens=40)))  # only the first took from the budget


def test_new_limits_in_mid_flight_keep_the_balances() -> None:
    quotas = LocalQuotas()
    wide = Limits(concurrency=10, kv_bytes=1000)
    running = [held(reserve(quotas, wide, Demand(kv_bytes=100))) for _ in range(5)]
    narrow = Limits(concurrency=5, kv_bytes=400, tokens_per_minute=100)
    assert refused(reserve(quotas, narrow, Demand(kv_bytes=100))).reason is Reason.CONCURRENCY
    quotas.settle(running.pop(), Usage(output_tokens=10**6), at(0))
    assert refused(reserve(quotas, narrow, Demand(kv_bytes=100))).reason is Reason.MEMORY_KV
    quotas.settle(running.pop(), Usage(), at(0))
    # What was admitted before there was a budget is not charged to it.
    running.append(held(reserve(quotas, narrow, Demand(tokens=100, kv_bytes=100))))
    assert refused(reserve(quotas, narrow, Demand(tokens=1))).reason is Reason.RATE_TOKENS
    for each in running:
        quotas.settle(each, Usage(), at(0))
    assert quotas.in_flight("acme") == 0
    assert quotas.held("acme") == (0, 0)
    held(reserve(quotas, narrow, Demand(tokens=100)))


def test_equal_limits_from_a_new_bundle_change_nothing() -> None:
    limits = Limits(RequestRate(1, 2), 100)
    quotas = LocalQuotas()
    held(reserve(quotas, limits, Demand(tokens=50)))
    again = replace(limits, requests=RequestRate(1, 2))
    held(reserve(quotas, again, Demand(tokens=50)))
    assert refused(reserve(quotas, again)).reason is Reason.RATE_REQUESTS


def test_idle_tenants_are_forgotten_and_busy_ones_kept() -> None:
    limits = Limits(RequestRate(1000, 1), 1000, 1)
    quotas = LocalQuotas()
    busy = held(reserve(quotas, limits, tenant="busy"))
    for number in range(10_000):
        when = 1 + number / 100
        quotas.settle(held(reserve(quotas, limits, when=when, tenant=f"t{number}")), Usage(), at(when))
    assert len(quotas) < 10
    assert "busy" in quotas.tenants()
    quotas.settle(busy, Usage(), at(200))
    assert quotas.in_flight("busy") == 0


def test_tenants_that_owe_are_not_forgotten() -> None:
    limits = Limits(tokens_per_minute=60)
    quotas = LocalQuotas()
    for number in range(100):
        spender = held(reserve(quotas, limits, Demand(tokens=60), tenant=f"t{number}"))
        quotas.settle(spender, Usage(output_tokens=60), at(0))
    for number in range(100):
        assert refused(reserve(quotas, limits, Demand(tokens=1), tenant=f"t{number}")).reason is Reason.RATE_TOKENS


def test_reservations_of_other_quotas_are_our_bug() -> None:
    with pytest.raises(AssertionError):
        LocalQuotas().settle(Reservation("acme", "chat", NOTHING, at(0)), Usage(), at(0))


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (8 * GIB, "8GiB"), (GIB + GIB // 2, "1.5GiB"), (2**50, "1024TiB")],
)
def test_sizes_read_as_they_are_configured(count: int, words: str) -> None:
    assert size(count) == words


def test_a_limit_in_shadow_is_counted_and_not_enforced_and_the_others_are() -> None:
    quotas = LocalQuotas()
    limits = Limits(requests=RequestRate(1, 1), concurrency=3, shadow=frozenset({Quantity.REQUESTS}))
    overs = [held(reserve(quotas, limits)).over for _ in range(3)]
    assert [None if over is None else over.reason for over in overs] == [None, *[Reason.RATE_REQUESTS] * 2]
    assert refused(reserve(quotas, limits)).reason is Reason.CONCURRENCY
    # What would have been refused was not taken: a second later the rate has room again.
    assert held(reserve(quotas, replace(limits, concurrency=None), when=1.0)).over is None


def test_a_stream_that_outgrows_what_was_expected_takes_more_and_ends_where_there_is_none() -> None:
    quotas = LocalQuotas()
    limits = Limits(tokens_per_minute=300, expected=True)
    for _ in range(20):
        quotas.settle(
            held(reserve(quotas, Limits(expected=True), Demand(1000, prompt_tokens=5))),
            Usage(output_tokens=10, responses=1),
            at(0),
        )
    stream = held(reserve(quotas, limits, Demand(1005, prompt_tokens=5)))  # in full it could never fit
    assert quotas.grow(stream, 15, at(0), exact=False) is None
    assert quotas.grow(stream, 300, at(0), exact=False) is None
    spent = quotas.grow(stream, 301, at(0), exact=False)
    assert spent is not None
    assert (spent.reason, spent.retry_after) == (Reason.RATE_TOKENS, 0.2)


def test_models_without_tokens_are_charged_for_their_time() -> None:
    quotas = LocalQuotas()
    limits, call = Limits(compute_per_minute=3000), Demand(timed=True)
    for number in range(3):
        quotas.settle(held(reserve(quotas, limits, call)), Usage(duration_ns=SECOND, responses=1), at(0))
        assert quotas.in_flight("acme") == 0, number
    denial = refused(reserve(quotas, limits, call))
    assert (denial.reason, denial.detail) == (
        Reason.RATE_COMPUTE, "compute time 3 s per minute; this call asks for about 0.001 s",
    )  # fmt: skip
    assert denial.retry_after == 0.02
    assert isinstance(reserve(quotas, limits, call, 0.019), Denial)
    held(reserve(quotas, limits, call, 0.02))
    held(reserve(quotas, limits, Demand(tokens=5)))  # one with tokens pays in tokens


def test_kv_byte_milliseconds_are_of_the_bytes_filled_and_of_the_time_they_were_held_whenever_that_began() -> None:
    quotas = LocalQuotas()
    chat = Demand(tokens=32, kv_bytes=3200, prompt_tokens=16, kv_block=KvProfile(100, 16))
    for began in (0.0, 40_000.0):
        call = held(reserve(quotas, Limits(), chat, began))
        assert quotas.grow(call, 17, at(began + 1), exact=True) is None  # 1 s of one block, then of two
        assert quotas.settle(call, Usage(input_tokens=16, output_tokens=1), at(began + 3)) == 1000 * 1600 + 2000 * 3200
        without = held(reserve(quotas, Limits(), Demand(timed=True), began))
        assert quotas.settle(without, Usage(), at(began + 3)) == 0


def test_memory_and_slot_stay_held_until_triton_has_ended_it() -> None:
    quotas = LocalQuotas()
    limits = Limits(tokens_per_minute=100, concurrency=1, kv_bytes=10)
    first = held(reserve(quotas, limits, Demand(100, 10)))
    quotas.settle(first, Usage(input_tokens=10), at(0), running=True)
    assert quotas.held("acme") == (10, 0)
    assert refused(reserve(quotas, limits, Demand(90))).reason is Reason.CONCURRENCY  # the tokens are back
    quotas.release(first, at(1))
    held(reserve(quotas, limits, Demand(90, 10)))
    with pytest.raises(RuntimeError):
        quotas.release(first, at(1))


def test_a_models_pool_is_shared_by_the_plans() -> None:
    quotas, size = LocalQuotas(), PoolSize(kv_bytes=100, concurrency=10)
    greedy, modest = Limits(share=Share(0, 700)), Limits(share=Share(300, 1000))

    def ask(tenant: str, limits: Limits, kv: int) -> Reservation | Denial:
        return quotas.reserve(tenant, "chat", limits, Demand(kv_bytes=kv), at(0), enforce=True, pool=size)

    calls = [held(ask("greedy", greedy, 35)) for _ in range(2)]
    denial = refused(ask("greedy", greedy, 1))
    assert (denial.reason, denial.rule) == (Reason.MEMORY_KV, "quota:pool:kv_bytes")
    assert "greedy" not in denial.detail
    assert "modest" not in denial.detail
    held(ask("modest", modest, 30))
    assert quotas.engines.held() == {("chat", "concurrency"): (3, 10), ("chat", "kv_bytes"): (100, 100)}
    assert refused(ask("modest", modest, 101)).retry_after is None
    for call in calls:
        quotas.settle(call, Usage(), at(0))
    assert quotas.engines.held() == {("chat", "concurrency"): (1, 10), ("chat", "kv_bytes"): (30, 100)}


def test_kv_cache_is_metered_as_it_grows() -> None:
    quotas, block = LocalQuotas(), KvProfile(bytes_per_token=10, tokens_per_block=4)
    stream = held(reserve(quotas, Limits(), Demand(12, 120, 0, 4, kv_block=block)))
    assert quotas.grow(stream, 5, at(1.0), exact=True) is None  # one block for a second, then two
    used = quotas.settle(stream, Usage(input_tokens=4, output_tokens=5), at(3.0))
    assert used == 40 * 1000 + 80 * 2000


def test_a_key_of_its_own_limits_is_held_to_them_and_its_neighbours_to_per_key() -> None:
    own, limits = Limits(concurrency=2), Limits(concurrency=10, per_key=Limits(concurrency=1))
    quotas = LocalQuotas()

    def taken(key: str, key_limits: Limits | None) -> bool:
        found = quotas.reserve(
            "acme", "chat", limits, Demand(), Instant(0, 0), enforce=True, key=key, key_limits=key_limits
        )
        return isinstance(found, Reservation)

    assert [taken("ci", own) for _ in range(3)] == [True, True, False]
    assert [taken("web", None) for _ in range(2)] == [True, False]


def test_an_estimate_ends_no_call_but_what_was_used_at_the_very_least_does() -> None:
    """Invariant: of a full reservation, never more than the budget is surely used, whatever the backend counts."""
    quotas, limits = LocalQuotas(), Limits(tokens_per_minute=100)
    found = held(reserve(quotas, limits, Demand(tokens=40, prompt_tokens=10)))
    assert quotas.grow(found, 95, at(0), exact=False, least=20) is None  # room for it
    assert quotas.grow(found, 300, at(0), exact=False, least=60) is None  # none, but it is only an estimate
    cut = [least for least in range(60, 200) if quotas.grow(found, 300, at(0), exact=False, least=least) is not None]
    assert cut[0] <= 101
    quotas.settle(found, Usage(input_tokens=10, output_tokens=cut[0] - 10), at(0))
    assert refused(reserve(quotas, limits, Demand(tokens=101 - cut[0]))).retry_after is not None


def test_what_is_left_before_the_first_call_is_all_and_keeps_nothing_of_the_unlimited() -> None:
    quotas, at = LocalQuotas(), Instant(0, 0)
    (left,) = quotas.left_of("acme", Limits(requests=RequestRate(2, 5)), at)
    assert (left.quota, left.left, left.full_s) == (5, 5, 0)
    assert quotas.left_of("birch", Limits(concurrency=3), at) == ()
    assert quotas.tenants() == ("acme",)


def test_what_is_left_is_exactly_what_can_still_be_taken() -> None:
    """Invariant: ``left`` more requests pass, one more does not, and after ``full_s`` all is there."""
    quotas, limits = LocalQuotas(), Limits(requests=RequestRate(2, 7), tokens_per_minute=600)
    for _ in range(3):
        found = held(reserve(quotas, limits, Demand(tokens=100)))
    requests, tokens = quotas.left(found, at(0))
    assert (requests.quota, requests.window, requests.left, requests.full_s) == (7, 4, 4, 2)
    assert (tokens.quota, tokens.window, tokens.left, tokens.full_s) == (600, 60, 300, 30)
    for _ in range(requests.left):
        held(reserve(quotas, limits))
    assert refused(reserve(quotas, limits)).reason is Reason.RATE_REQUESTS
    assert quotas.left(held(reserve(quotas, Limits(concurrency=9), tenant="birch")), at(0)) == ()
    later = quotas.left(found, at(5))
    assert [each.left for each in later] == [7, 350]


def test_a_live_pool_is_as_its_engine_tells_and_else_as_the_bundle_states() -> None:
    quotas, shared = LocalQuotas(), PoolSize(kv_bytes=100, live=True)

    def room() -> int:
        """How many calls of 10 bytes are let in."""
        live = []
        while isinstance(
            found := quotas.reserve("t", "chat", Limits(), Demand(kv_bytes=10), at(0), enforce=True, pool=shared), Held
        ):
            live.append(found)
        for each in live:
            quotas.settle(each, Usage(), at(0))
        return len(live)

    assert room() == 10
    quotas.engines.tell({"chat": LivePool(60, 0), "other": LivePool(5, 0)})
    assert room() == 6
    quotas.engines.tell({"chat": LivePool(60, 45, 45)})
    assert room() == 1
    assert quotas.engines.held()["chat", "kv_bytes"] == (45, 60)
    quotas.engines.tell({"chat": LivePool(60, 70, 70)})  # others hold more than all: nothing is let in or breaks
    assert room() == 0
    quotas.engines.tell({})
    assert room() == 10


def test_models_in_front_of_one_engine_share_its_pool() -> None:
    quotas, shared = LocalQuotas(), PoolSize(kv_bytes=100, concurrency=2, engine="core")
    for model in ("ensemble", "bls"):
        held(quotas.reserve("t", model, Limits(), Demand(kv_bytes=40), at(0), enforce=True, pool=shared))
    denial = refused(quotas.reserve("t", "ensemble", Limits(), Demand(), at(0), enforce=True, pool=shared))
    assert denial.reason is Reason.CONCURRENCY
    assert quotas.engines.held() == {("core", "concurrency"): (2, 2), ("core", "kv_bytes"): (80, 100)}


def test_the_most_that_was_reserved_between_two_looks_is_told_once() -> None:
    quotas, shared = LocalQuotas(), PoolSize(kv_bytes=100)
    assert quotas.engines.peak("chat") == 0
    calls = [
        held(quotas.reserve("t", "chat", Limits(), Demand(kv_bytes=30), at(0), enforce=True, pool=shared))
        for _ in range(2)
    ]
    quotas.settle(calls.pop(), Usage(), at(0))
    assert (quotas.engines.peak("chat"), quotas.engines.kv_held("chat")) == (60, 30)
    assert quotas.engines.peak("chat") == 30


def test_a_stream_that_holds_more_than_it_reserved_is_booked_with_what_it_holds() -> None:
    """Its prompt was longer than estimated, or its model heeds no max_tokens; only the backend's own count says so."""
    quotas, block, shared = LocalQuotas(), KvProfile(bytes_per_token=10, tokens_per_block=4), PoolSize(kv_bytes=400)
    limits = Limits(kv_bytes=200)
    demand = Demand(12, 120, 0, 4, kv_block=block)

    def ask() -> Reservation | Denial:
        return quotas.reserve("t", "m", limits, demand, at(1.0), enforce=True, pool=shared)

    stream = held(ask())
    assert quotas.grow(stream, 16, at(1.0), exact=False) is None
    assert quotas.held("t") == (120, 0)
    assert quotas.grow(stream, 16, at(1.0), exact=True) is None
    assert quotas.grow(stream, 15, at(1.0), exact=True) is None
    assert (quotas.held("t"), quotas.engines.kv_held("m")) == ((160, 0), 160)
    assert refused(ask()).reason is Reason.MEMORY_KV
    assert quotas.grow(stream, 45, at(1.0), exact=True) is None  # past its tenant's limit, and the pool's
    assert (quotas.held("t"), quotas.engines.kv_held("m")) == ((480, 0), 480)
    quotas.settle(stream, Usage(input_tokens=45), at(2.0), running=True)
    assert quotas.engines.kv_held("m") == 480, "until Triton has ended it"
    quotas.release(stream, at(3.0))
    assert (quotas.held("t"), quotas.engines.kv_held("m")) == ((0, 0), 0)


def test_of_a_window_no_stream_holds_more_than_it_reserved() -> None:
    quotas, block = LocalQuotas(), KvProfile(bytes_per_token=10, tokens_per_block=4, window=8)
    stream = held(reserve(quotas, Limits(), Demand(12, 120, 0, 4, kv_block=block)))
    assert quotas.grow(stream, 500, at(1.0), exact=True) is None
    assert quotas.held("acme") == (120, 0)
    quotas.settle(stream, Usage(), at(2.0))
    assert quotas.held("acme") == (0, 0)

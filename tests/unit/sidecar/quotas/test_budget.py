"""The token budget, exactly."""

from __future__ import annotations

from sidecar.quotas.budget import MINUTE_NS, Budget

SECOND = 1_000_000_000


def budget(per_minute: int) -> Budget:
    made = Budget()
    made.configure(per_minute, 0)
    return made


def test_a_minutes_worth_at_once_and_it_flows_back() -> None:
    tokens = budget(600)
    assert tokens.wait_ns(600, 0) == 0
    tokens.charge(600, 0)
    assert tokens.wait_ns(1, 0) == SECOND // 10
    assert tokens.wait_ns(10, 0) == SECOND
    assert tokens.left(SECOND) == 10
    assert tokens.wait_ns(10, SECOND) == 0
    assert tokens.wait_ns(11, SECOND) == SECOND // 10
    assert tokens.left(MINUTE_NS) == 600


def test_nothing_is_saved_up_beyond_a_minute() -> None:
    tokens = budget(600)
    assert tokens.left(100 * MINUTE_NS) == 600
    tokens.charge(-100, 100 * MINUTE_NS)
    assert tokens.left(100 * MINUTE_NS) == 600


def test_more_than_the_capacity_never_fits() -> None:
    assert budget(600).wait_ns(601, 0) is None
    assert budget(0).wait_ns(1, 0) is None
    assert budget(0).wait_ns(0, 0) == 0


def test_what_was_not_used_comes_back_and_what_was_used_beyond_is_owed() -> None:
    tokens = budget(600)
    tokens.charge(600, 0)
    tokens.charge(100 - 600, 0)
    assert tokens.left(0) == 500
    tokens.charge(700, 0)
    assert tokens.left(0) == 0
    assert tokens.wait_ns(1, 0) == 201 * SECOND // 10


def test_a_wrong_count_locks_out_for_a_bounded_time() -> None:
    tokens = budget(600)
    tokens.charge(2**40, 0)
    assert tokens.wait_ns(600, 0) == 2 * MINUTE_NS


def test_a_call_that_asks_for_nothing_passes_even_then() -> None:
    tokens = budget(600)
    tokens.charge(2**40, 0)
    assert tokens.wait_ns(0, 0) == 0


def test_a_new_limit_keeps_what_is_owed() -> None:
    tokens = budget(600)
    tokens.charge(600, 0)
    tokens.configure(1200, 0)
    assert tokens.left(0) == 600
    tokens.configure(300, 0)
    assert tokens.wait_ns(300, 0) == 2 * MINUTE_NS
    tokens.configure(300, MINUTE_NS)
    assert tokens.left(MINUTE_NS) == 0
    assert not tokens.idle(MINUTE_NS)
    assert tokens.idle(2 * MINUTE_NS)


def test_an_earlier_time_changes_nothing() -> None:
    tokens = budget(600)
    tokens.charge(600, SECOND)
    assert tokens.left(0) == 0


def test_the_wait_is_exact_to_the_nanosecond_where_it_does_not_divide() -> None:
    tokens = budget(7)
    tokens.charge(7, 0)
    wait = tokens.wait_ns(1, 0)
    assert wait == 8_571_428_572
    assert tokens.wait_ns(1, wait - 1) == 1
    assert tokens.wait_ns(1, wait) == 0

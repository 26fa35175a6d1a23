"""audit.pressure: the steps of the ladder and how they are left; who fills the journal for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.pressure import BACK, Ladder, Pressure, Shares


@pytest.mark.parametrize(
    ("held", "step"),
    [(0, Pressure.NONE), (499, Pressure.NONE), (500, Pressure.WARN), (799, Pressure.WARN), (800, Pressure.SHED),
     (1000, Pressure.SHED)],
)  # fmt: skip
def test_each_step_begins_at_its_part_of_the_capacity(held: int, step: Pressure) -> None:
    assert Ladder(0.5, 0.8).measure(held, 1000, full=False) is step


def test_a_full_journal_is_the_last_step_whatever_is_held() -> None:
    ladder = Ladder(0.5, 0.8)
    assert ladder.measure(0, 1000, full=True) is Pressure.REFUSE
    assert ladder.measure(0, 1000, full=False) is Pressure.NONE
    assert ladder.measure(10, 0, full=False) is Pressure.SHED, "no room at all"


def test_a_step_is_left_later_than_it_is_entered() -> None:
    ladder = Ladder(0.5, 0.8)
    steps = [ladder.measure(held, 1000, full=False).word for held in (800, 790, 760, 749, 501, 460, 449)]
    assert steps == ["shed", "shed", "shed", "warn", "warn", "warn", "none"]


@given(st.lists(st.integers(0, 1000), max_size=50))
def test_the_step_is_never_below_what_is_held_nor_far_above(held: list[int]) -> None:
    """Invariant: a step is at least what the held bytes ask for, and at most what BACK more would ask for."""
    ladder, fresh = Ladder(0.5, 0.8), Ladder(0.5, 0.8)
    for each in held:
        step = ladder.measure(each, 1000, full=False)
        assert fresh._reached(each / 1000) <= step <= fresh._reached(each / 1000 + BACK)


def test_nobody_holds_more_than_the_share_and_under_pressure_no_more_than_an_equal_part() -> None:
    shares = Shares(0.5)
    shares.measure(1000, tight=False)
    shares.add("flood", 500)
    assert not shares.over("flood")
    shares.add("flood", 1)
    assert shares.over("flood")
    assert not shares.over("quiet")
    shares.add("other", 340)
    shares.measure(1000, tight=True)
    assert shares.over("other"), "two may hold a third each, so that a third tenant has room"
    assert not shares.over("quiet")
    assert shares.most_held == ("flood", 501)


def test_a_share_of_one_lets_a_tenant_fill_the_journal_to_the_last_step() -> None:
    shares = Shares(1.0)
    shares.add("only", 999)
    shares.measure(1000, tight=True)
    assert not shares.over("only")


def test_what_is_in_the_database_is_nobodys_any_more() -> None:
    shares = Shares(0.5)
    shares.measure(100, tight=False)
    shares.add("a", 60)
    segment = shares.left()
    shares.add("a", 10)
    assert shares.over("a")
    shares.gone(segment)
    assert not shares.over("a")
    shares.gone(shares.left())
    assert shares.most_held == ("", 0)


def test_every_step_has_a_word() -> None:
    assert [step.word for step in Pressure] == ["none", "warn", "shed", "refuse"]

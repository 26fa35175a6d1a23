"""Held messages: let go in order, by place or by age, and never past what is in doubt."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.holdback import HoldBack
from sidecar.core.model import Finding


@dataclass
class Told:
    """A watch by script."""

    places: tuple[int, ...] = (0,)
    clear: tuple[int, ...] = (0,)
    sure: tuple[int, ...] = (2**63,)
    holds: bool = True
    within_ns: int = 100

    def heard(self) -> tuple[int, ...]:
        return self.places

    def cleared(self) -> tuple[int, ...]:
        return self.clear

    def doubted(self) -> tuple[int, ...]:
        return self.sure

    def feed(self, texts: object) -> tuple[Finding, ...]:
        del texts
        return ()

    look = decide = finish = lambda _: ()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30), st.lists(st.integers(0, 300), max_size=8)
)
def test_whatever_is_let_go_comes_out_once_in_order(messages: list[tuple[int, int]], clear: list[int]) -> None:
    """Of any messages, cleared in any steps and then let go whole, each comes out once, in order, and none counts."""
    watch = Told()
    held, out, heard = HoldBack(watch), [], 0
    for number, (size, later) in enumerate(messages):
        heard += size
        watch.places = (heard,)
        held.put(b"%d" % number, later)
    for upto in clear:
        watch.clear = (upto,)
        out += held.cleared()
    out += held.all()
    assert out == [b"%d" % number for number in range(len(messages))]
    assert (len(held), held.nbytes) == (0, 0)


def test_every_sequence_must_be_clear() -> None:
    watch = Told(places=(3, 5), clear=(3, 4))
    held = HoldBack(watch)
    held.put(b"a", 0)
    assert held.cleared() == []
    watch.clear = (3, 5)
    assert held.cleared() == [b"a"]


def test_what_may_wait_no_longer_goes_and_what_came_later_stays() -> None:
    watch = Told()
    held = HoldBack(watch)
    assert held.due_ns() is None
    for place, at_ns in ((1, 0), (2, 50)):
        watch.places = (place,)
        held.put(b"%d" % place, at_ns)
    assert held.due_ns() == 100
    assert held.aged(99) == []
    assert held.aged(120) == [b"1"]
    assert held.due_ns() == 150


def test_only_what_is_due_and_in_doubt_must_be_decided() -> None:
    watch = Told(sure=(2,))
    held = HoldBack(watch)
    for place, at_ns in ((2, 0), (3, 10), (4, 90)):
        watch.places = (place,)
        held.put(b"x", at_ns)
    assert not held.overdue_in_doubt(100), "the first is before the doubt"
    assert held.overdue_in_doubt(110)
    watch.sure = (3,)
    assert not held.overdue_in_doubt(110)

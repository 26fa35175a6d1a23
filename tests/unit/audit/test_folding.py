"""audit.folding: the first refusals of a kind are recorded, the others counted; nothing grows without bound."""

from __future__ import annotations

import pytest

from audit.folding import KINDS, OTHERS, WHOLE, WHOLE_ALL, WINDOW_S, Folding, network

SECOND = 10**9


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("10.1.2.3:4711", "10.1.2.0/24"), ("10.1.2.3", "10.1.2.0/24"), ("ipv4:10.1.2.3:4711", "10.1.2.0/24"),
        ("[2001:db8:1:2::3]:4711", "2001:db8:1::/48"), ("ipv6:%5B2001:db8:1:2::3%5D:4711", "2001:db8:1::/48"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"), ("unix:/run/x", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_peer_is_told_by_its_network(peer: str, expected: str) -> None:
    assert network(peer) == expected


def test_the_first_are_recorded_the_others_counted_and_told_once() -> None:
    folding = Folding()
    counted = [folding.folds("KEY_UNKNOWN", "10.0.0.0/24", n) for n in range(WHOLE + 50)]
    assert counted == [False] * WHOLE + [True] * 50
    assert not folding.folds("KEY_UNKNOWN", "10.0.1.0/24", 0), "another network is another kind"
    assert folding.due(SECOND) == [], "the window goes on"
    (told,) = folding.due(int(WINDOW_S) * SECOND)
    assert (told.reason, told.origin, told.count) == ("KEY_UNKNOWN", "10.0.0.0/24", 50)
    assert (told.first_ns, told.last_ns) == (WHOLE, WHOLE + 49)
    assert folding.due(10**15) == []
    assert not folding.folds("KEY_UNKNOWN", "10.0.0.0/24", 10**15), "a new window, new examples"


def test_a_clock_set_back_an_hour_ends_the_window_and_holds_back_no_count() -> None:
    folding, hour = Folding(), 3600 * SECOND
    folding.folds("R", "n", hour, whole=0)
    assert folding.due(hour - SECOND) == [], "another thread's clock may be read before ours"
    (told,) = folding.due(SECOND)
    assert told.count == 1
    folding.folds("R", "n", 2 * SECOND, whole=0)
    assert folding.due(3 * SECOND) == []


def test_a_flood_from_everywhere_takes_bounded_memory_and_loses_no_count() -> None:
    folding = Folding()
    sent = 5 * WHOLE_ALL
    recorded = sum(not folding.folds("KEY_UNKNOWN", f"10.{n // 256}.{n % 256}.0/24", n) for n in range(sent))
    assert recorded <= WHOLE_ALL
    told = folding.due(0, now=True)
    assert len(told) <= KINDS + 1
    assert sum(each.count for each in told) == sent - recorded
    assert any(each.origin == OTHERS for each in told)


def test_what_could_not_be_told_is_counted_on() -> None:
    folding = Folding()
    folding.folds("R", "n", 5, whole=0)
    told = folding.due(0, now=True)
    folding.folds("R", "n", 7, whole=0)
    folding.again(told)
    (again,) = folding.due(0, now=True)
    assert (again.count, again.first_ns, again.last_ns) == (2, 5, 7)

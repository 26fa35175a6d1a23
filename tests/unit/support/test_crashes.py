"""The crash cycles' tally outlives a run that was broken off."""

from __future__ import annotations

from collections import Counter

from tests.support.crashes import Tally


def test_a_tally_is_read_back_as_it_was_told() -> None:
    tally = Tally(cycles=25, kills=Counter(serve=9), together=Counter({"serve and ship": 3}), failed=["this and that"])
    again = Tally.of(tally.told())
    assert again == tally
    again.kills["serve"] += 1
    assert again.kills == {"serve": 10}

"""When answers change: between two moments of one interval nothing does."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.moments import interval, time_of_day

MOMENTS = st.floats(min_value=0, max_value=4e9)


@given(MOMENTS)
def test_the_time_of_day_is_the_calendar_s(at: float) -> None:
    """For any moment, hour, minute and weekday are those that the calendar has in UTC."""
    shown = datetime.fromtimestamp(math.floor(at), UTC)
    assert time_of_day(at) == (shown.hour, shown.minute, shown.isoweekday())


@given(MOMENTS, st.lists(MOMENTS, max_size=6), st.sets(st.sampled_from(["hour", "minute", "weekday", "name"])), MOMENTS)
def test_nothing_changes_within_an_interval(at: float, edges: list[float], mentions: set[str], other: float) -> None:
    """The interval holds the moment asked about; no edge and no change of what is mentioned lies inside it."""
    found = interval(at, sorted(edges), mentions)
    assert found.begins <= at < found.ends
    assert not [edge for edge in edges if found.begins < edge < found.ends]
    if found.begins <= other < found.ends:
        for name in mentions - {"name"}:
            assert getattr(time_of_day(other), name) == getattr(time_of_day(at), name)


@pytest.mark.parametrize(
    ("mentions", "seconds"), [({"minute"}, 60), ({"hour"}, 3600), ({"weekday"}, 86400), ({"hour", "minute"}, 60)]
)
def test_an_interval_is_no_shorter_than_it_must_be(mentions: set[str], seconds: int) -> None:
    found = interval(1_796_115_632.5, (), mentions)
    assert found.ends - found.begins == seconds
    assert interval(5.0, (), {"name"}) == (-math.inf, math.inf)

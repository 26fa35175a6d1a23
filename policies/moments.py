"""When an answer of a bundle changes: at dates its documents name, and at the hours its policies look at. Pure; UTC."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

__all__ = ["Interval", "TimeOfDay", "interval", "time_of_day"]

_DAY: Final = 86400
_PERIODS: Final = {"minute": 60, "hour": 3600, "weekday": _DAY}  # seconds between two changes of each


class Interval(NamedTuple):
    """From ``begins`` (included) until ``ends`` (not included), in seconds since the UNIX epoch."""

    begins: float
    ends: float


class TimeOfDay(NamedTuple):
    """As ``warden.cedarschema`` has it: ``weekday`` 1 is Monday."""

    hour: int
    minute: int
    weekday: int


def interval(at: float, edges: Sequence[float], mentions: Collection[str]) -> Interval:
    """The longest time around ``at`` in which nothing changes: no edge (in order), nothing of what is mentioned."""
    after = bisect_right(edges, at)
    begins = edges[after - 1] if after else -math.inf
    ends = edges[after] if after < len(edges) else math.inf
    for name, seconds in _PERIODS.items():
        if name in mentions:
            start = at // seconds * seconds
            begins, ends = max(begins, start), min(ends, start + seconds)
    return Interval(begins, ends)


def time_of_day(at: float) -> TimeOfDay:
    """POSIX time has no leap seconds, so a day is always as long; 1970-01-01 was a Thursday."""
    day, second = divmod(int(at // 1), _DAY)
    return TimeOfDay(second // 3600, second // 60 % 60, (day + 3) % 7 + 1)

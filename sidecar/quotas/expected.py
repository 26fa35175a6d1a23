"""What calls of one kind usually turn out to use, so that not every one need be reserved at its worst."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["EDGES", "Usual"]

# Upper edges, a quarter more each: an estimate is at most a quarter above what it estimates.
EDGES: Final = tuple(sorted({round(1.25**step) for step in range(80)}))  # to 45 million
_KNOWN_AFTER: Final = 20  # calls: fewer don't have a nineteenth of twenty
_REMEMBERED: Final = 1024  # calls: then all counts are halved, so that it follows what changes


class Usual:
    """A histogram of whole numbers that forgets: the 95th percentile of about the last thousand."""

    __slots__ = ("_counts", "_total", "p95")

    def __init__(self) -> None:
        self._counts = [0] * (len(EDGES) + 1)
        self._total = 0
        self.p95: int | None = None  # None: not known yet, or above every edge

    def add(self, value: int) -> None:
        self._counts[bisect_left(EDGES, value)] += 1
        self._total += 1
        if self._total >= _REMEMBERED:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)
        if self._total >= _KNOWN_AFTER:
            self.p95 = self._percentile()

    def _percentile(self) -> int | None:
        above = self._total // 20
        for bucket in range(len(EDGES), -1, -1):
            above -= self._counts[bucket]
            if above < 0:
                return EDGES[bucket] if bucket < len(EDGES) else None
        return None

"""How short of space a journal is, and whether one tenant fills it for the others: warn, shed, refuse.

Only what may not go yet counts: records that are not in the database, calls that have not ended. Each step is left
later than it is entered, so that a journal at its edge doesn't flicker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

__all__ = ["Ladder", "Pressure", "Shares"]

BACK: Final = 0.05  # of the capacity: how far below a step the journal must be to leave it


class Pressure(IntEnum):
    """The steps, in order. At REFUSE no new call is admitted."""

    NONE = 0
    WARN = 1
    SHED = 2
    REFUSE = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class Ladder:
    """One journal's. ``warn_at`` and ``shed_at`` are shares of its capacity."""

    warn_at: float
    shed_at: float
    step: Pressure = Pressure.NONE
    used: float = 0.0

    def measure(self, held: int, capacity: int, *, full: bool) -> Pressure:
        """``held`` of ``capacity`` bytes can't be freed yet; ``full``: nothing new is admitted."""
        self.used = held / capacity if capacity > 0 else 1.0
        up = self._reached(self.used)
        self.step = Pressure.REFUSE if full else max(up, min(self.step, self._reached(self.used + BACK), Pressure.SHED))
        return self.step

    def _reached(self, used: float) -> Pressure:
        if used >= self.shed_at:
            return Pressure.SHED
        return Pressure.WARN if used >= self.warn_at else Pressure.NONE


class Shares:
    """Bytes by tenant that the journal still has to keep; those from before a restart are nobody's."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._held: defaultdict[str, int] = defaultdict(int)
        self._segment: defaultdict[str, int] = defaultdict(int)  # of the segment that is written
        self._most = 1 << 62

    def add(self, tenant: str, nbytes: int) -> None:
        self._held[tenant] += nbytes
        self._segment[tenant] += nbytes

    def left(self) -> Mapping[str, int]:
        """Who has how much in the segment that was written until now; the next begins."""
        segment, self._segment = self._segment, defaultdict(int)
        return segment

    def gone(self, segment: Mapping[str, int]) -> None:
        """All of a segment is in the database."""
        for tenant, nbytes in segment.items():
            left = self._held.get(tenant, 0) - nbytes
            if left > 0:
                self._held[tenant] = left
            else:
                self._held.pop(tenant, None)

    def measure(self, capacity: int, *, tight: bool) -> None:
        """``tight``: the journal is short of space, so who holds more than an equal part gives way.

        A share of 1 says that one tenant may fill the journal, also for others: then nobody gives way.
        """
        most = self._share * capacity
        if tight and self._share < 1:
            most = min(most, capacity / (len(self._held) + 1))
        self._most = int(most)

    def over(self, tenant: str) -> bool:
        """Whether a tenant holds more than its share."""
        return self._held.get(tenant, 0) > self._most

    @property
    def most_held(self) -> tuple[str, int]:
        """Who holds the most, and how much of it (bytes)."""
        return max(self._held.items(), key=lambda item: item[1], default=("", 0))

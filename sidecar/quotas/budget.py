"""Token budget: a bucket of one minute's tokens that refills continuously, in exact integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MINUTE_NS: Final = 60_000_000_000


@dataclass(slots=True)
class Budget:
    """One tenant's tokens. Reserved up front, corrected by what was really used.

    What is owed is kept in units of a token / 6e10, because at ``per_minute`` tokens a minute exactly ``per_minute``
    such units flow back each nanosecond. It may go above the capacity (a call that used more than it reserved), but by
    one capacity at most: the longest lock-out a wrong count can cause is a minute beyond the ordinary one.
    """

    per_minute: int = 0
    owed: int = 0
    at_ns: int = 0

    def configure(self, per_minute: int, at_ns: int) -> None:
        """Take on a new limit; what is owed stays owed."""
        self._flow(at_ns)
        if not self.owed:  # also before the clock's zero: what was used before a restart is booked when it was
            self.at_ns = at_ns
        self.per_minute = per_minute

    def _flow(self, at_ns: int) -> None:
        if at_ns > self.at_ns:
            self.owed = max(0, self.owed - (at_ns - self.at_ns) * self.per_minute)
            self.at_ns = at_ns

    def wait_ns(self, tokens: int, at_ns: int) -> int | None:
        """Nanoseconds until ``tokens`` fit: 0 is now, None is never (more than the capacity)."""
        if tokens > self.per_minute:
            return None
        if at_ns > self.at_ns:
            self._flow(at_ns)
        missing = self.owed + tokens * MINUTE_NS - self.per_minute * MINUTE_NS
        if tokens <= 0 or missing <= 0:
            return 0
        return -(-missing // self.per_minute)

    def charge(self, tokens: int, at_ns: int) -> None:
        """Take ``tokens``, or give them back where negative."""
        if at_ns > self.at_ns:
            self._flow(at_ns)
        # Never below nothing owed (that would save up more than a minute's worth), never above twice the capacity.
        owed = self.owed + tokens * MINUTE_NS
        most = 2 * self.per_minute * MINUTE_NS
        if owed > most:
            owed = min(owed, max(self.owed, most))
        self.owed = owed if owed > 0 else 0  # noqa: FURB136 — a call of max costs as much as all the rest

    def left(self, at_ns: int) -> int:
        """Whole tokens that could be taken now."""
        self._flow(at_ns)
        return max(0, self.per_minute * MINUTE_NS - self.owed) // MINUTE_NS

    def full_ns(self, at_ns: int) -> int:
        """Nanoseconds until nothing is owed."""
        self._flow(at_ns)
        return -(-self.owed // self.per_minute) if self.per_minute > 0 else 0

    def idle(self, at_ns: int) -> bool:
        """Whether nothing is owed: the state equals a new one."""
        self._flow(at_ns)
        return self.owed == 0

"""Request rate: the Generic Cell Rate Algorithm in whole nanoseconds (ITU-T I.371, Annex A)."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.core.model import RequestRate


@dataclass(slots=True)
class Gcra:
    """One tenant's request rate: at most ``burst`` at once, one more every ``interval_ns``.

    ``due_ns`` is the theoretical arrival time on the monotonic clock: when all that was admitted so far is paid for.
    """

    interval_ns: int = 0
    burst: int = 0
    due_ns: int = 0

    def configure(self, rate: RequestRate, at_ns: int) -> None:
        """Take on new limits; requests that are not paid for yet stay so, at the new rate."""
        # Rounded up, so that the rate is never above the configured one.
        interval = -int(-1e9 // rate.rate) if rate.rate > 0 else 0
        if interval == self.interval_ns and rate.burst == self.burst:
            return
        if not self.interval_ns:
            self.due_ns = at_ns  # nothing is owed yet, also before the clock's zero
        owed = max(0, self.due_ns - at_ns)
        if self.interval_ns and interval:
            self.due_ns = at_ns + -(-owed * interval // self.interval_ns)
        self.interval_ns, self.burst = interval, rate.burst

    def wait_ns(self, at_ns: int) -> int | None:
        """Nanoseconds until one more request conforms: 0 is now, None is never (a limit of nothing)."""
        if self.interval_ns <= 0 or self.burst < 1:
            return None
        return max(0, self.due_ns - (self.burst - 1) * self.interval_ns - at_ns)

    def take(self, at_ns: int) -> None:
        """Admit one request that conforms."""
        self.due_ns = max(self.due_ns, at_ns) + self.interval_ns

    def left(self, at_ns: int) -> int:
        """Requests that conform now, one after the other."""
        if self.interval_ns <= 0:
            return 0
        return max(0, self.burst - -(-max(0, self.due_ns - at_ns) // self.interval_ns))

    def full_ns(self, at_ns: int) -> int:
        """Nanoseconds until nothing is owed."""
        return max(0, self.due_ns - at_ns)

    def idle(self, at_ns: int) -> bool:
        """Whether nothing is owed: the state equals a new one."""
        return self.due_ns <= at_ns

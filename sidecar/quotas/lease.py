"""One tenant's slice of what many pods share, and how an account spends it: in place of its own rate or budget."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from sidecar.core.model import RequestRate

if TYPE_CHECKING:
    from sidecar.quotas.shared import SharedQuotas

__all__ = ["Lease", "LeasedBudget", "LeasedRate"]


@dataclass(slots=True)
class Lease:
    """One tenant's slice of one quantity on this pod, in whole units.

    ``owed``: spent in advance of the first lease, ``shared``: by fair share while Redis was away; both are told to
    Redis with the next round. ``used`` since the last round, ``usual`` a round, by which the next slice is sized.
    ``dry``: the whole had less than was asked for, so nothing may be spent in advance. ``full_ns``: when the whole will
    be full again, as Redis told it last (mono): until then it has no more than what has come back by now (``whole``),
    by ``filling``, the part of its rate that comes in: some may be held back for pods that nobody hears of.
    ``told``: what a round that is under way takes from the whole.
    """

    capacity: int = 0
    per_second: float = 0.0
    left: int = 0
    owed: int = 0
    shared: int = 0
    dry: bool = False
    used: int = 0
    missed: int = 0  # asked for and not there
    usual: float = 0.0
    idle: int = 0  # rounds
    full_ns: int | None = None  # None: nothing was heard of it
    filling: float = 1.0
    told: int = 0
    accrued: float = 0.0  # of a fair share, not whole units yet

    def fits(self, units: int, advance: int) -> bool:
        return units <= self.left or self.owed + units - self.left <= advance

    def take(self, units: int) -> None:
        self.owed += max(0, units - self.left)
        self.left = max(0, self.left - units)
        self.used += units

    def give(self, units: int, room: int) -> None:
        """Not used after all: what was spent in advance is no longer owed, the rest is there for the next call.

        ``room``: what may be there beside what the whole has by now. More has come back by itself meanwhile.
        """
        forgiven = min(self.owed, units)
        self.owed -= forgiven
        self.left += max(0, min(units - forgiven, room - self.left))

    def whole(self, at_ns: int) -> float:
        """Units that the whole has by now, if nobody else takes any; a whole that was never heard of is full."""
        if self.full_ns is None or at_ns >= self.full_ns:
            return self.capacity - self.told
        return self.capacity - self.told - (self.full_ns - at_ns) * self.per_second * self.filling / 1e9

    def wait_ns(self, units: int, at_ns: int) -> int:
        """Until the whole has so many, if nobody else takes any."""
        missing = units - self.left - self.whole(at_ns)
        return ceil(missing / (self.per_second * self.filling) * 1e9) if missing > 0 and self.per_second > 0 else 0

    @property
    def unused(self) -> bool:
        """Whether nothing is under way with it."""
        return not (self.left or self.owed or self.shared or self.used or self.missed or self.told)

    def is_new(self, at_ns: int) -> bool:
        """Whether it equals a new one: one that was forgotten while the whole is spent would spend in advance again."""
        return self.unused and not self.dry and (self.full_ns is None or self.full_ns <= at_ns)


class LeasedRate:
    """Stands where an account of one pod alone has its ``Gcra``."""

    __slots__ = ("_quotas", "lease")

    def __init__(self, quotas: SharedQuotas) -> None:
        self._quotas, self.lease = quotas, Lease()

    def configure(self, rate: RequestRate, _at_ns: int) -> None:
        self.lease.capacity, self.lease.per_second = rate.burst, rate.rate

    def wait_ns(self, at_ns: int) -> int | None:
        lease = self.lease
        if lease.left >= 1:
            return 0
        if lease.capacity < 1 or lease.per_second <= 0:
            return None
        share = int(lease.per_second * self._quotas.round_s / self._quotas.pods)
        fits = lease.fits(1, self._quotas.advance(lease, max(1, share), at_ns))
        return 0 if fits else self._quotas.wait_ns(lease, 1, at_ns)

    def take(self, _at_ns: int) -> None:
        self.lease.take(1)

    def left(self, _at_ns: int) -> int:
        """Of this pod's lease: what others hold nobody here knows."""
        return self.lease.left

    def full_ns(self, at_ns: int) -> int:
        """Until the next slice."""
        return self._quotas.wait_ns(self.lease, 1, at_ns)

    def idle(self, at_ns: int) -> bool:
        return self.lease.is_new(at_ns)


class LeasedBudget:
    """Stands where an account of one pod alone has its ``Budget`` of tokens."""

    __slots__ = ("_quotas", "lease")

    def __init__(self, quotas: SharedQuotas) -> None:
        self._quotas, self.lease = quotas, Lease()

    def configure(self, per_minute: int, _at_ns: int) -> None:
        self.lease.capacity, self.lease.per_second = per_minute, per_minute / 60

    def wait_ns(self, tokens: int, at_ns: int) -> int | None:
        lease = self.lease
        if tokens <= lease.left or tokens <= 0:
            return 0
        if tokens > lease.capacity:
            return None
        one = tokens if lease.owed == 0 else 0
        if self._quotas.growing:  # what runs is not ended for want of a slice that the next round brings
            one = lease.capacity // self._quotas.pods
        share = int(lease.per_second * self._quotas.round_s / self._quotas.pods)
        fits = lease.fits(tokens, self._quotas.advance(lease, max(share, one), at_ns))
        return 0 if fits else self._quotas.wait_ns(lease, tokens, at_ns)

    def charge(self, tokens: int, at_ns: int) -> None:
        lease = self.lease
        if tokens > 0:
            owed = lease.owed
            lease.take(tokens)
            if lease.owed > lease.capacity:  # as for a Budget: what a wrong count can cost is bounded
                lease.owed = max(owed, lease.capacity)
        else:
            lease.give(-tokens, self._quotas.room(lease, at_ns))

    def idle(self, at_ns: int) -> bool:
        return self.lease.is_new(at_ns)

    def left(self, _at_ns: int) -> int:
        """Of this pod's lease: what others hold nobody here knows."""
        return self.lease.left

    def full_ns(self, at_ns: int) -> int:
        """Until the next slice."""
        return self._quotas.wait_ns(self.lease, 1, at_ns)

"""One tenant's slice of what many pods share, and how an account spends it: in place of its own rate or budget."""

from __future__ import annotations

from dataclasses import dataclass
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
    ``dry``: the whole had less than was asked for, so nothing may be spent in advance.
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
    wait_s: float = 0.05  # until the whole has a unit again, as of the last round
    accrued: float = 0.0  # of a fair share, not whole units yet

    def fits(self, units: int, advance: int) -> bool:
        return units <= self.left or self.owed + units - self.left <= advance

    def take(self, units: int) -> None:
        self.owed += max(0, units - self.left)
        self.left = max(0, self.left - units)
        self.used += units

    def give(self, units: int) -> None:
        """Not used after all: what was spent in advance is no longer owed, the rest is there for the next call."""
        forgiven = min(self.owed, units)
        self.owed -= forgiven
        self.left += units - forgiven

    @property
    def unused(self) -> bool:
        """Whether it equals a new one."""
        return not (self.left or self.owed or self.shared or self.used or self.missed)


class LeasedRate:
    """Stands where an account of one pod alone has its ``Gcra``."""

    __slots__ = ("_quotas", "lease")

    def __init__(self, quotas: SharedQuotas) -> None:
        self._quotas, self.lease = quotas, Lease()

    def configure(self, rate: RequestRate, _at_ns: int) -> None:
        self.lease.capacity, self.lease.per_second = rate.burst, rate.rate

    def wait_ns(self, _at_ns: int) -> int | None:
        lease = self.lease
        if lease.left >= 1:
            return 0
        if lease.capacity < 1 or lease.per_second <= 0:
            return None
        share = int(lease.per_second * self._quotas.round_s / self._quotas.pods)
        return 0 if lease.fits(1, self._quotas.advance(lease, max(1, share))) else self._quotas.wait_ns(lease)

    def take(self, _at_ns: int) -> None:
        self.lease.take(1)

    def left(self, _at_ns: int) -> int:
        """Of this pod's lease: what others hold nobody here knows."""
        return self.lease.left

    def full_ns(self, _at_ns: int) -> int:
        """Until the next slice."""
        return self._quotas.wait_ns(self.lease)

    def idle(self, _at_ns: int) -> bool:
        return self.lease.unused


class LeasedBudget:
    """Stands where an account of one pod alone has its ``Budget`` of tokens."""

    __slots__ = ("_quotas", "lease")

    def __init__(self, quotas: SharedQuotas) -> None:
        self._quotas, self.lease = quotas, Lease()

    def configure(self, per_minute: int, _at_ns: int) -> None:
        self.lease.capacity, self.lease.per_second = per_minute, per_minute / 60

    def wait_ns(self, tokens: int, _at_ns: int) -> int | None:
        lease = self.lease
        if tokens <= lease.left or tokens <= 0:
            return 0
        if tokens > lease.capacity:
            return None
        one = tokens if lease.owed == 0 else 0
        if self._quotas.growing:  # what runs is not ended for want of a slice that the next round brings
            one = lease.capacity // self._quotas.pods
        share = int(lease.per_second * self._quotas.round_s / self._quotas.pods)
        return 0 if lease.fits(tokens, self._quotas.advance(lease, max(share, one))) else self._quotas.wait_ns(lease)

    def charge(self, tokens: int, _at_ns: int) -> None:
        if tokens > 0:
            self.lease.take(tokens)
        else:
            self.lease.give(-tokens)

    def idle(self, _at_ns: int) -> bool:
        return self.lease.unused

    def left(self, _at_ns: int) -> int:
        """Of this pod's lease: what others hold nobody here knows."""
        return self.lease.left

    def full_ns(self, _at_ns: int) -> int:
        """Until the next slice."""
        return self._quotas.wait_ns(self.lease)

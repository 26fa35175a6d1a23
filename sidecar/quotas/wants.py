"""What the leases of one account ask Redis for in a round, and are given of a fair share while it is away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from sidecar.core.model import Quantity
from sidecar.quotas.account import Account
from sidecar.quotas.lease import Lease

__all__ = ["IDLE_ROUNDS", "Leases", "Want", "all_of", "next_look", "top_up", "want_of"]

_LOOK_AGAIN: Final = 4  # rounds after the last use: what is held beyond that use goes back; slots in use are renewed

IDLE_ROUNDS: Final = 20  # without use, after which a lease is returned


@dataclass(slots=True)
class Leases:
    """One account's: a tenant's, its model's or its key's."""

    account: Account
    requests: Lease
    tokens: Lease
    slots: int = 0  # leased
    scarce: bool = False  # the whole had fewer slots than were asked for
    turned_away: int = 0  # calls that found no slot since the last round
    asked: bool = False  # whether any call came since
    unasked: int = 0  # rounds without one
    answered_ns: int | None = None  # when Redis told of its slots last
    looked: int = 0  # the round that looked at it last
    touched: bool = False  # the next one will
    booked: int = 0  # the next one that will if nothing happens; 0: none

    def of_time(self) -> Iterator[tuple[Quantity, Lease]]:
        """Those that are limited."""
        if self.account.limits.requests is not None:
            yield Quantity.REQUESTS, self.requests
        if self.account.limits.tokens_per_minute is not None:
            yield Quantity.TOKENS, self.tokens


@dataclass(frozen=True, slots=True)
class Want:
    """What one round asks Redis for. ``returns``: units of the lease that are given back.

    Of slots ``units`` is all that is wanted, ``owed`` what is in use, ``shared`` what it went by until now.
    """

    whom: str  # a tenant, or its model or key (``local.of_model``, ``of_key``)
    kind: Quantity
    capacity: int
    per_second: float
    units: int
    owed: int
    returns: int
    shared: int = 0


def want_of(tenant: str, kind: Quantity, lease: Lease, rounds: int, *, asks: bool) -> Want | None:
    """``rounds`` since it was looked at last, in the last of which it was used, if at all.

    ``asks``: for more; otherwise it tells only what was spent and what is given back.
    """
    lease.usual *= 0.75 ** (rounds - 1)
    lease.usual += (lease.used - lease.usual) / 4
    lease.idle = 0 if lease.used or lease.missed else lease.idle + rounds
    target = ceil(2 * max(lease.usual, lease.used)) + lease.missed
    units, returns = max(0, min(lease.capacity, target) - lease.left), 0
    if lease.idle >= IDLE_ROUNDS:
        units, returns, lease.usual = 0, lease.left, 0.0
        lease.left = 0
    elif lease.left > 4 * target + 4:
        units, returns = 0, lease.left - target
        lease.left = target
    lease.used = lease.missed = 0
    if not asks:
        units = 0
    elif not units:
        lease.dry = False
    if not (units or returns or lease.owed or lease.shared):
        return None
    owed, shared, lease.owed, lease.shared = lease.owed, lease.shared, 0, 0
    lease.told = units + owed
    return Want(tenant, kind, lease.capacity, lease.per_second, units, owed, returns, shared)


def top_up(lease: Lease, units: float, most: int, *, owed: bool) -> None:
    lease.accrued += units
    whole = int(lease.accrued)
    lease.accrued -= whole
    added = max(0, min(whole, most - lease.left))
    lease.left += added
    if owed:
        lease.owed += added
    else:
        lease.shared += added


def all_of(whom: str, kind: Quantity, lease: Lease) -> Want | None:
    """What is left of a lease, given back, and what it owes told."""
    if not (lease.left or lease.owed or lease.shared):
        return None
    want = Want(whom, kind, lease.capacity, lease.per_second, 0, lease.owed, lease.left, lease.shared)
    lease.left = lease.owed = lease.shared = 0
    return want


def next_look(leases: Leases) -> int:
    """Rounds until it is looked at again, if nothing happens to it."""
    idle = [lease.idle for _, lease in leases.of_time()]
    if leases.account.limits.concurrency is not None:
        idle.append(leases.unasked)
    least = min(idle, default=IDLE_ROUNDS)
    if least < _LOOK_AGAIN:
        return _LOOK_AGAIN - least
    return IDLE_ROUNDS - least if least < IDLE_ROUNDS else IDLE_ROUNDS

"""What one lease asks Redis for in a round, and what it is given of a fair share while Redis is away."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from sidecar.core.model import Quantity
from sidecar.quotas.lease import Lease

__all__ = ["IDLE_ROUNDS", "Want", "top_up", "want_of"]

IDLE_ROUNDS: Final = 20  # without use, after which a lease is returned


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

"""What a model has of one thing (KV-cache bytes, slots), shared among tenants: guaranteed, borrowed, given back first.

Nothing that a tenant holds is ever taken away: a generation that was begun is worth most when it ends. So fairness is
in who is let in next. A tenant within its guarantee is let in wherever there is room. What others leave idle may be
borrowed; but whoever was refused for want of room has a *claim* until it is let in (or stops asking), and while there
are claims, nobody further over its share than a claimant is let in where that would leave no room for the claim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sidecar.core.model import Quantity, Share

__all__ = ["CLAIM_NS", "Pool", "Verdict"]

CLAIM_NS: Final = 5_000_000_000  # how long a refused tenant is waited for; asking again renews it
_CLAIMS: Final = 256  # at most, the oldest go first: more tenants than that can't all be waited for
_THOUSAND: Final = 1000
_UNSHARED: Final = 1  # thousandths: the weight of a tenant that is guaranteed nothing


@dataclass(slots=True)
class _Claim:
    """``asks`` is the least it was refused for: room for that is kept."""

    asks: int
    share: Share
    until_ns: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ok``: let in. ``never``: it asks for more than its burst, or the pool, could ever give."""

    ok: bool
    never: bool = False


YES: Final = Verdict(ok=True)
NO: Final = Verdict(ok=False)
NEVER: Final = Verdict(ok=False, never=True)


@dataclass(slots=True)
class Pool:
    """Whole units (bytes or slots). ``capacity`` may change while some of it is held; ``held`` is by tenant.

    ``foreign``: units that somebody holds whom nobody here knows. ``peak``: the largest total since it was last asked.
    """

    kind: Quantity
    capacity: int
    held: dict[str, int] = field(default_factory=dict)
    total: int = 0
    foreign: int = 0
    peak: int = 0
    _claims: dict[str, _Claim] = field(default_factory=dict)

    def ask(self, tenant: str, units: int, share: Share, at_ns: int, *, claim: bool = True) -> Verdict:
        """Whether ``units`` more may be taken now; refused for want of room, the tenant has a claim (if ``claim``)."""
        holds = self.held.get(tenant, 0)
        most = self.capacity * share.burst // _THOUSAND
        room = self.capacity - self.foreign
        if units <= 0 or (self.total + units <= room and holds + units <= most and not self._claims):
            return YES  # nearly always
        if units > min(most, self.capacity):
            return NEVER
        if holds + units > most:
            return NO  # its own ceiling: no claim on what others hold
        self._forget(at_ns)
        if self.total + units + self._owed(tenant, holds + units, share) <= room:
            return YES
        if claim:
            self._claim(tenant, units, share, at_ns)
        return NO

    def take(self, tenant: str, units: int) -> None:
        """Book what ``ask`` allowed; the tenant's claim is met."""
        if units > 0:
            self.held[tenant] = self.held.get(tenant, 0) + units
            self.total += units
            self.peak = max(self.peak, self.total)
            self._claims.pop(tenant, None)

    def give(self, tenant: str, units: int) -> None:
        """Going below nothing is a broken contract: ours."""
        if units <= 0:
            return
        left = self.held.get(tenant, 0) - units
        if left < 0:
            raise RuntimeError("gave back more of a pool than was held")
        self.total -= units
        if left:
            self.held[tenant] = left
        else:
            del self.held[tenant]

    def _owed(self, tenant: str, would_hold: int, share: Share) -> int:
        """Room kept for those with a claim who are less far over their share than ``tenant`` would be."""
        mine = self._over(would_hold, share)
        return sum(
            claim.asks
            for other, claim in self._claims.items()
            if other != tenant and self._over(self.held.get(other, 0) + claim.asks, claim.share) < mine
        )

    def _over(self, units: int, share: Share) -> tuple[bool, float]:
        """How far over its share: first whether beyond the guarantee at all, then held for each unit of weight."""
        guaranteed = self.capacity * share.guaranteed // _THOUSAND
        return units > guaranteed, units / max(share.guaranteed, _UNSHARED)

    def _claim(self, tenant: str, units: int, share: Share, at_ns: int) -> None:
        known = self._claims.pop(tenant, None)
        asks = units if known is None else min(units, known.asks)
        if len(self._claims) >= _CLAIMS:
            del self._claims[next(iter(self._claims))]
        self._claims[tenant] = _Claim(asks, share, at_ns + CLAIM_NS)

    def _forget(self, at_ns: int) -> None:
        for tenant in [name for name, claim in self._claims.items() if claim.until_ns <= at_ns]:
            del self._claims[tenant]

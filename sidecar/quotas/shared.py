"""A tenant's requests, tokens and slots shared by many pods: each pod holds a lease and admits from it in memory.

What a lease holds was taken from the whole before it was handed out, so all pods together are never above the limit by
more than the leases they hold: for each pod what it may spend in two rounds, and one advance (below). Memory is not
shared, as GPUs are not.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from sidecar.core.model import Demand, Denial, Instant, Limits, PoolSize, Quantity, Reservation, Usage, replace
from sidecar.quotas.account import Account, Shortfall
from sidecar.quotas.local import Held, LocalQuotas
from sidecar.quotas.words import denial as told

__all__ = ["Lease", "SharedQuotas", "Want"]

_TENANTS: Final = 100_000  # whose leases are kept; the least recently used without one goes first
_IDLE_ROUNDS: Final = 20  # without use, after which a lease is returned
_SLOTS_SPARE: Final = 2  # slots above those in use
_KINDS: Final = (Quantity.REQUESTS, Quantity.TOKENS, Quantity.CONCURRENCY)
OF_TIME: Final = (Quantity.REQUESTS, Quantity.TOKENS)


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


@dataclass(frozen=True, slots=True)
class Want:
    """What one round asks Redis for. ``returns``: units of the lease that are given back; of slots ``units`` is all."""

    tenant: str
    kind: Quantity
    capacity: int
    per_second: float
    units: int
    owed: int
    returns: int
    shared: int = 0


@dataclass(slots=True)
class _Tenant:
    limits: Limits
    local: Limits  # what is left to this pod alone
    leases: dict[Quantity, Lease] = field(default_factory=dict)
    slots: int = 0
    in_use: int = 0


class SharedQuotas(LocalQuotas):
    """``ports.Quotas`` whose tenants' requests, tokens and concurrency come from leases. ``rounds`` a second."""

    def __init__(self, *, round_s: float) -> None:
        super().__init__()
        self._guard = threading.Lock()  # admissions take from leases, the round's thread puts into them
        self._shared: OrderedDict[str, _Tenant] = OrderedDict()
        self._round_s = round_s
        self.pods = 1  # alive, as Redis counted them last
        self.away = False  # Redis is; leases are then topped up by this pod's fair share, or not at all

    # --- ports.Quotas ----------------------------------------------------------------------------------------------

    def reserve(
        self, tenant: str, model: str, limits: Limits, demand: Demand, at: Instant, *, enforce: bool, key: str = "",
        model_limits: Limits | None = None, pool: PoolSize | None = None, key_limits: Limits | None = None,
    ) -> Reservation | Denial:  # fmt: skip
        """As ``LocalQuotas``: all or none, the leases first."""
        with self._guard:
            state = self._of(tenant, limits)
            short = self._short(state, demand)
            refused = self._refusal(tenant, state, short) if short else None
            shadowed = refused is not None and short[0].quantity in limits.shadow
            if refused is not None and enforce and not shadowed:
                return refused
            found = super().reserve(
                tenant,
                model,
                state.local,
                demand,
                at,
                enforce=enforce,
                key=key,
                model_limits=model_limits,
                pool=pool,
                key_limits=key_limits,
            )
            if isinstance(found, Denial):
                return found
            lacking = {each.quantity for each in short}
            units = {Quantity.REQUESTS: 1, Quantity.TOKENS: demand.tokens}
            for kind, lease in state.leases.items():
                if kind not in lacking and not (refused is not None and not shadowed):
                    lease.take(units[kind])
            state.in_use += 1
            if refused is not None and isinstance(found, Held) and found.over is None:
                found = replace(found, over=refused)
            return found

    def settle(self, reservation: Reservation, usage: Usage, at: Instant, *, running: bool = False) -> int:
        """Tokens that were reserved and not used go back into the lease; more than was reserved is owed."""
        with self._guard:
            state = self._shared.get(reservation.tenant)
            lease = None if state is None else state.leases.get(Quantity.TOKENS)
            if lease is not None and reservation.over is None:
                unused = reservation.demand.tokens - usage.input_tokens - usage.output_tokens
                lease.left += max(0, unused)
                lease.owed += max(0, -unused)
            return super().settle(reservation, usage, at, running=running)

    def release(self, reservation: Reservation, at: Instant) -> None:
        # Called by ``settle`` too, which holds the guard: a plain subtraction needs it no second time.
        state = self._shared.get(reservation.tenant)
        if state is not None:
            state.in_use = max(0, state.in_use - 1)
        super().release(reservation, at)

    # --- leases ------------------------------------------------------------------------------------------------------

    def _of(self, tenant: str, limits: Limits) -> _Tenant:
        state = self._shared.get(tenant)
        if state is None:
            if len(self._shared) >= _TENANTS:
                self._shared.popitem(last=False)
            state = self._shared[tenant] = _Tenant(limits, limits)
            self._configure(state, limits)
        elif state.limits is not limits:
            self._configure(state, limits)
        self._shared.move_to_end(tenant)
        return state

    @staticmethod
    def _configure(state: _Tenant, limits: Limits) -> None:
        state.limits = limits
        state.local = replace(limits, requests=None, tokens_per_minute=None, concurrency=None)
        kept, state.leases = state.leases, {}
        if limits.requests is not None:
            lease = kept.get(Quantity.REQUESTS) or Lease()
            lease.capacity, lease.per_second = limits.requests.burst, limits.requests.rate
            state.leases[Quantity.REQUESTS] = lease
        if limits.tokens_per_minute is not None:
            lease = kept.get(Quantity.TOKENS) or Lease()
            lease.capacity, lease.per_second = limits.tokens_per_minute, limits.tokens_per_minute / 60
            state.leases[Quantity.TOKENS] = lease

    def _advance(self, kind: Quantity, lease: Lease, units: int) -> int:
        """What may be spent before the first lease is there: a round's share, or one call; nothing while Redis is away.

        Otherwise each tenant's first call at each pod would be refused.
        """
        if self.away or lease.dry:
            return 0
        share = int(lease.per_second * self._round_s / self.pods)
        return max(1, share) if kind is Quantity.REQUESTS else max(share, units if lease.owed == 0 else 0)

    def _short(self, state: _Tenant, demand: Demand) -> list[Shortfall]:
        found = []
        limits = state.limits
        for kind, lease in state.leases.items():
            units = 1 if kind is Quantity.REQUESTS else demand.tokens
            if units > lease.capacity:
                found.append(_shortfall(kind, limits, units, None))
            elif not lease.fits(units, self._advance(kind, lease, units)):
                lease.missed += units
                found.append(_shortfall(kind, limits, units, max(self._round_s, lease.wait_s)))
        most = limits.concurrency
        if most is not None and state.in_use >= max(state.slots, min(1, most)):
            found.append(Shortfall(Quantity.CONCURRENCY, f"{most} at once", "", max(self._round_s, 0.1), (most, 0)))
        return found

    def _refusal(self, tenant: str, state: _Tenant, short: list[Shortfall]) -> Denial:
        account = Account(f"tenant:{tenant}", state.limits)
        never = next((each for each in short if each.wait is None), None)
        first = never or short[0]
        return told(account, first, None if never else max(each.wait or 0.0 for each in short))

    # --- a round -----------------------------------------------------------------------------------------------------

    def wants(self) -> list[Want]:
        """What this round asks for: enough that the next one finds as much as the last used, twice over."""
        with self._guard:
            found = []
            for tenant, state in self._shared.items():
                for kind, lease in state.leases.items():
                    want = self._want(tenant, kind, lease)
                    if want is not None:
                        found.append(want)
                most = state.limits.concurrency
                if most is not None and (state.in_use or state.slots):
                    units = min(most, state.in_use + _SLOTS_SPARE) if state.in_use else 0
                    found.append(Want(tenant, Quantity.CONCURRENCY, most, 0.0, units, 0, 0))
            return found

    @staticmethod
    def _want(tenant: str, kind: Quantity, lease: Lease) -> Want | None:
        lease.usual += (lease.used - lease.usual) / 4
        lease.idle = 0 if lease.used or lease.missed else lease.idle + 1
        target = ceil(2 * max(lease.usual, lease.used)) + lease.missed
        units, returns = max(0, min(lease.capacity, target) - lease.left), 0
        if lease.idle >= _IDLE_ROUNDS:
            units, returns, lease.usual = 0, lease.left, 0.0
            lease.left = 0
        elif lease.left > 4 * target + 4:
            units, returns = 0, lease.left - target
            lease.left = target
        lease.used = lease.missed = 0
        if not units:
            lease.dry = False
        if not (units or returns or lease.owed or lease.shared):
            return None
        owed, shared, lease.owed, lease.shared = lease.owed, lease.shared, 0, 0
        return Want(tenant, kind, lease.capacity, lease.per_second, units, owed, returns, shared)

    def granted(self, want: Want, units: int, wait_s: float) -> None:
        with self._guard:
            state = self._shared.get(want.tenant)
            if state is None:
                return
            if want.kind is Quantity.CONCURRENCY:
                state.slots = units
                return
            lease = state.leases.get(want.kind)
            if lease is not None:
                lease.left += units
                lease.dry = units < want.units
                lease.wait_s = wait_s

    def unanswered(self, wants: list[Want]) -> None:
        """Redis did not say: what was asked for may have been taken there, so it counts as spent; debts are kept."""
        with self._guard:
            for want in wants:
                state = self._shared.get(want.tenant)
                lease = None if state is None else state.leases.get(want.kind)
                if lease is not None:
                    lease.owed += want.owed
                    lease.shared += want.shared
                    lease.left += want.returns

    def fair_share(self, seconds: float) -> None:
        """While Redis is away: what this pod may go on with, its part of the rate; told to Redis later as owed."""
        with self._guard:
            for state in self._shared.values():
                for lease in state.leases.values():
                    lease.accrued += lease.per_second / self.pods * seconds
                    whole = int(lease.accrued)
                    lease.accrued -= whole
                    most = max(1, lease.capacity // self.pods)
                    added = max(0, min(whole, most - lease.left))
                    lease.left += added
                    lease.shared += added
                most_slots = state.limits.concurrency
                if most_slots is not None:
                    state.slots = min(max(state.slots, 1), max(1, most_slots // self.pods))


def _shortfall(kind: Quantity, limits: Limits, units: int, wait: float | None) -> Shortfall:
    if kind is Quantity.REQUESTS:
        rate = limits.requests
        assert rate is not None
        window = max(1, round(rate.burst / rate.rate)) if rate.rate > 0 else 1
        return Shortfall(kind, f"{rate.rate:g}/s, burst {rate.burst}", "", wait, (rate.burst, window))
    most = limits.tokens_per_minute
    assert most is not None
    return Shortfall(kind, f"{most} per minute", f"{units} tokens", wait, (most, 60))

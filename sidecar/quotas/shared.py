"""Requests, tokens and slots shared by many pods, of tenants, their models and keys: leases, spent in memory.

What a lease holds was taken from the whole before it was handed out, so all pods together are never above the limit by
more than the leases they hold: for each pod what it may spend in two rounds, and one advance (``advance``). A pod that
Redis hears no more of adds its part until that is noticed (``LEASE_NS``); from then on the others leave it that part,
until it must have stopped. Memory is not shared, as GPUs are not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import ceil
from typing import Final

from sidecar.core.model import Allowance, Demand, Denial, Instant, Limits, PoolSize, Quantity, Reservation, Usage
from sidecar.core.reasons import Reason
from sidecar.quotas.account import Account
from sidecar.quotas.agenda import Agenda
from sidecar.quotas.lease import Lease, LeasedBudget, LeasedRate
from sidecar.quotas.local import TENANT, Held, LocalQuotas, of_key, of_model
from sidecar.quotas.wants import IDLE_ROUNDS, Leases, Want, all_of, next_look, top_up, want_of

__all__ = ["LEASE_NS", "Lease", "SharedQuotas", "Want"]

_SLOTS_SPARE: Final = 2  # slots above those in use, where there are enough for every pod
_TURN: Final = 256  # tenants looked at before admissions have their turn
LEASE_NS: Final = 5_000_000_000  # how long Redis keeps a pod's slots for it; without an answer they are others' then
_COUNTS_AS_MISSED: Final = {
    Reason.RATE_REQUESTS: Quantity.REQUESTS,
    Reason.RATE_TOKENS: Quantity.TOKENS,
    Reason.CONCURRENCY: Quantity.CONCURRENCY,
}


class SharedQuotas(LocalQuotas):
    """``ports.Quotas`` whose requests, tokens and concurrency come from leases, whosever they are.

    ``fair``: once they are spent while Redis is away it goes on with this pod's part of each limit. ``pods``: how many
    share, until Redis has said; None: a pod that Redis never answered has no part, for nobody knows how large it is.
    """

    def __init__(self, *, round_s: float, fair: bool = True, pods: int | None = None) -> None:
        super().__init__()
        self._guard = threading.RLock()  # admissions take from leases, the round's thread puts into them
        self._leases: dict[str, Leases] = {}  # of those that hold any or ask for some, by whom they are for
        self._agenda = Agenda()  # a round looks at few of them: at 100,000 all of them took it 140 ms
        self._sharing: dict[str, None] = {}  # of those that go on by fair share, who has not all of its part
        self.round_s = round_s
        self._fair = fair
        self.pods = pods or 1  # that share, as Redis counted them last
        self.lost = 0  # of them, not heard of: what they may go on with is held back
        self._knows = pods is not None  # how many there are
        self.goes_on = fair  # with its part of each limit, while Redis is away
        self.growing = False  # a call that runs asks for more; under the guard
        self.away = False  # Redis is; leases are then topped up by this pod's fair share, or not at all
        # It answers again, but others may not have asked yet: who came first would take what they still go on with.
        self.returning = False
        self._answered_ns: int | None = None  # when it answered last

    @property
    def has_part(self) -> bool:
        """Whether it may go on, without Redis, with its part of each limit."""
        return self.goes_on and self._knows

    # --- ports.Quotas ----------------------------------------------------------------------------------------------

    def reserve(
        self, tenant: str, model: str, limits: Limits, demand: Demand, at: Instant, *, enforce: bool, key: str = "",
        model_limits: Limits | None = None, pool: PoolSize | None = None, key_limits: Limits | None = None,
    ) -> Reservation | Denial:  # fmt: skip
        """As ``LocalQuotas``: all or none, the tenant's limits from its leases."""
        with self._guard:
            now, keys = at.mono_ns, key_limits or limits.per_key
            self._slotted(tenant, self._tenants.get(tenant), limits, now)
            if model_limits is not None:
                self._slotted(of_model(tenant, model), self._models.get((tenant, model)), model_limits, now)
            if keys is not None and key:
                self._slotted(of_key(tenant, key), self._keys.get((tenant, key)), keys, now)
            found = super().reserve(
                tenant,
                model,
                limits,
                demand,
                at,
                enforce=enforce,
                key=key,
                model_limits=model_limits,
                pool=pool,
                key_limits=key_limits,
            )
            short = found if isinstance(found, Denial) else found.over
            if short is not None:
                self._missed(dict(short.metadata).get("quota_subject", "").removeprefix(TENANT), short, demand)
            return found

    def grow(self, reservation: Reservation, tokens: int, at: Instant, *, exact: bool, least: int = 0) -> Denial | None:
        with self._guard:
            self._touched(reservation)
            self.growing = True
            try:
                return super().grow(reservation, tokens, at, exact=exact, least=least)
            finally:
                self.growing = False

    def left_of(self, tenant: str, limits: Limits, at: Instant) -> tuple[Allowance, ...]:
        with self._guard:
            return super().left_of(tenant, limits, at)

    def settle(self, reservation: Reservation, usage: Usage, at: Instant, *, running: bool = False) -> int:
        with self._guard:
            self._touched(reservation)
            return super().settle(reservation, usage, at, running=running)

    def release(self, reservation: Reservation, at: Instant) -> None:
        with self._guard:
            self._touched(reservation)
            super().release(reservation, at)

    def _new_account(self, whom: str) -> Account:
        rate, budget = LeasedRate(self), LeasedBudget(self)
        account = Account(f"{TENANT}{whom}", rate=rate, budget=budget)
        known, new = self._leases.get(whom), Leases(account, rate.lease, budget.lease)
        if known is not None:  # its account was forgotten because nothing ran; what Redis told of its slots still holds
            new.slots, new.scarce, new.answered_ns = known.slots, known.scarce, known.answered_ns
            account.slots = known.slots if known.slots or known.scarce else None
        self._leases[whom] = new
        self._touch(whom)
        return account

    def _touched(self, reservation: Reservation) -> None:
        assert isinstance(reservation, Held), "a reservation of other quotas"
        for each in reservation.taken:
            self._touch(each.account.subject.removeprefix(TENANT))

    def _touch(self, whom: str) -> None:
        """Something happened to its leases: the next round looks at them."""
        leases = self._leases.get(whom)
        if leases is None:
            return
        if self.away or self.returning:
            self._sharing[whom] = None
        if not leases.touched:
            leases.touched = True
            self._agenda.soon(whom)

    def _slotted(self, whom: str, account: Account | None, limits: Limits, now_ns: int) -> None:
        """How many of its calls may run here now; its leases are looked after from now on."""
        if account is None:
            return  # its first call: one slot in advance, as for the other quantities
        leases = self._leases.get(whom)
        if leases is None:
            assert isinstance(account.rate, LeasedRate)
            assert isinstance(account.budget, LeasedBudget)
            leases = self._leases[whom] = Leases(account, account.rate.lease, account.budget.lease)
        self._touch(whom)
        most = limits.concurrency
        if most is not None:
            leases.asked = True
            account.slots = self._leased_slots(leases, most, now_ns)

    def _leased_slots(self, leases: Leases, most: int, now_ns: int) -> int:
        answered_ns = leases.answered_ns
        if self.away if answered_ns is None else now_ns - answered_ns > LEASE_NS:  # it has none, or it has run out
            return min(most, max(1, most // self.pods)) if self.has_part else 0
        return min(most, leases.slots if leases.slots or leases.scarce else 1)

    def _missed(self, whom: str, short: Denial, demand: Demand) -> None:
        leases = self._leases.get(whom)
        if leases is None:
            return
        match _COUNTS_AS_MISSED.get(short.reason):
            case Quantity.REQUESTS:
                leases.requests.missed += 1
            case Quantity.TOKENS if demand.tokens <= leases.tokens.capacity:
                leases.tokens.missed += demand.tokens
            case Quantity.CONCURRENCY:
                leases.turned_away += 1

    def advance(self, lease: Lease, most: int, at_ns: int) -> int:
        """What may be spent before a lease is there: otherwise each tenant's first call at each pod would be refused.

        Nothing where the whole was short, nor while Redis is away, but once; never more than the whole can have.
        """
        if lease.dry or (self.away and not (self.goes_on and lease.owed == lease.shared == 0)):
            return 0
        if self.returning and lease.full_ns is not None:
            return 0
        return min(most, max(0, int(lease.whole(at_ns))))

    def room(self, lease: Lease, at_ns: int) -> int:
        """What a lease may hold: with the whole no more than a full bucket; of a fair share, its own part."""
        if self.away or self.returning:
            return max(1, lease.capacity // self.pods)
        return lease.capacity - max(0, int(lease.whole(at_ns)))

    def wait_ns(self, lease: Lease, units: int, at_ns: int) -> int:
        """Until as many units may be there: a round at least."""
        return max(ceil(self.round_s * 1e9), lease.wait_ns(units, at_ns))

    # --- a round -----------------------------------------------------------------------------------------------------

    def wants(self) -> list[Want]:
        """What this round asks for: enough that the next one finds as much as the last used, twice over."""
        found: list[Want] = []
        with self._guard:
            soon, later = self._agenda.begin()
        for some in _turns((*soon, *later)):
            with self._guard:
                for tenant in some:
                    leases = self._leases.get(tenant)
                    if leases is None:
                        continue
                    if leases.booked == self._agenda.round:
                        leases.booked = 0
                    if leases.looked != self._agenda.round:
                        found += self._tenants_wants(tenant, leases)
        return found

    def _tenants_wants(self, tenant: str, leases: Leases) -> list[Want]:
        rounds = self._agenda.round - leases.looked if leases.looked else 1
        leases.looked, leases.touched = self._agenda.round, False
        found = []
        for kind, lease in leases.of_time():
            want = want_of(tenant, kind, lease, rounds, asks=not self.returning)
            if want is not None:
                found.append(want)
        want = self._slots_wanted(tenant, leases, rounds)
        if want is not None:
            found.append(want)
        quiet = all(lease.unused and lease.idle >= IDLE_ROUNDS for _, lease in leases.of_time())
        if not found and quiet and not leases.account.ledger.calls:
            del self._leases[tenant]
        else:
            rounds = next_look(leases)
            if not leases.booked or self._agenda.round + rounds < leases.booked:
                leases.booked = self._agenda.round + rounds
                self._agenda.later(tenant, rounds)
        return found

    def _slots_wanted(self, tenant: str, leases: Leases, rounds: int) -> Want | None:
        most, held = leases.account.limits.concurrency, leases.account.ledger.calls
        if most is None:
            return None
        leases.unasked = 0 if held or leases.asked else leases.unasked + rounds
        away, leases.turned_away, leases.asked = leases.turned_away, 0, False
        spare = min(_SLOTS_SPARE, most // (2 * self.pods)) if held else 0
        units = min(most, max(1, held + spare + away))
        if leases.unasked >= IDLE_ROUNDS:
            units, leases.scarce = 0, False
            if not leases.slots:
                return None
        return Want(tenant, Quantity.CONCURRENCY, most, 0.0, units, held, 0, max(held, leases.account.slots or 0))

    def granted(self, want: Want, units: int, full_s: float) -> None:
        """``full_s``: until the whole is full again, without what was just granted. After ``answered``."""
        with self._guard:
            leases = self._leases.get(want.whom)
            if leases is None:
                return
            if want.kind is Quantity.CONCURRENCY:
                leases.slots, leases.scarce, leases.answered_ns = units, units < want.units, self._answered_ns
                if leases.scarce:
                    self._touch(want.whom)
                return
            lease = leases.requests if want.kind is Quantity.REQUESTS else leases.tokens
            lease.left += units
            lease.dry = units < want.units
            if lease.dry:
                self._touch(want.whom)
            lease.told = 0
            lease.full_ns = (self._answered_ns or 0) + ceil(full_s * 1e9)
            lease.filling = (self.pods - self.lost) / self.pods

    def spent(self, want: Want) -> None:
        """The key of this one holds no lease: whatever there was of it counts as spent, until it does."""
        self.unanswered([want])
        with self._guard:
            self._touch(want.whom)
            leases = self._leases.get(want.whom)
            if leases is None:
                return
            if want.kind is Quantity.CONCURRENCY:
                leases.slots, leases.scarce, leases.answered_ns = 0, True, self._answered_ns
            else:
                (leases.requests if want.kind is Quantity.REQUESTS else leases.tokens).dry = True

    def answered(self, pods: int, lost: int, now_ns: int) -> None:
        """Redis did; ``pods`` share, ``lost`` of them are not heard of. ``now_ns``: when it was asked (clock of calls).

        One that was just born has counted only those that have asked it: until all have, what was known before holds.
        """
        self._answered_ns, self.lost = now_ns, lost
        if self.returning:
            self.pods = max(self.pods, pods)
        else:
            self.pods, self._knows = max(1, pods), True

    def unanswered(self, wants: list[Want]) -> None:
        """Redis did not say: what was asked for and given back may have been taken there, so it counts as spent."""
        with self._guard:
            for want in wants:
                self._touch(want.whom)
                leases = self._leases.get(want.whom)
                if leases is not None and want.kind is not Quantity.CONCURRENCY:
                    lease = leases.requests if want.kind is Quantity.REQUESTS else leases.tokens
                    lease.owed += want.owed
                    lease.shared += want.shared
                    lease.told = 0
                    if lease.full_ns is not None and lease.per_second > 0:
                        lease.full_ns += ceil(want.units / (lease.per_second * lease.filling) * 1e9)

    def gone(self) -> None:
        """Redis is away from now on."""
        with self._guard:
            self.away, self.returning = True, False
            tenants, self._sharing = tuple(self._leases), {}
        for some in _turns(tenants):
            with self._guard:
                self._sharing.update(dict.fromkeys(some))

    def back(self) -> None:
        """It answers again; what is held is told it at once."""
        with self._guard:
            self.away, self.returning, self.goes_on = False, self._fair, self._fair
            tenants = tuple(self._leases)
        for some in _turns(tenants):
            with self._guard:
                self._agenda.soon(*some)

    def farewell(self) -> list[Want]:
        """All that is held, given back: no call comes any more."""
        found = []
        with self._guard:
            for whom, leases in self._leases.items():
                found += [gone for kind, lease in leases.of_time() if (gone := all_of(whom, kind, lease)) is not None]
                most = leases.account.limits.concurrency
                if leases.slots and most is not None:
                    leases.slots = 0
                    found.append(Want(whom, Quantity.CONCURRENCY, most, 0.0, 0, 0, 0))
        return found

    def fair_share(self, seconds: float) -> None:
        """While Redis is away: what this pod may go on with, its part of the rate; told to Redis later as shared.

        Once it is back, until every pod has asked: the same, but owed, for what is spent now its bucket knows of.
        """
        if not self._knows:
            return
        with self._guard:
            tenants = tuple(self._sharing)
        for some in _turns(tenants):
            with self._guard:
                for tenant in some:
                    if not self._topped_up(tenant, seconds):
                        self._sharing.pop(tenant, None)

    def _topped_up(self, tenant: str, seconds: float) -> bool:
        """Whether any of its leases may have more yet."""
        leases, more = self._leases.get(tenant), False
        for _, lease in () if leases is None else leases.of_time():
            most = max(1, lease.capacity // self.pods)
            top_up(lease, lease.per_second / self.pods * seconds, most, owed=self.returning)
            more = more or lease.left < most
        self._touch(tenant)
        return more


def _turns(tenants: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A few at a time: admissions wait for whoever holds the guard."""
    return (tenants[start : start + _TURN] for start in range(0, len(tenants), _TURN))

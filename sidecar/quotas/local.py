"""The quotas of one pod (``ports.Quotas``): all reserved together before a call, settled once after it.

A call has up to three accounts (its tenant's, its tenant's and model's, its key's) and its model's pools. All of them
are asked before any is taken from, so a refusal has taken nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final, TypeVar

import msgspec

from sidecar.core.model import (
    Allowance,
    Demand,
    Denial,
    Instant,
    Limits,
    PoolSize,
    Quantity,
    Reservation,
    Usage,
)
from sidecar.quotas.account import Account, Ask
from sidecar.quotas.engines import Engines, Pools, full_pool
from sidecar.quotas.expected import Usual
from sidecar.quotas.words import REASON_OF, denial, refusal

__all__ = ["REASON_OF", "Held", "LocalQuotas", "limits_for"]

# States examined whenever one more account is first seen. Idle ones are forgotten (they equal new ones), so what is
# kept is what is busy; two at a time shrinks faster than one at a time grows.
_SWEEP: Final = 2
_USUAL: Final = 8192  # tenants' models whose usual use is known, the least recently used forgotten
_RATES: Final = frozenset({Quantity.REQUESTS, Quantity.TOKENS, Quantity.COMPUTE})
_NONE: Final[frozenset[Quantity]] = frozenset()
_STEP: Final = 32  # tokens a stream that outgrows what was expected takes at a time, where there are as many
_NOTHING: Final = Ask()

K = TypeVar("K")
TENANT: Final = "tenant:"  # how an account's subject begins


def of_model(tenant: str, model: str) -> str:
    """Whose the further limits of a tenant's model are."""
    return f"{tenant} model:{model}"


def of_key(tenant: str, key: str) -> str:
    """Whose a key's own limits are."""
    return f"{tenant} key:{key}"


class _Meter(msgspec.Struct, kw_only=True):
    """What a call holds by now; the rest of a reservation never changes."""

    covered: int  # tokens taken from the budget
    kv_now: int = 0  # bytes that its tokens so far fill
    kv_more: int = 0  # bytes that it holds beyond what was reserved
    kv_byte_ms: int = 0
    seen_ns: int = 0
    settled: bool = False
    released: bool = False


class Taken(msgspec.Struct, frozen=True):
    """What a call took from one account; ``tokens``, ``compute``: from that budget, which its settlement corrects."""

    account: Account
    tokens: bool
    compute: bool


class Held(Reservation, frozen=True):
    """A reservation made here."""

    taken: tuple[Taken, ...] = ()
    ask: Ask = _NOTHING
    usual: Usual | None = None
    pools: Pools = ()
    meter: _Meter = msgspec.field(default_factory=lambda: _Meter(covered=0))


def limits_for(limits: Limits, model: str) -> Limits | None:
    """The tenant's further limits for ``model``: the first pattern that covers it."""
    return next((each for pattern, each in limits.models if fnmatchcase(model, pattern)), None)


class LocalQuotas:
    """Implements ``ports.Quotas`` for this pod alone. Not locked: the governor calls it under its own lock."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, Account] = OrderedDict()
        # Apart: making one forgets idle ones, among which another of the same call, not booked yet, would be.
        self._models: OrderedDict[tuple[str, str], Account] = OrderedDict()
        self._keys: OrderedDict[tuple[str, str], Account] = OrderedDict()
        self._usual: OrderedDict[tuple[str, str], Usual] = OrderedDict()
        self.engines = Engines()

    def __len__(self) -> int:
        """Tenants whose state is kept."""
        return len(self._tenants)

    def in_flight(self, tenant: str) -> int:
        """Calls of this tenant that hold something."""
        state = self._tenants.get(tenant)
        return 0 if state is None else state.ledger.calls

    def held(self, tenant: str) -> tuple[int, int]:
        """KV-cache bytes and tensor bytes that this tenant's calls hold."""
        state = self._tenants.get(tenant)
        return (0, 0) if state is None else (state.ledger.kv_bytes, state.ledger.tensor_bytes)

    def tenants(self) -> tuple[str, ...]:
        """The tenants whose state is kept, for a metrics snapshot from another thread."""
        return tuple(self._tenants)

    # --- reserve ---------------------------------------------------------------------------------------------------

    def reserve(
        self, tenant: str, model: str, limits: Limits, demand: Demand, at: Instant, *, enforce: bool, key: str = "",
        model_limits: Limits | None = None, pool: PoolSize | None = None, key_limits: Limits | None = None,
    ) -> Reservation | Denial:  # fmt: skip
        """All or none, tried in the order of ``Quantity``.

        With ``enforce=False`` there is always a reservation. A call that would have been refused holds memory and a
        slot (it does run), but takes nothing from the rates (refused, it would not have): so a day of observing counts
        the refusals that a day of enforcing would have brought. A limit in shadow is the same for itself alone.
        """
        now = at.mono_ns
        accounts = self._accounts(tenant, model, key, limits, model_limits, key_limits or limits.per_key, now)
        timed = demand.timed and any(account.limits.compute_per_minute is not None for account in accounts)
        usual = self._usual_of(tenant, model) if timed or limits.expected else None
        ask = _ask(demand, limits, usual, timed=timed)
        spared = _NONE
        refused, over = _short(accounts, ask, now)
        if refused is not None:
            if enforce:
                return refused
            over, spared = refused, _RATES
        pools = () if pool is None else self.engines.wanted(model, pool, ask)
        full = full_pool(tenant, limits, accounts[0], pools, now, enforce=enforce) if pools else None
        if full is not None:
            if full[0] not in limits.shadow:
                if enforce:
                    return full[1]
                spared = _RATES
            over = over or full[1]
        taken = _book(accounts, ask, now, spared, short=over is not None)
        for each, units in pools:
            each.take(tenant, units)
        filled = min(demand.kv_bytes, _filled(demand, demand.prompt_tokens)) if demand.kv_bytes else 0
        meter = _Meter(covered=ask.tokens, kv_now=filled, seen_ns=now)
        return Held(tenant, model, demand, at, over, taken, ask, usual, pools, meter)

    def _accounts(
        self, tenant: str, model: str, key: str, limits: Limits, model_limits: Limits | None,
        key_limits: Limits | None, now: int,
    ) -> tuple[Account, ...]:  # fmt: skip
        own = self._tenants.get(tenant)
        if own is None or own.limits is not limits:
            own = self._account(self._tenants, tenant, self._new_account, tenant, limits, now)
        if model_limits is None and key_limits is None:
            return (own,)
        found = [own]
        if model_limits is not None:
            whom = of_model(tenant, model)
            found.append(self._account(self._models, (tenant, model), self._new_account, whom, model_limits, now))
        if key_limits is not None and key:
            whom = of_key(tenant, key)
            found.append(self._account(self._keys, (tenant, key), self._new_account, whom, key_limits, now))
        return tuple(found)

    def _new_account(self, whom: str) -> Account:
        """Of a tenant, by its name, or of its model or key (``of_model``, ``of_key``)."""
        return Account(f"{TENANT}{whom}")

    @staticmethod
    def _account(
        states: OrderedDict[K, Account], name: K, make: Callable[[str], Account], whom: str, limits: Limits, now: int
    ) -> Account:
        state = states.get(name)
        if state is None:
            _forget(states, now)
            state = states[name] = make(whom)
        if state.limits is not limits:
            state.configure(limits, now)
        return state

    def _usual_of(self, tenant: str, model: str) -> Usual:
        found = self._usual.pop((tenant, model), None)
        if found is None:
            found = Usual()
            if len(self._usual) >= _USUAL:
                self._usual.popitem(last=False)
        self._usual[tenant, model] = found
        return found

    # --- while it runs ---------------------------------------------------------------------------------------------

    def grow(self, reservation: Reservation, tokens: int, at: Instant, *, exact: bool, least: int = 0) -> Denial | None:
        """A stream has used ``tokens`` by now (prompt and output). A Denial: the budget has none left for it.

        Only a count that is the backend's own, or a budget that reserves what is expected, can end a call so; of an
        estimate over a full reservation, only what was used at the very least (``least``). The rest of it is left to
        the settlement where the budget has no room.
        """
        assert isinstance(reservation, Held), "a reservation of other quotas"
        meter, demand = reservation.meter, reservation.demand
        if demand.kv_bytes:
            filled = _filled(demand, tokens)
            if filled > demand.kv_bytes + meter.kv_more:
                filled = self._outgrown(reservation, filled) if exact else demand.kv_bytes + meter.kv_more
            _hold(meter, filled, at.mono_ns)
        if tokens <= meter.covered:
            return None
        return self._more(reservation, tokens - meter.covered, at.mono_ns, exact=exact or least > meter.covered)

    @staticmethod
    def _outgrown(reservation: Held, filled: int) -> int:
        """It holds more than was reserved: its prompt was longer than was estimated, or its model heeds no max_tokens.

        That much is then in use, whatever the limits say, so it is booked; whoever comes next is refused for it.
        """
        meter, demand = reservation.meter, reservation.demand
        if demand.kv_block is None or demand.kv_block.window is not None:  # what leaves a window is given back
            return demand.kv_bytes
        missing = filled - demand.kv_bytes - meter.kv_more
        for each in reservation.taken:
            each.account.ledger.kv_bytes += missing
        for pool, _ in reservation.pools:
            if pool.kind is Quantity.KV_BYTES:
                pool.take(reservation.tenant, missing)
        meter.kv_more += missing
        return filled

    @staticmethod
    def _more(reservation: Held, missing: int, now: int, *, exact: bool) -> Denial | None:
        accounts = [each.account for each in reservation.taken if each.tokens]
        enforced = [account for account in accounts if Quantity.TOKENS not in account.limits.shadow]
        more = missing + _STEP
        if any(account.budget.wait_ns(more, now) != 0 for account in enforced):
            more = missing
            tight = [account for account in enforced if account.budget.wait_ns(more, now) != 0]
            if tight and (exact or tight[0].limits.expected):
                short = next(
                    each for each in tight[0].shortfalls(Ask(tokens=more), now) if each.quantity is Quantity.TOKENS
                )
                return denial(tight[0], short, short.wait)
            if tight:
                return None
        for account in accounts:
            account.budget.charge(more, now)
        reservation.meter.covered += more
        return None

    def left(self, reservation: Reservation, at: Instant) -> tuple[Allowance, ...]:
        """Of the tenant's own account; what limits only a model or a key of it isn't told."""
        assert isinstance(reservation, Held), "a reservation of other quotas"
        return reservation.taken[0].account.allowances(at.mono_ns)

    def left_of(self, tenant: str, limits: Limits, at: Instant) -> tuple[Allowance, ...]:
        """As ``left``, before any call; nothing is kept of a tenant where no limit of time asks for it."""
        if limits.requests is None and limits.tokens_per_minute is None:
            return ()
        (own,) = self._accounts(tenant, "", "", limits, None, None, at.mono_ns)
        return own.allowances(at.mono_ns)

    # --- the end ---------------------------------------------------------------------------------------------------

    def settle(self, reservation: Reservation, usage: Usage, at: Instant, *, running: bool = False) -> int:
        """Correct the budgets by what was really used, either way, and give the rest back. Once per reservation.

        ``running``: Triton has not ended it yet; slot and memory are then kept until ``release``. Returns KV-cache
        byte-milliseconds.
        """
        assert isinstance(reservation, Held), "a reservation of other quotas"
        meter = reservation.meter
        if meter.settled:
            raise RuntimeError("a reservation settled twice")
        meter.settled = True
        used = usage.input_tokens + usage.output_tokens
        took_ms = usage.duration_ns // 1_000_000
        for each in reservation.taken:
            if each.tokens:
                each.account.budget.charge(used - meter.covered, at.mono_ns)
            if each.compute:
                each.account.compute.charge(took_ms - reservation.ask.compute, at.mono_ns)
        if reservation.usual is not None and usage.responses:
            reservation.usual.add(took_ms if reservation.demand.timed else usage.output_tokens)
        if reservation.demand.kv_bytes:
            most = reservation.demand.kv_bytes + meter.kv_more
            _hold(meter, min(most, _filled(reservation.demand, used)), at.mono_ns)
        if not running:
            self.release(reservation, at)
        return meter.kv_byte_ms

    def release(self, reservation: Reservation, at: Instant) -> None:
        """Triton has ended it: give back its slot and its memory. Once per reservation."""
        assert isinstance(reservation, Held), "a reservation of other quotas"
        meter, ask = reservation.meter, reservation.ask
        if meter.released:
            raise RuntimeError("a reservation released twice")
        meter.released = True
        for each in reservation.taken:
            each.account.ledger.release(ask.kv + meter.kv_more, ask.tensor, at.mono_ns - reservation.at.mono_ns)
        for pool, units in reservation.pools:
            pool.give(reservation.tenant, units + (meter.kv_more if pool.kind is Quantity.KV_BYTES else 0))


def _forget(states: OrderedDict[K, Account], now: int) -> None:
    """Drop idle accounts, a few at a time from the oldest; a busy one goes to the end of the queue."""
    for _ in range(min(_SWEEP, len(states))):
        name, state = states.popitem(last=False)
        if not state.idle(now):
            states[name] = state


def _book(
    accounts: tuple[Account, ...], ask: Ask, now: int, spared: frozenset[Quantity], *, short: bool
) -> tuple[Taken, ...]:
    if not short and len(accounts) == 1:  # nearly always
        return (_take(accounts[0], ask, now, _NONE),)
    if not short:
        return tuple([_take(each, ask, now, spared) for each in accounts])
    return tuple(
        [_take(each, ask, now, spared.union(lack.quantity for lack in each.shortfalls(ask, now))) for each in accounts]
    )


def _take(account: Account, ask: Ask, now: int, spared: frozenset[Quantity]) -> Taken:
    account.take(ask, now, spared)
    limits = account.limits
    return Taken(
        account,
        limits.tokens_per_minute is not None and (not spared or Quantity.TOKENS not in spared),
        limits.compute_per_minute is not None and (not spared or Quantity.COMPUTE not in spared),
    )


def _short(accounts: tuple[Account, ...], ask: Ask, now: int) -> tuple[Denial | None, Denial | None]:
    """What refuses the call, and what would but for shadow."""
    for account in accounts:
        if not account.fits(ask, now):
            return refusal(accounts, ask, now)
    return None, None


def _ask(demand: Demand, limits: Limits, usual: Usual | None, *, timed: bool) -> Ask:
    """What is reserved: the worst case, or what is expected where the tenant's budget says so and it is known."""
    if usual is None:
        return Ask(demand.tokens, 0, demand.kv_bytes, demand.tensor_bytes)
    if timed:
        return Ask(demand.tokens, max(1, usual.p95 or 0), demand.kv_bytes, demand.tensor_bytes)
    tokens = demand.tokens
    if limits.expected and usual.p95 is not None:
        tokens = min(tokens, demand.prompt_tokens + usual.p95)
    return Ask(tokens, 0, demand.kv_bytes, demand.tensor_bytes)


def _filled(demand: Demand, tokens: int) -> int:
    """Bytes of KV cache that ``tokens`` fill, whole blocks."""
    if demand.kv_block is None:
        return demand.kv_bytes
    size, block = demand.kv_block.tokens_per_block, demand.kv_block.bytes_per_token
    return -(-tokens // size) * size * block


def _hold(meter: _Meter, kv_now: int, now: int) -> None:
    meter.kv_byte_ms += meter.kv_now * max(0, now - meter.seen_ns) // 1_000_000
    meter.kv_now, meter.seen_ns = kv_now, now

"""The quotas of one pod (``ports.Quotas``): all five reserved together before a call, settled once after it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.core.model import Demand, Denial, Instant, Limits, Quantity, Reservation, Usage
from sidecar.core.reasons import Reason
from sidecar.quotas.budget import Budget
from sidecar.quotas.gcra import Gcra
from sidecar.quotas.ledger import Ledger

# States examined whenever one more tenant is first seen. Idle ones are forgotten (they equal new ones), so what is kept
# is what is busy; two at a time shrinks faster than one at a time grows.
_SWEEP: Final = 2
_UNLIMITED: Final = Limits()

REASON_OF: Final[dict[Quantity, Reason]] = {
    Quantity.REQUESTS: Reason.RATE_REQUESTS,
    Quantity.TOKENS: Reason.RATE_TOKENS,
    Quantity.CONCURRENCY: Reason.CONCURRENCY,
    Quantity.KV_BYTES: Reason.MEMORY_KV,
    Quantity.TENSOR_BYTES: Reason.MEMORY_TENSOR,
}


class Held(Reservation, frozen=True):
    """A reservation made here; ``budgeted`` says whether its tokens were taken from the budget."""

    budgeted: bool = False


@dataclass(slots=True)
class _Tenant:
    limits: Limits = _UNLIMITED
    rate: Gcra = field(default_factory=Gcra)
    budget: Budget = field(default_factory=Budget)
    ledger: Ledger = field(default_factory=Ledger)

    def configure(self, limits: Limits, at_ns: int) -> None:
        """Keep every balance; a rate or budget that was not limited starts with nothing owed."""
        if limits.requests is not None:
            self.rate.configure(limits.requests, at_ns)
        if limits.tokens_per_minute is not None:
            self.budget.configure(limits.tokens_per_minute, at_ns)
        self.limits = limits

    def idle(self, at_ns: int) -> bool:
        return self.ledger.calls == 0 and self.rate.idle(at_ns) and self.budget.idle(at_ns)


class LocalQuotas:
    """Implements ``ports.Quotas`` for this pod alone. Not locked: the governor calls it under its own lock."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

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

    def reserve(
        self, tenant: str, model: str, limits: Limits, demand: Demand, at: Instant, *, enforce: bool
    ) -> Reservation | Denial:
        """All or none, tried in the order of ``Quantity``.

        With ``enforce=False`` there is always a reservation. A call that would have been refused holds memory and a
        slot (it does run), but takes nothing from the rates (refused, it would not have): so a day of observing counts
        the refusals that a day of enforcing would have brought.
        """
        state = self._state(tenant, limits, at.mono_ns)
        denial = _refusal(tenant, state, demand, at.mono_ns)
        if denial is not None and enforce:
            return denial
        budgeted = limits.tokens_per_minute is not None and denial is None
        if denial is None and limits.requests is not None:
            state.rate.take(at.mono_ns)
        if budgeted:
            state.budget.charge(demand.tokens, at.mono_ns)
        state.ledger.book(demand.kv_bytes, demand.tensor_bytes)
        return Held(tenant, model, demand, at, denial, budgeted)

    def settle(self, reservation: Reservation, usage: Usage, at: Instant) -> None:
        """Give back slot and memory; correct the budget by what was really used, either way. Once per reservation."""
        assert isinstance(reservation, Held), "a reservation of other quotas"
        state = self._tenants[reservation.tenant]  # kept, because it is not idle while it holds something
        demand = reservation.demand
        state.ledger.release(demand.kv_bytes, demand.tensor_bytes, at.mono_ns - reservation.at.mono_ns)
        if reservation.budgeted:
            used = usage.input_tokens + usage.output_tokens
            state.budget.charge(used - demand.tokens, at.mono_ns)

    def _state(self, tenant: str, limits: Limits, at_ns: int) -> _Tenant:
        state = self._tenants.get(tenant)
        if state is None:
            self._forget(at_ns)
            state = self._tenants[tenant] = _Tenant()
        if state.limits is not limits:
            state.configure(limits, at_ns)
        return state

    def _forget(self, at_ns: int) -> None:
        """Drop idle tenants, a few at a time from the oldest; a busy one goes to the end of the queue."""
        for _ in range(min(_SWEEP, len(self._tenants))):
            name, state = self._tenants.popitem(last=False)
            if not state.idle(at_ns):
                self._tenants[name] = state


@dataclass(frozen=True, slots=True)
class _Shortfall:
    """One quota that a call doesn't fit in; ``wait`` is the seconds until it may, None for never."""

    quantity: Quantity
    limit: str
    asks: str
    wait: float | None


def _refusal(tenant: str, state: _Tenant, demand: Demand, at_ns: int) -> Denial | None:
    """The first quota that is short, in the order of ``Quantity``, and when the whole call may fit.

    What can never fit goes first: told to wait for another, the caller would wait in vain.
    """
    if _fits(state, demand, at_ns):
        return None
    short = [*_rates(state, demand, at_ns), *_gauges(state, demand)]
    never = [each for each in short if each.wait is None]
    if never:
        return _denial(tenant, never[0], None)
    return _denial(tenant, short[0], max(each.wait for each in short if each.wait is not None))


def _fits(state: _Tenant, demand: Demand, at_ns: int) -> bool:
    """Whether there is no shortfall: asked for nearly every call, so without making anything (1.2 µs of 6 saved)."""
    limits, ledger = state.limits, state.ledger
    kv, tensor = demand.kv_bytes, demand.tensor_bytes
    return (
        (limits.requests is None or state.rate.wait_ns(at_ns) == 0)
        and (limits.tokens_per_minute is None or state.budget.wait_ns(demand.tokens, at_ns) == 0)
        and (limits.concurrency is None or ledger.calls < limits.concurrency)
        and (limits.kv_bytes is None or kv <= 0 or ledger.kv_bytes + kv <= limits.kv_bytes)
        and (limits.tensor_bytes is None or tensor <= 0 or ledger.tensor_bytes + tensor <= limits.tensor_bytes)
    )


def _rates(state: _Tenant, demand: Demand, at_ns: int) -> Iterator[_Shortfall]:
    limits = state.limits
    if limits.requests is not None and (wait := state.rate.wait_ns(at_ns)) != 0:
        limit = f"{limits.requests.rate:g}/s, burst {limits.requests.burst}"
        yield _Shortfall(Quantity.REQUESTS, limit, "", _seconds(wait))
    if limits.tokens_per_minute is not None and (wait := state.budget.wait_ns(demand.tokens, at_ns)) != 0:
        yield _Shortfall(
            Quantity.TOKENS, f"{limits.tokens_per_minute} per minute", f"{demand.tokens} tokens", _seconds(wait)
        )


def _gauges(state: _Tenant, demand: Demand) -> Iterator[_Shortfall]:
    """A call that asks for no memory is not refused for memory, even where a lowered limit finds it overdrawn."""
    limits, ledger = state.limits, state.ledger
    most = limits.concurrency
    if most is not None and ledger.calls >= most:
        wait = ledger.wait_s(ledger.calls + 1 - most, ledger.calls) if most > 0 else None
        yield _Shortfall(Quantity.CONCURRENCY, f"{most} at once", "", wait)
    for quantity, most, holds, asks in (
        (Quantity.KV_BYTES, limits.kv_bytes, ledger.kv_bytes, demand.kv_bytes),
        (Quantity.TENSOR_BYTES, limits.tensor_bytes, ledger.tensor_bytes, demand.tensor_bytes),
    ):
        if most is not None and asks > 0 and holds + asks > most:
            wait = ledger.wait_s(holds + asks - most, holds) if asks <= most else None
            yield _Shortfall(quantity, _size(most), _size(asks), wait)


# --- words --------------------------------------------------------------------------------------------------------

_NAMES: Final[dict[Quantity, str]] = {
    Quantity.REQUESTS: "request rate",
    Quantity.TOKENS: "token budget",
    Quantity.CONCURRENCY: "concurrency",
    Quantity.KV_BYTES: "KV-cache memory",
    Quantity.TENSOR_BYTES: "tensor memory",
}


def _denial(tenant: str, short: _Shortfall, retry_after: float | None) -> Denial:
    """``quota_subject`` and ``quota_description`` are QuotaFailure's fields (google/rpc/error_details.proto)."""
    quantity = short.quantity
    detail = f"{_NAMES[quantity]} {short.limit}"
    if short.asks:
        detail += f"; this call asks for {short.asks}"
    if short.wait is None:
        detail += ", which can never fit"
    metadata = (
        ("quota_subject", f"tenant:{tenant}"),
        ("quota_description", detail),
        ("quota", quantity.value),
        ("limit", short.limit),
    )
    return Denial(REASON_OF[quantity], detail, retry_after, rule=f"quota:{quantity.value}", metadata=metadata)


def _seconds(wait_ns: int | None) -> float | None:
    """Rounded up to a whole millisecond, the finest that is told: a retry then passes, a millisecond earlier not."""
    return None if wait_ns is None else -(-wait_ns // 1_000_000) / 1000


def _size(count: int) -> str:
    """Bytes as configuration writes them, in the largest unit that is not below 1, to two places."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{round(count / size, 2):g}{unit}"
    return f"{count}B"

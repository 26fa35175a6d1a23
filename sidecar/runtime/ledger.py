"""What this process' predecessor had given out: its calls booked again, so that a crash gives nobody a fresh start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from audit.recovery import PastCall
from sidecar.core.model import Contract, Demand, Instant, Limits, ModelProfile, Reservation, Usage
from sidecar.quotas.local import LocalQuotas

__all__ = ["Booked", "Terms", "rebuild"]


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which limits a tenant calls a model with a key, by the bundle in force."""

    limits: Limits
    model_limits: Limits | None
    key_limits: Limits | None
    profile: ModelProfile


@dataclass(frozen=True, slots=True)
class Booked:
    """``charged``: calls whose requests and tokens count again; ``held``: those that Triton may be working on."""

    charged: int
    held: int


def rebuild(
    past: Sequence[PastCall],
    terms: Callable[[str, str, str], Terms | None],
    quotas: LocalQuotas,
    hold: Callable[[str, Reservation, Instant, int], None],
    at: Instant,
    *,
    rates: bool,
) -> Booked:
    """Reserve and settle each call again, when it was. What a crash cut off holds what it held as after a cancel:
    ``hold`` (``Governor.hold``) is told of it.

    Its tokens count in full: nobody knows how many were generated. ``rates``: whether limits of time are this pod's
    own; where pods share them, Redis has them. ``terms``, by tenant, model and the API key's name: None where the
    bundle knows the tenant no more.
    """
    events: list[tuple[int, int, int]] = []
    for place, call in enumerate(past):
        if rates or call.ended_ns is None or call.holds_until_ns:
            events.append((call.decided_ns, 0, place))
            events.append((max(call.decided_ns, call.ended_ns or at.wall_ns), 1, place))
    events.sort()
    known: dict[tuple[str, str, str], Terms | None] = {}
    live: dict[int, Reservation] = {}
    charged = held = 0
    for when_ns, ends, place in events:
        call, then = past[place], _then(when_ns, at)
        name = (call.tenant, call.model, call.key_name)
        if name not in known:
            known[name] = terms(*name)
        found = known[name]
        if found is None:
            continue
        if not ends:
            live[place] = _reserve(call, found, quotas, then)
            charged += 1
            continue
        until_ns = _until(call, found.profile, at)
        quotas.settle(live[place], _usage(call), then, running=until_ns > at.mono_ns)
        if until_ns > at.mono_ns:
            hold(call.call_id, live[place], at, until_ns)
            held += 1
    return Booked(charged, held)


def _then(wall_ns: int, at: Instant) -> Instant:
    """A moment before this process, on its clocks; nothing of the past is in the future, whatever the clock did."""
    ago_ns = max(0, at.wall_ns - wall_ns)
    return Instant(at.wall_ns - ago_ns, at.mono_ns - ago_ns)


def _reserve(call: PastCall, terms: Terms, quotas: LocalQuotas, then: Instant) -> Reservation:
    tokens, kv_bytes, tensor_bytes = call.reserved
    demand = Demand(
        tokens, kv_bytes, tensor_bytes, call.prompt_tokens,
        timed=terms.profile.contract is Contract.GENERIC, kv_block=terms.profile.kv,
    )  # fmt: skip
    found = quotas.reserve(
        call.tenant, call.model, terms.limits, demand, then, enforce=False, key=call.key,
        model_limits=terms.model_limits, pool=terms.profile.pool, key_limits=terms.key_limits,
    )  # fmt: skip
    assert isinstance(found, Reservation)  # nothing is refused that isn't enforced
    return found


def _until(call: PastCall, profile: ModelProfile, at: Instant) -> int:
    """Until when (mono) Triton may be working on it; the crash was no later than now.

    No longer than its model ever goes on: a clock that was set back meanwhile would say hours.
    """
    if call.ended_ns is None:
        return at.mono_ns + profile.stops_ns
    left_ns = call.holds_until_ns - at.wall_ns if call.holds_until_ns else 0
    return at.mono_ns + min(left_ns, profile.stops_ns) if left_ns > 0 else 0


def _usage(call: PastCall) -> Usage:
    if call.ended_ns is None:
        return Usage(input_tokens=call.reserved[0])
    return Usage(input_tokens=call.tokens, responses=call.responses, duration_ns=call.duration_ns)

"""The order of governance, written once (DESIGN §4), up to the admission: identify, authorise, isolate, reserve."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from sidecar.core.decision import OBSERVED, Decision, Stop
from sidecar.core.model import (
    NO_HEAD,
    PROOF,
    Action,
    Admission,
    Call,
    Credential,
    Demand,
    Denial,
    Disposition,
    Instant,
    MalformedRequest,
    Principal,
    Refused,
)
from sidecar.core.ports import everything
from sidecar.core.reasons import Reason
from sidecar.core.scope import outside

if TYPE_CHECKING:
    from sidecar.core.ports import Identity, Instruments, Policies, Policy, Quotas, Reader, Recorder, Sees

__all__ = ["Deciding", "Mode", "Ports"]

_NO_DEMAND: Final = Demand()


class Mode(StrEnum):
    """``observe`` decides and records everything and enforces nothing: the safe first day next to running traffic.
    What could end the server (``Denial.always``) is refused all the same, and ids go under isolation's names.

    Of a call that it would have refused by the end of the authorise step the record keeps no content.
    """

    ENFORCE = "enforce"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class Ports:
    """The rooms the governor stands between."""

    identity: Identity
    policies: Policies
    reader: Reader
    quotas: Quotas
    recorder: Recorder
    instruments: Instruments


class Deciding:
    """Whether a call may be made, and as what. Memory only; safe from several threads."""

    def __init__(self, ports: Ports, mode: Mode) -> None:
        self._ports = ports
        self._mode = mode
        self._lock = threading.Lock()
        self._draining = False

    @property
    def mode(self) -> Mode:
        return self._mode

    def drain(self) -> None:
        """From now on every new call is refused DRAINING, in every mode."""
        self._draining = True

    def turns_away(self, credential: Credential | Denial, at: Instant) -> bool:
        """Whether a call with this credential would be refused whatever its message says, so that none need be read."""
        return self.account(credential, at) is None

    def account(self, credential: Credential | Denial, at: Instant) -> str | None:
        """``tenant`` of a call with this credential; None where ``turns_away`` says so."""
        if self._draining:
            return None
        if self._mode is Mode.OBSERVE:
            return self.tenant(credential, at)
        who = credential if isinstance(credential, Denial) else self._ports.identity.identify(credential, at.wall)
        return None if isinstance(who, Denial) or not self._ports.policies.current().serves(who.tenant) else who.tenant

    def tenant(self, credential: Credential | Denial, at: Instant) -> str:
        """On whose account the call is; those whom nobody knows, but ``observe`` lets pass, have one together."""
        who = credential if isinstance(credential, Denial) else self._ports.identity.identify(credential, at.wall)
        return OBSERVED.tenant if isinstance(who, Denial) else who.tenant

    # --- the one order ------------------------------------------------------------------------------------------

    def admit(self, call: Call, at: Instant) -> Admission | Refused:
        """Decide in memory, in the order of DESIGN §4. No await, no I/O; reserves only as its very last step."""
        policy = self._ports.policies.current()
        if self._draining:
            return Refused(call, Denial(Reason.DRAINING, retry_after=1.0), policy.digest)
        decision = Decision(call, policy, observe=self._mode is Mode.OBSERVE)
        try:
            return self._decide(decision, at)
        except Stop as stop:
            return decision.refused(stop.denial)

    def _decide(self, d: Decision, at: Instant) -> Admission:
        call, reader = d.call, self._ports.reader
        infer = call.method.action is Action.INFER
        d.identified(self._identify(call, at))
        if call.fault is not None:
            d.faulted(call.fault)
        barred = self._barred(d, at)
        try:
            d.head = reader.head(call.method, call.message)
        except MalformedRequest as fault:
            d.unreadable(fault, barred)
        d.authorised(barred or d.policy.authorise(d.who, call, d.head, at.wall))
        if infer:
            try:
                d.facts = reader.facts(call.method, call.message, d.allowed.profile, d.head)
            except MalformedRequest as fault:
                d.unreadable(fault)
            d.routed()
            d.guarded()
        who, sees = d.who, self._sees(d.policy, d.who)
        forward = d.isolated(reader.isolate(call, who, d.facts, d.allowed, at, sees))
        allowed = d.allowed
        demand = reader.demand(d.facts, allowed.profile) if infer else _NO_DEMAND
        with self._lock:
            held = self._ports.quotas.reserve(
                who.tenant, allowed.profile.name, allowed.limits, demand, at, enforce=not d.observe,
                key=who.counted_as, model_limits=allowed.model_limits, pool=allowed.profile.pool,
                key_limits=allowed.key_limits,
            )  # fmt: skip
        if isinstance(held, Denial):
            reader.forgone(who.tenant, allowed.profile.name, forward, at)
            raise Stop(held)
        would_refuse = d.denial or allowed.would_refuse or d.shadowed or held.over
        return Admission(call, who, allowed, d.facts, forward, held, would_refuse, PROOF, d.findings)

    def _identify(self, call: Call, at: Instant) -> Principal | Denial:
        if isinstance(call.credential, Denial):
            return call.credential
        return self._ports.identity.identify(call.credential, at.wall)

    def _sees(self, policy: Policy, who: Principal) -> Sees:
        """Which models ``who`` may know of. Mode observe keeps nothing from anybody: it enforces nothing."""
        return partial(policy.sees, who) if self._mode is Mode.ENFORCE else everything

    def _barred(self, d: Decision, at: Instant) -> Denial | None:
        """What is against this call whatever its message says, the method table first; None: nothing."""
        method = d.call.method
        if method.action is Action.UNKNOWN:
            return Denial(Reason.METHOD_UNKNOWN, rule="method-table")
        if method.disposition is Disposition.REFUSE or method.roles.isdisjoint(d.who.roles):
            detail = f"{method.name}; {method.instead}" if method.instead else method.name
            return Denial(Reason.METHOD_NOT_ALLOWED, detail, rule="method-table")
        if not d.policy.serves(d.who.tenant):
            found = d.policy.authorise(d.who, d.call, NO_HEAD, at.wall)
            return found if isinstance(found, Denial) else None
        return outside(d.who, d.call)

"""The order of governance after the admission (``deciding``): record, forward and meter, settle once (DESIGN §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.core.deciding import Deciding, Mode, Ports
from sidecar.core.decision import OBSERVED, forbidden, unenforced
from sidecar.core.endings import Ending, Owed
from sidecar.core.model import (
    Admission,
    Allowance,
    Call,
    Credential,
    Denial,
    Finding,
    Head,
    Instant,
    Outcome,
    OutcomeKind,
    Refused,
    Reservation,
    ResponseFacts,
    Usage,
    replace,
)
from sidecar.core.reasons import Code, Reason
from sidecar.core.recorded import Output, Recorded
from sidecar.core.running_on import RunningOn, runs_on_ns

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = [
    "OBSERVED",
    "Governor",
    "Mode",
    "Output",
    "Ports",
    "Recorded",
    "Refused",
]

# Reasons that end a running call. Not those of a credential that merely ran out: an expiry, the end of a rotation.
WITHDRAWN: Final = frozenset({Reason.KEY_REVOKED, Reason.TOKEN_REVOKED})

_UNSEARCHED: Final = Outcome(OutcomeKind.FAILED, Code.INTERNAL, Reason.INTERNAL, "its output could not be searched")
_CRASHED: Final = Outcome(OutcomeKind.FAILED, Code.INTERNAL, Reason.INTERNAL, "its outcome could not be written down")
_UNREADABLE: Final = Denial(Reason.INTERNAL, internal="Triton's answer can't be read, so nobody is shown it")


class Governor(Deciding):
    """Admits, records and settles calls. Synchronous; safe from several threads (one short lock, never across I/O)."""

    def __init__(self, ports: Ports, *, mode: Mode = Mode.ENFORCE) -> None:
        super().__init__(ports, mode)
        self._live: dict[str, Recorded] = {}
        self._running = RunningOn()
        self._owed = Owed()
        self.on_room: Callable[[], None] = _nobody_waits  # called whenever a call has given something back

    @property
    def in_flight(self) -> int:
        """Recorded calls not settled yet."""
        return len(self._live)

    def revoked(self, credential: Credential | Denial, at: Instant) -> Denial | None:
        """Why a call under way may not go on: its credential was withdrawn since. None: it may.

        A credential that merely expires in the middle of a call does not end it.
        """
        if isinstance(credential, Denial) or self._mode is Mode.OBSERVE:
            return None
        found = self._ports.identity.identify(credential, at.wall)
        return found if isinstance(found, Denial) and found.reason in WITHDRAWN else None

    def standing(self, credential: Credential | Denial, at: Instant) -> tuple[Allowance, ...]:
        """What its tenant has left of its own limits of time before any call, for a stream's beginning to tell."""
        if isinstance(credential, Denial):
            return ()
        who = self._ports.identity.identify(credential, at.wall)
        limits = None if isinstance(who, Denial) else self._ports.policies.current().limits_of(who.tenant, at.wall)
        if isinstance(who, Denial) or limits is None:
            return ()
        with self._lock:
            return self._ports.quotas.left_of(who.tenant, limits, at)

    # --- the beginning ---------------------------------------------------------------------------------------------

    def open(self, call: Call, at: Instant) -> Recorded | Refused:
        """Admit and record; a refusal is recorded too. What comes back is what the transport acts on."""
        match self.admit(call, at):
            case Admission() as admission:
                return self.record(admission, at)
            case Refused() as refused:
                return self.refuse(refused, at)

    def try_open(self, call: Call, at: Instant) -> Recorded | Refused:
        """As ``open``, but a quota's refusal that may be waited out (``queue_ns``) is not recorded: ask again."""
        match self.admit(call, at):
            case Admission() as admission:
                return self.record(admission, at)
            case Refused() as refused:
                return refused if refused.denial.queue_ns else self.refuse(refused, at)

    # --- the journal -----------------------------------------------------------------------------------------------

    def record(self, admission: Admission, at: Instant) -> Recorded | Refused:
        """Write ADMITTED before anything is forwarded; what cannot be recorded is not forwarded, but to observe."""
        try:
            denial = self._ports.recorder.admitted(admission, at)
        except BaseException:  # a bug of ours: the call crashes, but what it holds must not stay held
            self._give_back(admission, at)
            raise
        recorded = Recorded(admission, at, enforce=self._mode is Mode.ENFORCE)
        if denial is not None:
            recorded.in_journal = False
            self._ports.instruments.unrecorded(denial)
            if self._mode is Mode.ENFORCE:
                self._give_back(admission, at)
                refused = Refused(
                    admission.call,
                    denial,
                    admission.verdict.bundle,
                    admission.principal,
                    Head(admission.verdict.profile.name, admission.facts.version),
                    admission.verdict,
                    admission.facts,
                    store=admission.verdict.store,
                )
                # A tenant over its share, or a full journal: the recorder counts it, and tells the count when it can.
                self._ports.recorder.refused(refused, at)
                self._ports.instruments.refused(refused, enforced=True)
                return refused
        with self._lock:
            self._live[admission.call.id] = recorded
        self._ports.instruments.admitted(admission)
        if admission.would_refuse is not None:
            self._ports.instruments.refused(
                Refused(admission.call, admission.would_refuse, admission.verdict.bundle, admission.principal),
                enforced=False,
            )
        return recorded

    def _give_back(self, admission: Admission, at: Instant) -> None:
        name = admission.verdict.profile.name
        self._ports.reader.forgone(admission.principal.tenant, name, admission.forward, at)
        with self._lock:
            self._ports.quotas.settle(admission.reservation, Usage(), at)
        self.on_room()

    def refuse(self, refused: Refused, at: Instant) -> Refused:
        """Record and count a refusal. It stands even if it can't be recorded: nothing was forwarded."""
        denial = self._ports.recorder.refused(refused, at)
        if denial is not None:
            self._ports.instruments.unrecorded(denial)
        self._ports.instruments.refused(refused, enforced=True)
        return refused

    def reject(self, call: Call, denial: Denial, at: Instant) -> Refused:
        """Refuse a call whose message the wire could not even read; a bad credential is told before that."""
        who = self._identify(call, at)
        principal = None if isinstance(who, Denial) else who
        reason = who if isinstance(who, Denial) and self._mode is Mode.ENFORCE else denial
        policy = self._ports.policies.current()
        store = "" if principal is None else policy.store(principal, call)
        return self.refuse(Refused(call, reason, policy.digest, principal, store=store), at)

    # --- while it runs ---------------------------------------------------------------------------------------------

    def deliver(self, recorded: Recorded, message: bytes, at: Instant) -> ResponseFacts | Denial:
        """Meter one response message before the client is sent it. A Denial cuts the call off.

        AUDIT_UNAVAILABLE: what it says cannot be recorded; RATE_TOKENS: its tenant's budget has none left for it.
        """
        admission = recorded.admission
        sees = self._sees(self._ports.policies.current(), admission.principal)
        facts = self._ports.reader.response(admission, message, sees)
        if facts.withheld:
            return _UNREADABLE
        spent: Denial | None = None
        with self._lock:
            recorded.count(facts, at)
            behind = recorded.lag(at)
            if facts.texts or facts.output_tokens:
                tokens, exact, least = recorded.tokens
                spent = self._ports.quotas.grow(admission.reservation, tokens, at, exact=exact, least=least)
        if behind:
            self._catch_up(recorded, at)
        denied = None
        if recorded.watch is not None:
            denied = self._watched(recorded, recorded.watch.feed(facts.texts)) if facts.texts else None
            denied = denied or (self.finish(recorded) if facts.final else None)
        if self._mode is Mode.OBSERVE:
            return facts
        return recorded.lost or denied or spent or facts

    def due(self, recorded: Recorded, at: Instant) -> list[bytes] | Denial:
        """The held messages that may wait no longer, or must not; a Denial cuts the call off instead."""
        held, watch = recorded.holdback, recorded.watch
        assert held is not None
        assert watch is not None
        denied = self._watched(recorded, watch.look())
        if denied is None and held.overdue_in_doubt(at.mono_ns):
            denied = self._watched(recorded, watch.decide())
        return denied or [*held.cleared(), *held.aged(at.mono_ns)]

    def finish(self, recorded: Recorded) -> Denial | None:
        """The output has ended, however it did; a Denial: what is held of it must not be sent."""
        return None if recorded.watch is None else self._watched(recorded, recorded.watch.finish())

    def _watched(self, recorded: Recorded, found: tuple[Finding, ...]) -> Denial | None:
        """What guards found in the output; a Denial cuts it off before what they found it in is sent."""
        if not found:
            return None
        if self._mode is Mode.OBSERVE:
            found = tuple(map(unenforced, found))
        recorded.findings += found
        denying = next((finding for finding in found if finding.enforced == "deny"), None)
        return None if denying is None else forbidden(denying, "the output")

    def sweep(self, at: Instant) -> None:
        """Journal output that would fall behind and endings that could not be; give back what ran on until now.

        Called every 25 ms by the runtime.
        """
        with self._lock:
            behind = [recorded for recorded in self._live.values() if recorded.lag(at)]
            over = self._running.over(at)
        for call_id in over:
            self.release(call_id, at)
        for recorded in behind:
            self._catch_up(recorded, at)
        self._owed.pay(self._ports.recorder)

    def _catch_up(self, recorded: Recorded, at: Instant) -> None:
        """Journal the output so far. Where that fails the call is marked, and ends; its ending tells it then."""
        with recorded.in_order:
            with self._lock:
                if recorded.settled or not recorded.lag(at):  # the other thread was here first
                    return
                output = recorded.take(at)
            denial = self._ports.recorder.output(recorded, output, at)
            if denial is not None:
                recorded.lost = recorded.lost or denial
                with self._lock:
                    recorded.put_back(output)
                self._ports.instruments.unrecorded(denial)

    def settle(self, recorded: Recorded, outcome: Outcome, at: Instant, *, running: bool = False) -> Denial | None:
        """End a call, exactly once: journal its outcome, give back what it held, count it.

        ``running``: Triton has not ended it yet. Its slot and its memory are then held until ``release``.

        Call it before the final frame is sent. A Denial (AUDIT_UNAVAILABLE) means that the outcome, or output before
        it, could not be journaled: the client must not be told that the call completed. Such an outcome is journaled by
        a later ``sweep``, as the client was told it.
        """
        try:
            self.finish(recorded)  # what guards only tell of an output that was broken off stands in its record too
        except BaseException:  # a bug of ours: the call crashes, but must not stay open for it
            recorded.watch = None
            self.settle(recorded, _UNSEARCHED, at, running=running)
            raise
        with recorded.in_order:
            with self._lock:
                if recorded.settled:
                    raise RuntimeError(f"call {recorded.admission.call.id} settled twice")
                recorded.settled = True
                usage, output = recorded.usage(at), recorded.take(at)
                self._live.pop(recorded.admission.call.id, None)
                reservation = recorded.admission.reservation
                held = self._ports.quotas.settle(reservation, usage, at, running=running)
                usage = replace(usage, kv_byte_ms=held) if held else usage
                if running:
                    recorded.holds_ns = runs_on_ns(recorded, at)
                    self._running.keep(recorded.admission.call.id, reservation, at, at.mono_ns + recorded.holds_ns)
            if not running:
                self.on_room()
            if recorded.lost is not None and outcome.kind is OutcomeKind.COMPLETED and self._mode is Mode.ENFORCE:
                outcome = _unrecorded(recorded.lost)
            try:
                denial = self._ports.recorder.settled(recorded, output, outcome, usage, at)
            except BaseException:  # a bug of ours: the call crashes, but must not stay open in the journal
                self._owe(Ending(recorded, Output(output.offset, ()), _CRASHED, usage, at))
                self._ports.instruments.settled(recorded, _CRASHED, usage)
                raise
        if denial is not None:
            self._ports.instruments.unrecorded(denial)
            failed = _unrecorded(denial)
            told = failed if outcome.kind is OutcomeKind.COMPLETED and self._mode is Mode.ENFORCE else outcome
            output = output if output.fits else replace(output, messages=())
            self._owe(Ending(recorded, output, told, usage, at))
            outcome = failed
        self._ports.instruments.settled(recorded, outcome, usage)
        self._ports.reader.ended(recorded.admission, outcome, usage, at)
        return denial or recorded.lost if self._mode is Mode.ENFORCE else None

    def left(self, recorded: Recorded, at: Instant) -> tuple[Allowance, ...]:
        """What the call's tenant has left of its own limits of time."""
        with self._lock:
            return self._ports.quotas.left(recorded.admission.reservation, at)

    def release(self, call_id: str, at: Instant) -> None:
        """Triton has ended a call that was settled while it ran on. Harmless for any other, and twice."""
        with self._lock:
            reservation = self._running.let_go(call_id)
            if reservation is None:
                return
            self._ports.quotas.release(reservation, at)
        self.on_room()

    def hold(self, call_id: str, reservation: Reservation, at: Instant, until_ns: int) -> None:
        """A call of before a crash, settled ``running``, that Triton may be working on until ``until_ns`` (mono)."""
        with self._lock:
            self._running.keep(call_id, reservation, at, until_ns)

    def idle_at_triton(self, model: str, seen_ns: int, at: Instant) -> int:
        """At ``seen_ns`` (mono) Triton was working on nothing of ``model``: what had ended here before is over.

        How many calls that were.
        """
        with self._lock:
            over = self._running.ended_before(model, seen_ns)
        for call_id in over:
            self.release(call_id, at)
        return len(over)

    @property
    def running_on(self) -> int:
        """Calls that are settled, but that Triton has not ended yet."""
        return len(self._running)

    def _owe(self, ending: Ending) -> None:
        """Without its admission in the journal a call isn't open there, and its end has nothing to be joined to."""
        if ending.recorded.in_journal:
            self._owed.keep(ending)


def _nobody_waits() -> None:
    """No wire has asked to be told yet."""


def _unrecorded(denial: Denial) -> Outcome:
    return Outcome(OutcomeKind.FAILED, Code.UNAVAILABLE, denial.reason, denial.internal)

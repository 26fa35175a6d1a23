"""One governed call without I/O: a wire tells it what happened, it answers what to do; settled exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from msgspec import Struct

from sidecar.core.governor import Mode, Recorded, Refused
from sidecar.core.holdback import HoldBack
from sidecar.core.model import Action, Call, Denial, Forward, Outcome, OutcomeKind, ResponseFacts, Secret
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.transports import render
from sidecar.transports.context import RpcContext, Services
from sidecar.transports.waiting import Line
from sidecar.triton import status as triton_status
from sidecar.triton.answers import reworded
from sidecar.triton.errors import Said, said_by
from sidecar.triton.peek import peek_model, peek_request_id
from sidecar.triton.responses import restored

_EMPTY_FINAL: Final = "triton_enable_empty_final_response"


class UpstreamEnd(Struct, frozen=True):
    """How the upstream RPC ended: gRPC code and text, as Triton (or what stands before it) gave them.

    ``client_gone``: it ended because the client's own RPC did. ``denial``: we ended it.
    """

    code: int
    message: str = ""
    client_gone: bool = False
    denial: Denial | None = None


class Exchange:
    """A call's life on either wire: ``open``, ``deliver``…, then one of the endings. All ends settle."""

    __slots__ = ("_services", "_waits", "call", "error", "forwarded", "recorded")

    def __init__(self, services: Services, call: Call) -> None:
        self._services = services
        self.call = call
        self.recorded: Recorded | None = None
        self._waits: tuple[Line, int, Refused | None] | None = None
        self.forwarded = False  # Triton was sent it, and has not been seen to end it
        self.error: str | None = None  # the last in-band one; a decoupled model may go on after it

    async def opened(self, context: RpcContext) -> Forward | Denial:
        """As ``open``, but a call that its plan lets wait for room waits, no longer than its deadline allows."""
        found = self.tried()
        return await self.waited(context) if found is None else found

    def tried(self) -> Forward | Denial | None:
        """As ``open``; None: it may wait for room (``waited``). Nobody is let in before those who wait already."""
        services = self._services
        line: Line | None = None
        if len(services.waiting):
            line = self._line()
            queue_ns = services.waiting.ahead(line)
            if queue_ns:
                self._waits = line, queue_ns, None
                return None
        found = services.governor.try_open(self.call, services.now())
        if isinstance(found, Refused) and found.denial.queue_ns:
            self._waits = line or self._line(), found.denial.queue_ns, found
            return None
        return self._opened(found)

    def _line(self) -> Line:
        tenant = self._services.governor.tenant(self.call.credential, self._services.now())
        return tenant, peek_model(self.call.message)

    @property
    def waits(self) -> bool:
        """Whether it was told neither yes nor no yet."""
        return self._waits is not None

    @property
    def sequence(self) -> bool:
        """Whether it may be one of a sequence, whose next must not overtake it: it has not been read yet."""
        return b"sequence_id" in self.call.message

    async def waited(self, context: RpcContext) -> Forward | Denial:
        """Until there is room, or no more time: that of its plan, or its own."""
        assert self._waits is not None
        (line, queue_ns, refused), self._waits = self._waits, None
        services = self._services
        return self._opened(
            await services.waiting.admit(
                services.governor,
                self.call,
                line,
                services.now,
                context.deadline_ns,
                refused=refused,
                queue_ns=queue_ns,
            )
        )

    def abandon(self, denial: Denial) -> None:
        """It will never wait: whoever would have waited is gone before it began to."""
        self._waits = None
        self._services.governor.reject(self.call, denial, self._services.now())

    def open(self) -> Forward | Denial:
        """Admit and record. A Denial is recorded already and only wants telling."""
        return self._opened(self._services.governor.open(self.call, self._services.now()))

    def _opened(self, found: Recorded | Refused) -> Forward | Denial:
        match found:
            case Recorded() as recorded:
                self.recorded = recorded
                return recorded.admission.forward
            case Refused() as refused:
                return refused.denial
            case other:
                assert_never(other)

    @property
    def unsettled(self) -> bool:
        return self.recorded is not None and not self.recorded.settled

    @property
    def request_id(self) -> str:
        """The client's own request id, which a stream's callback tells responses apart by."""
        known = self.recorded.admission.facts.request_id if self.recorded is not None else ""
        return known or peek_request_id(self.call.message)  # mode observe forwards what it couldn't read

    @property
    def wants_empty_final(self) -> bool:
        """Whether the client itself asked for the empty final response of a decoupled model."""
        assert self.recorded is not None
        return self.recorded.admission.facts.parameters.get(_EMPTY_FINAL) is True

    def deliver(self, message: bytes) -> ResponseFacts | Denial:
        """Meter a response message before it is sent. A Denial ends the call: it cannot be recorded any more."""
        assert self.recorded is not None
        facts = self._services.governor.deliver(self.recorded, message, self._services.now())
        if isinstance(facts, ResponseFacts) and facts.error is not None:
            self.error = facts.error
        return facts

    # --- what guards hold back ---------------------------------------------------------------------------------------

    @property
    def holdback(self) -> HoldBack | None:
        """Where its messages wait for the guards' word; None: they needn't."""
        return None if self.recorded is None else self.recorded.holdback

    def due(self) -> list[bytes] | Denial:
        """The held messages to send now that time has passed; a Denial ends the call."""
        assert self.recorded is not None
        return self._services.governor.due(self.recorded, self._services.now())

    def flushed(self) -> list[bytes] | Denial:
        """What is held, now that no output follows; a Denial, where guards find in it what they deny."""
        if self.recorded is None or self.recorded.holdback is None:
            return []
        return self._services.governor.finish(self.recorded) or self.recorded.holdback.all()

    def shown(self, facts: ResponseFacts) -> bytes:
        """A response as the client is sent it, without what it may not read in an in-band error."""
        if facts.error is None:
            return facts.message
        told = self._translated(facts.error).message
        return facts.message if told == facts.error else reworded(facts.message, told)

    # --- endings ---------------------------------------------------------------------------------------------------

    def complete(self) -> Denial | None:
        """All was delivered. A Denial: its outcome could not be recorded, so the client must not be told OK."""
        self.forwarded = False
        return self._settle(Outcome(OutcomeKind.COMPLETED))

    def ended(self, end: UpstreamEnd) -> render.Status:
        """The upstream RPC is over; what the client's RPC ends with."""
        if end.denial is not None:
            return render.status(self.failed(end.denial), self.call.id)
        self.forwarded = False
        if end.code == Code.OK:
            denial = self.complete()
            return self.told_ok() if denial is None else render.status(denial, self.call.id)
        words = restored(end.message, None if self.recorded is None else self.recorded.admission.forward.undo)
        told = self._translated(words, end.code)
        self._settle(_failure(told, words))
        denial = _denial(told)
        return render.Status(told.code, told.message) if denial is None else render.status(denial, self.call.id)

    def told_ok(self) -> render.Status:
        """That it went well, and what the tenant has left; asked after it is settled, so that this call counts."""
        assert self.recorded is not None
        return render.ok(self._services.governor.left(self.recorded, self._services.now()))

    def errored(self, text: str) -> Denial | None:
        """Triton answered this message of a stream with an in-band error (its gRPC code is lost there).

        A Denial is what the client is told instead of Triton's own text: as for a unary call, ``ended``.
        """
        told = self._translated(text)
        self.forwarded = False
        denial = self._settle(_failure(told, text))
        return denial or _denial(told)

    def erred(self, text: str) -> render.Status:
        """As ``errored``, where the RPC ends with it. Its code is what its words tell: Triton left it out.

        ``triton_grpc_error`` would make Triton tell it, but 2.51 dies of that header: one stream with an error beside
        another answer is enough (SIGSEGV; tests/integration/wire/test_streams.py says more).
        """
        denial = self.errored(text)
        if denial is not None:
            return render.status(denial, self.call.id)
        told = self._translated(text)
        return render.Status(told.code, told.message)

    def failed(self, denial: Denial) -> Denial:
        """We ended it: cut off, drained, or no longer recordable."""
        kind = OutcomeKind.CANCELLED if denial.reason is Reason.CLIENT_CANCELLED else OutcomeKind.FAILED
        words = denial.internal or denial.detail
        self._settle(Outcome(kind, REASONS[denial.reason].code, denial.reason, words, denial.rule))
        return denial

    def _translated(self, words: str, code: int | None = None) -> triton_status.Translated:
        """Triton's words as the client is told them; without ``code`` they came in-band."""
        said = self._said()
        if code is None:
            told = triton_status.translate_in_band(words, said)
        else:
            told = triton_status.translate(code, words, said)
        assert self.recorded is not None
        verdict = self.recorded.admission.verdict
        if said is not None or not verdict.alias:
            return told
        # Nothing is withheld, but the model is still called as the client called it.
        return replace(told, message=told.message.replace(f"'{verdict.profile.name}'", f"'{verdict.alias}'"))

    def _said(self) -> Said | None:
        """What an error may say again to this caller. None: all of it, as only to those the whole server is shown."""
        assert self.recorded is not None
        admission = self.recorded.admission
        if self._services.governor.mode is Mode.OBSERVE:  # it changes nothing of what clients see
            return None
        method = admission.call.method
        staff = method.action is not Action.INFER and method.shows_all(admission.principal.roles)
        return None if staff else said_by(admission, self._services.models.known(admission.verdict.profile.name))

    def _settle(self, outcome: Outcome) -> Denial | None:
        assert self.recorded is not None
        return self._services.governor.settle(self.recorded, outcome, self._services.now(), running=self.forwarded)


def _failure(told: triton_status.Translated, text: str) -> Outcome:
    quoted = Secret(text.encode("utf-8", "replace")) if text != told.words else None
    return Outcome(OutcomeKind.FAILED, told.code, told.reason, told.words, told.rule, quoted)


def _denial(told: triton_status.Translated) -> Denial | None:
    """What Triton said, as one of our reasons; None where its own words stand."""
    if told.reason is None:
        return None
    return Denial(told.reason, retry_after=1.0 if REASONS[told.reason].retryable else None)


DRAINED = Denial(Reason.DRAINING, "the grace period is over", retry_after=1.0)
BLOCKED = Denial(Reason.MEMORY_TENSOR, "the client does not read its responses", rule="bounds.blocked_write")
BEHIND = Denial(
    Reason.MEMORY_TENSOR, "too many responses wait for that of an earlier request", rule="bounds.stream_bytes"
)
NO_BUFFER = Denial(Reason.MEMORY_TENSOR, "the sidecar's buffers are full", retry_after=1.0, rule="bounds.buffer_bytes")
CRASHED = Denial(Reason.INTERNAL)

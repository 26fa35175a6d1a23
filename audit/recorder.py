"""Turns what the governor decides into journal entries, keeping as much of each call as its audit level says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from audit import record
from audit.entries import (
    FACTS_BYTES,
    NOBODY,
    NOTHING,
    QUOTED_BYTES,
    aborted,
    bounded,
    call_facts,
    content_bytes_of,
    content_of,
    cut,
)
from audit.folding import WHOLE, Folding, network
from audit.journal import FaultKind, Journal, JournalFault, Pressure
from audit.payload import Described
from audit.record import Content, Digested, Entry, Event, Settled, encode
from audit.tensors import digested, inputs_of, outputs_of
from sidecar.core.governor import Output, Recorded, Refused
from sidecar.core.model import (
    Admission,
    AuditLevel,
    AuditRule,
    Denial,
    Durability,
    Instant,
    MalformedRequest,
    OnPressure,
    Outcome,
    ParameterValue,
    Secret,
    Usage,
    Verdict,
    replace,
)
from sidecar.core.reasons import REASONS, Code, Reason

__all__ = ["JournalRecorder"]

FIRST: Final = ("",)  # of the stores that a journal is copied to
RESPONSES: Final = 1024  # of one call, whose tensors are told
GAPS: Final = 100  # named in one event
_NONE: Final[Mapping[str, Journal]] = {}
_RETRY_S: Final = 1.0  # a full disk or a restart passes in seconds, not sooner
ACTOR: Final = "serve"


class JournalRecorder:
    """``ports.Recorder`` over a pod's journals; thread-safe. ``content_bytes`` bounds a prompt, and an output."""

    def __init__(
        self,
        journal: Journal,
        *,
        content_bytes: int,
        durability: Durability,
        new_id: Callable[[], str],
        now: Callable[[], Instant],
        model_digest: Callable[[str, str], str] = lambda _model, _version: "",
        further: Mapping[str, Journal] = _NONE,
    ) -> None:
        """``model_digest``: of a model's version's directory ("": not known), had without I/O.

        ``journal`` is that of the pod's own database, ``further`` those of the others, by jurisdiction.
        """
        self._journal, self._further = journal, further
        self._digest = model_digest
        self._bound = content_bytes
        self._durability = durability
        self._new_id, self._now = new_id, now
        self._shed: set[str] = set()  # calls in flight whose content is no longer kept; as many as are in flight
        self._folding = Folding()
        self.shed_calls = self.folded_refusals = 0

    # --- ports.Recorder -------------------------------------------------------------------------------------------

    def admitted(self, admission: Admission, at: Instant) -> Denial | None:
        call, verdict, asked, tenant = admission.call, admission.verdict, admission.facts, admission.principal.tenant
        rule, journal = verdict.audit, self._of(verdict.store)
        if rule.on_pressure is OnPressure.REFUSE:
            if journal.over(tenant) and journal.pressure < Pressure.REFUSE:
                return _over(tenant)
        elif _sheds(journal, rule, tenant):
            rule = self._shedding(call.id, rule)
        keeps, request, digests = _inputs(rule, call.message)
        facts = call_facts(
            call,
            admission.principal,
            asked,
            rule,
            at,
            model=_answering(verdict) or asked.model or verdict.profile.name,
            version=asked.version,
            data_class=verdict.data_class or call.data_class,
            rule=verdict.rule,
            bundle=verdict.bundle,
            prompt=content_of(asked.prompts, self._kept(rule.level, AuditLevel.PROMPT)),
            would_refuse=admission.would_refuse,
            findings=admission.findings,
            may_trace=verdict.may_trace,
            verdict=verdict,
            store=verdict.store,
            resident=not _elsewhere(admission.would_refuse),
            demand=admission.reservation.demand,
            keeps=keeps,
            request=request,
            digests=digests,
        )
        denial = self._write(record.Admitted(facts), journal, opens=call.id, tenant=tenant)
        if denial is not None:
            self._shed.discard(facts.call_id)  # nothing of it is kept, and enforced it has no end that would forget it
        return denial

    def refused(self, refused: Refused, at: Instant) -> Denial | None:
        denial, verdict = refused.denial, refused.verdict
        if self._folds(refused, at):
            self.folded_refusals += 1
            return None
        rule = verdict.audit if verdict is not None and _may_keep(refused) else AuditRule(level=AuditLevel.METADATA)
        tenant = refused.principal.tenant if refused.principal is not None else ""
        journal = self._of(refused.store)
        if _sheds(journal, rule, tenant):
            rule = replace(rule, level=AuditLevel.METADATA)
        facts = call_facts(
            refused.call,
            refused.principal or NOBODY,
            refused.facts,
            rule,
            at,
            model=_answering(verdict) or refused.facts.model or refused.head.model,
            version=refused.facts.version or refused.head.version,
            data_class=(verdict.data_class if verdict is not None else "") or refused.call.data_class,
            rule=denial.rule,
            bundle=refused.bundle,
            prompt=content_of(refused.facts.prompts, self._kept(rule.level, AuditLevel.PROMPT)),
            would_refuse=None,
            findings=refused.findings,
            # Without a principal there is no tenant whose telemetry it would be, and its message was not read.
            may_trace=refused.principal is None if verdict is None else verdict.may_trace,
            verdict=verdict,
            store=refused.store,
            resident=verdict is not None or denial.resident,
        )
        code = int(REASONS[denial.reason].code)
        entry = record.Refused(facts, denial.reason.value, code, denial.detail, denial.internal)
        return self._write(entry, journal, tenant=tenant)

    def output(self, recorded: Recorded, output: Output, at: Instant) -> Denial | None:
        denial = self._responses(recorded, output, at) if output.messages else None
        texts = self._output(recorded, output)
        if denial is not None or not texts:
            return denial
        call_id, tenant = recorded.admission.call.id, recorded.admission.principal.tenant
        store = recorded.admission.verdict.store
        entry = record.Output(call_id, at.wall_ns, output.offset, texts, store)
        return self._write(entry, self._of(store), reserve=True, tenant=tenant)

    def settled(self, recorded: Recorded, output: Output, outcome: Outcome, usage: Usage, at: Instant) -> Denial | None:
        denial = self._responses(recorded, output, at) if output.messages else None
        if denial is not None:
            return denial
        admission = recorded.admission
        call_id, verdict, tenant = admission.call.id, admission.verdict, admission.principal.tenant
        quoted = NOTHING
        if outcome.quoted is not None:
            quoted = self._quoted(outcome.quoted, AuditLevel.METADATA if call_id in self._shed else verdict.audit.level)
        entry = Settled(
            call_id=call_id,
            at_ns=at.wall_ns,
            outcome=outcome.kind.value,
            status=int(outcome.status),
            reason=outcome.reason.value if outcome.reason is not None else "",
            internal=outcome.internal,
            offset=output.offset,
            texts=self._output(recorded, output),
            output_bytes=recorded.delivered_bytes,
            output_sha256=recorded.output_sha256,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            input_exact=usage.input_exact,
            output_exact=usage.output_exact,
            responses=usage.responses,
            response_bytes=usage.response_bytes,
            first_response_ns=usage.first_response_ns,
            duration_ns=usage.duration_ns,
            model_version=usage.model_version,
            model_digest=self._answered_by(recorded, usage.model_version),
            quoted=quoted,
            findings=recorded.findings,
            holds_until_ns=at.wall_ns + recorded.holds_ns if recorded.holds_ns else 0,
            kv_byte_ms=usage.kv_byte_ms,
            store=verdict.store,
        )
        journal, until_ns = self._of(entry.store), entry.holds_until_ns
        denial = self._write(entry, journal, closes=call_id, reserve=True, tenant=tenant, until_ns=until_ns)
        if denial is None or not recorded.in_journal:  # else its end is owed, and told with no more than was kept
            self._shed.discard(call_id)
        return denial

    def _answered_by(self, recorded: Recorded, version: str) -> str:
        """Computed, else as models.yaml states it; "" where no version answered, or nothing is known of it."""
        profile = recorded.admission.verdict.profile
        return version and (self._digest(profile.name, version) or profile.digests.get(version, ""))

    # --- beside the port ------------------------------------------------------------------------------------------

    def durable(self, recorded: Recorded) -> Future[Denial | None] | None:
        """For a strict call: done when all its entries so far outlive power. None where nobody has to wait.

        Where the journal is copied: when they outlive the node, too (``AuditRule.copies``). The transport awaits it
        after ``Governor.open`` before forwarding, and after ``settle`` before the final frame.
        """
        rule, journal = recorded.admission.verdict.audit, self._of(recorded.admission.verdict.store)
        strict = (rule.durability or self._durability) is Durability.STRICT
        copies = (FIRST if strict and journal.copiers else ()) if rule.copies is None else rule.copies
        if not strict and not copies:
            return None
        answer: Future[Denial | None] = Future()

        def tell(synced: Future[JournalFault | None]) -> None:
            if answer.set_running_or_notify_cancel():
                fault = synced.result()
                answer.set_result(None if fault is None else _unavailable(fault))

        # All so far is a superset of this call's own entries, and one fsync, or one copy, covers both.
        (journal.copied(copies) if copies else journal.synced()).add_done_callback(tell)
        return answer

    def event(self, kind: str, actor: str, detail: Mapping[str, ParameterValue]) -> Denial | None:
        """Journal what belongs in the log and is no call: bundle loads, drain."""
        return self.tell("", kind, actor, detail)

    def tell(self, store: str, kind: str, actor: str, detail: Mapping[str, ParameterValue]) -> Denial | None:
        """As ``event``, of one journal. ``store``: the jurisdiction whose database keeps it; "": the pod's own."""
        event = Event(self._new_id(), self._now().wall_ns, kind, actor, dict(detail), store)
        return self._write(event, self._of(store), reserve=True)

    @property
    def _journals(self) -> list[tuple[str, Journal]]:
        """Each with the jurisdiction of its database, as entries name it."""
        return [("", self._journal), *self._further.items()]

    def _of(self, store: str) -> Journal:
        """Whose records a jurisdiction's database keeps: what is for another than the pod's own never meets them."""
        return self._further.get(store, self._journal)

    def recovered(self, holds_ns: Callable[[str], int] = lambda _model: 0) -> Denial | None:
        """Give each call that a crash cut off its ``aborted`` outcome, and say what recovery found; once, at start.

        ``holds_ns``: how long from now on a model may still be working on such a call.
        """
        return next(filter(None, (self._recovered(*each, holds_ns) for each in self._journals)), None)

    def _recovered(self, store: str, journal: Journal, holds_ns: Callable[[str], int]) -> Denial | None:
        recovery, at = journal.recovery, self._now()
        for call in recovery.open_calls:
            until_ns = at.wall_ns + holds_ns(call.model)
            entry = aborted(call, at, until_ns)
            denial = self._write(entry, journal, closes=call.call_id, reserve=True, until_ns=until_ns)
            if denial is not None:
                return denial
        for fault in recovery.faults:
            detail: dict[str, ParameterValue] = {"kind": fault.kind.value, "detail": fault.detail}
            if fault.first is not None and fault.last is not None:
                detail |= {"first": fault.first, "last": fault.last}
            denial = self.tell(store, "journal_fault", ACTOR, detail)
            if denial is not None:
                return denial
        detail = {
            "aborted": len(recovery.open_calls),
            "truncated_bytes": recovery.truncated_bytes,
            "faults": len(recovery.faults),
            "sequence": recovery.next_sequence,
            "copied_to": ", ".join(copier.where for copier in journal.copiers.values()),
        }
        return self.tell(store, "journal_opened", ACTOR, detail)

    def mended(self) -> tuple[JournalFault, ...]:
        """Say in the log what was wrong with a journal and has been put right; the faults that were told now."""
        return tuple(fault for store, journal in self._journals for fault in self._mended(store, journal))

    def _mended(self, store: str, journal: Journal) -> list[JournalFault]:
        told: list[JournalFault] = []
        for mended in journal.mended():
            fault, lost = mended.fault, mended.lost
            detail: dict[str, ParameterValue] = {
                "kind": fault.kind.value,
                "detail": fault.detail,
                "rescued": mended.rescued,
                "lost": sum(last - first + 1 for first, last in lost),
                "gaps": " ".join(f"{first}-{last}" for first, last in lost[:GAPS]),
            }
            if self.tell(store, "journal_mended", ACTOR, detail) is not None:
                break
            journal.told(mended)
            told.append(fault)
        return told

    # --- short of space -------------------------------------------------------------------------------------------

    def _shedding(self, call_id: str, rule: AuditRule) -> AuditRule:
        if rule.level is not AuditLevel.METADATA:
            self._shed.add(call_id)
            self.shed_calls += 1
        return replace(rule, level=AuditLevel.METADATA)

    def _folds(self, refused: Refused, at: Instant) -> bool:
        """Whether a refusal is only counted: of callers whom nobody knows beyond some, of tenants over their share.

        All are, where the journal is full: the count fits into what is kept free, and they would not.
        """
        reason, tenant = refused.denial.reason, refused.principal.tenant if refused.principal is not None else ""
        journal = self._of(refused.store)
        if tenant and REASONS[reason].code is not Code.UNAUTHENTICATED:
            if not journal.over(tenant) and journal.pressure < Pressure.REFUSE:
                return False
            return self._folding.folds(reason.value, f"tenant {tenant}", at.wall_ns, whole=0, store=refused.store)
        whole = WHOLE if journal.pressure < Pressure.WARN else 0
        return self._folding.folds(reason.value, network(refused.call.peer), at.wall_ns, whole=whole)

    def fold(self, at: Instant, *, last: bool = False) -> None:
        """Tell what was only counted, once a window; ``last``: the sidecar ends."""
        untold = []
        for each in self._folding.due(at.wall_ns, now=last):
            detail: dict[str, ParameterValue] = {
                "reason": each.reason, "from": each.origin, "count": each.count, "first_ns": each.first_ns,
                "last_ns": each.last_ns,
            }  # fmt: skip
            if self.tell(each.store, "refusals_counted", ACTOR, detail) is not None:
                untold.append(each)
        self._folding.again(untold)

    # --- writing --------------------------------------------------------------------------------------------------

    def _write(
        self,
        entry: Entry,
        journal: Journal,
        *,
        opens: str = "",
        closes: str = "",
        reserve: bool = False,
        tenant: str = "",
        until_ns: int = 0,
    ) -> Denial | None:
        try:
            data = encode(entry)
            if len(data) > FACTS_BYTES and len(data) - content_bytes_of(entry) > FACTS_BYTES:
                data = encode(bounded(entry))
        except (UnicodeEncodeError, OverflowError):
            data = encode(bounded(entry))
        written = journal.append(data, opens=opens, closes=closes, reserve=reserve, tenant=tenant, until_ns=until_ns)
        return None if isinstance(written, int) else _unavailable(written)

    def _kept(self, level: AuditLevel, least: AuditLevel) -> int | None:
        """How many bytes of a content are kept at ``level``; None: none of it, only length and digest."""
        keeps = level is AuditLevel.FULL or level is least
        return self._bound if keeps else None

    def _quoted(self, words: Secret, level: AuditLevel) -> Content:
        """An error text like an output: it may quote prompts, this call's or a batch-mate's."""
        kept = min(self._bound, QUOTED_BYTES) if level is AuditLevel.FULL else None
        return content_of((words.reveal(),), kept)

    def _responses(self, recorded: Recorded, output: Output, at: Instant) -> Denial | None:
        """The answers of a call whose tensors are kept; beyond its bound only what was in them, by digest.

        Those after RESPONSES are counted alone.
        """
        admission = recorded.admission
        rule, call, streaming = admission.verdict.audit, admission.call, admission.call.method.streaming
        keeps = rule.tensors
        if keeps is None or call.id in self._shed:
            return None
        journal = self._of(admission.verdict.store)
        if _sheds(journal, rule, admission.principal.tenant):
            self._shedding(call.id, rule)
            return None
        end = output.before
        for index, message in enumerate(output.messages, output.first):
            end += len(message)
            if index >= RESPONSES:
                return None
            whole = message if end <= keeps.nbytes else None
            told = [] if whole is not None else _digested(partial(outputs_of, message, index, streaming=streaming))
            entry = record.Responded(call.id, at.wall_ns, index, whole, told, admission.verdict.store)
            denial = self._write(entry, journal, reserve=True, tenant=admission.principal.tenant)
            if denial is not None:
                return denial
        return None

    def _output(self, recorded: Recorded, output: Output) -> list[bytes]:
        """The part of ``output`` that is kept: the first ``content_bytes`` of the call's whole output, level full."""
        admission = recorded.admission
        rule, call_id = admission.verdict.audit, admission.call.id
        if rule.level is not AuditLevel.FULL or call_id in self._shed:
            return []
        if _sheds(self._of(admission.verdict.store), rule, admission.principal.tenant):
            self._shedding(call_id, rule)  # for good: a hole in what is kept would be worse than an end
            return []
        return cut(output.texts, self._bound - output.offset)


def _sheds(journal: Journal, rule: AuditRule, tenant: str) -> bool:
    """Whether content is kept as length and digest only, because the journal, or the tenant's part, is short."""
    if rule.on_pressure is OnPressure.REFUSE:
        return False
    return journal.pressure >= Pressure.SHED or journal.over(tenant)


def _inputs(rule: AuditRule, message: bytes) -> tuple[int, bytes | None, list[Digested]]:
    """How much is kept of a call's tensors, its message where that is no more, else what was in it by digest."""
    keeps = rule.tensors
    if keeps is None or rule.level is AuditLevel.METADATA:
        return 0, None, []
    if not keeps.inputs:
        return keeps.nbytes, None, []
    if len(message) <= keeps.nbytes:
        return keeps.nbytes, message, []
    return keeps.nbytes, None, _digested(partial(inputs_of, message, keep=False))


def _digested(read: Callable[[], list[Described]]) -> list[Digested]:
    try:
        return digested(read())
    except MalformedRequest:  # what can't be read was not judged by its tensors either
        return []


def _may_keep(refused: Refused) -> bool:
    """Whether a refused call's content may be kept: never of an unknown caller, nor where it may not be stored, or
    could not be.
    """
    reason = refused.denial.reason
    known = refused.principal is not None and REASONS[reason].code is not Code.UNAUTHENTICATED
    return known and not reason.startswith("RESIDENCY_") and reason is not Reason.AUDIT_UNAVAILABLE


def _answering(verdict: Verdict | None) -> str:
    """The model behind an alias; "" where the client's own name is the model's."""
    return verdict.profile.name if verdict is not None and verdict.alias else ""


def _elsewhere(denial: Denial | None) -> bool:
    """Whether this tenant's data should not be here (mode observe lets it be)."""
    return denial is not None and denial.reason.startswith("RESIDENCY_")


def _unavailable(fault: JournalFault) -> Denial:
    retry = None if fault.kind is FaultKind.TOO_LARGE else _RETRY_S
    return Denial(Reason.AUDIT_UNAVAILABLE, retry_after=retry, rule="journal", internal=f"{fault.kind}: {fault.detail}")


def _over(tenant: str) -> Denial:
    words = f"{tenant} holds more of the journal than its share"
    return Denial(Reason.AUDIT_UNAVAILABLE, retry_after=_RETRY_S, rule="journal", internal=words)

"""audit.recorder: what each audit level keeps, what is never kept, and what a journal that can't write answers."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest

from audit import folding, record
from audit.copying import Copier, CopyTo
from audit.entries import DIMENSIONS, PARAMETERS, QUOTED_BYTES, TENSORS, TEXT_CHARS
from audit.journal import Bounds, FaultKind, Journal, Pressure
from audit.recorder import JournalRecorder
from audit.recovery import ENGINE_IDLE
from audit.segments import segments_in
from sidecar.core.governor import Governor, Output, Ports, Recorded, Refused
from sidecar.core.model import (
    NO_FACTS,
    PROOF,
    Action,
    Admission,
    AuditLevel,
    AuditRule,
    Call,
    Credential,
    Demand,
    Denial,
    Disposition,
    Durability,
    Forward,
    Head,
    InferenceFacts,
    Instant,
    Limits,
    Method,
    ModelProfile,
    OnPressure,
    Outcome,
    OutcomeKind,
    Principal,
    Reservation,
    ResponseFacts,
    Secret,
    TensorFacts,
    TraceContext,
    Usage,
    Verdict,
    replace,
)
from sidecar.core.ports import Recorder
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.core.routing import Route, RouteKind
from tests.support.core import FakeInstruments, FakePorts, a_call
from tests.support.journal import ORIGIN, ROOMY, FaultyFiles, crash, entries, open_journal, wall_ns
from tests.support.objects import MemoryObjects

METHOD = Method(
    "/inference.GRPCInferenceService/ModelInfer",
    Action.INFER,
    Disposition.FORWARD,
    frozenset({"tenant"}),
    by_model=True,
)
ARRIVED, AT, END = Instant(1_000, 10), Instant(2_000, 1_010), Instant(9_000, 8_010)
PROMPTS = (b"what is ", b"a warden?")
WHOLE = b"".join(PROMPTS)
FACTS = InferenceFacts(
    request_id="r1", model="chat", version="2", inputs=(TensorFacts("text_input", "BYTES", (1,), 21),),
    parameters={"max_tokens": 8, "temperature": 0.5, "stream": True, "stop": "."}, prompts=PROMPTS,
    prompt_tokens=5, requested_tokens=8,
)  # fmt: skip
PRINCIPAL = Principal("acme", "ada", "api_key", key_id="k1", subject="patient-7")
CALL = Call(
    "call-1", METHOD, ARRIVED, b"m" * 99, Credential("api_key", Secret(b"the-secret")), "10.1.2.3:555", subject="other",
    conversation="c9", trace=TraceContext("a" * 32, "b" * 16, "c" * 16, sampled=True),
)  # fmt: skip


def verdict(level: AuditLevel = AuditLevel.FULL, **rule: Any) -> Verdict:
    return Verdict("tenants/acme", "digest", ModelProfile("chat"), Limits(), AuditRule(level, **rule), "phi")


def admission(level: AuditLevel = AuditLevel.FULL, facts: InferenceFacts = FACTS, **rule: Any) -> Admission:
    held = Reservation("acme", "chat", Demand(), AT)
    return Admission(CALL, PRINCIPAL, verdict(level, **rule), facts, Forward(b""), held, None, PROOF)


def recorder(
    journal: Journal, content_bytes: int = 2**20, durability: Durability = Durability.BATCH
) -> JournalRecorder:
    return JournalRecorder(
        journal, content_bytes=content_bytes, durability=durability, new_id=lambda: "event-1", now=lambda: END
    )


def kept(directory: Path) -> list[record.Entry]:
    return [record.decode(data) for _, data in entries(directory)]


def is_a_recorder(real: JournalRecorder) -> Recorder:
    return real


def test_an_admission_is_recorded_whole(tmp_path: Path) -> None:
    assert recorder(open_journal(tmp_path)).admitted(admission(retention_days=30), AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Admitted)
    call = entry.call
    assert (call.call_id, call.tenant, call.principal, call.key_id) == ("call-1", "acme", "ada", "k1")
    assert (call.started_ns, call.decided_ns, call.model, call.version) == (1_000, 2_000, "chat", "2")
    assert (call.subject, call.conversation, call.data_class) == ("patient-7", "c9", "phi")
    assert (call.trace_id, call.parent_id, call.sampled) == ("a" * 32, "c" * 16, True)
    assert (call.rule, call.bundle, call.level, call.retention_days) == ("tenants/acme", "digest", "full", 30)
    assert call.parameters == {"max_tokens": 8, "temperature": 0.5, "stream": True, "stop": "."}
    assert call.tensors == [record.Tensor("text_input", "BYTES", [1], 21)]
    assert (call.peer, call.request_bytes, call.prompt_tokens) == ("10.1.2.3:555", 99, 5)
    assert call.prompt == record.Content(len(WHOLE), hashlib.sha256(WHOLE).digest(), list(PROMPTS))


@pytest.mark.parametrize("level", AuditLevel)
def test_each_level_keeps_its_content_and_no_more(tmp_path: Path, level: AuditLevel) -> None:
    real = recorder(open_journal(tmp_path))
    recorded = Recorded(admission(level), AT)
    recorded.count(ResponseFacts(texts=(b"an answer",)), AT)
    assert real.admitted(recorded.admission, AT) is None
    assert real.output(recorded, Output(0, (b"an ",)), AT) is None
    assert real.settled(recorded, Output(3, (b"answer",)), Outcome(OutcomeKind.COMPLETED), Usage(), END) is None
    raw = b"".join(data for _, data in entries(tmp_path))
    assert (PROMPTS[0] in raw) is (level is not AuditLevel.METADATA)
    assert (b"answer" in raw) is (level is AuditLevel.FULL)
    assert b"the-secret" not in raw
    first, last = kept(tmp_path)[0], kept(tmp_path)[-1]
    assert isinstance(first, record.Admitted)
    assert isinstance(last, record.Settled)
    assert (first.call.prompt.nbytes, first.call.prompt.sha256) == (len(WHOLE), hashlib.sha256(WHOLE).digest())
    assert (last.output_bytes, last.output_sha256) == (9, hashlib.sha256(b"an answer").digest())


@pytest.mark.parametrize("level", AuditLevel)
def test_words_that_the_client_was_not_told_are_content(tmp_path: Path, level: AuditLevel) -> None:
    words = "ValueError: ['a prompt', 'another tenant's']"
    real, recorded = recorder(open_journal(tmp_path)), Recorded(admission(level), AT)
    failed = Outcome(OutcomeKind.FAILED, Code.INTERNAL, quoted=Secret(words.encode()))
    assert real.settled(recorded, Output(0, ()), failed, Usage(), END) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Settled)
    digest = hashlib.sha256(words.encode()).digest()
    parts = [words.encode()] if level is AuditLevel.FULL else None
    assert (entry.quoted, entry.internal) == (record.Content(len(words), digest, parts), "")


def test_of_long_words_the_beginning_is_kept(tmp_path: Path) -> None:
    real, recorded = recorder(open_journal(tmp_path)), Recorded(admission(), AT)
    failed = Outcome(OutcomeKind.FAILED, Code.INTERNAL, quoted=Secret(b"x" * 1_000_000))
    assert real.settled(recorded, Output(0, ()), failed, Usage(), END) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Settled)
    assert entry.quoted.parts == [b"x" * QUOTED_BYTES]
    assert entry.quoted.nbytes == 1_000_000


@pytest.mark.parametrize("bound", [1, 8, 9, 16, 17, 100])
def test_content_over_the_bound_is_cut_and_its_whole_is_digested(tmp_path: Path, bound: int) -> None:
    real = recorder(open_journal(tmp_path), content_bytes=bound)
    recorded = Recorded(admission(), AT)
    real.admitted(recorded.admission, AT)
    recorded.count(ResponseFacts(texts=(WHOLE,)), AT)
    real.output(recorded, Output(0, (WHOLE[:6], WHOLE[6:12])), AT)
    real.settled(recorded, Output(12, (WHOLE[12:],)), Outcome(OutcomeKind.COMPLETED), Usage(), END)
    found = kept(tmp_path)
    first, last = found[0], found[-1]
    assert isinstance(first, record.Admitted)
    assert isinstance(last, record.Settled)
    assert b"".join(first.call.prompt.parts or []) == WHOLE[:bound]
    assert (first.call.prompt.nbytes, last.output_bytes) == (len(WHOLE), len(WHOLE))
    assert first.call.prompt.sha256 == last.output_sha256 == hashlib.sha256(WHOLE).digest()
    output = [text for entry in found if isinstance(entry, record.Output | record.Settled) for text in entry.texts]
    assert b"".join(output) == WHOLE[:bound]


def test_a_content_of_many_parts_costs_an_entry_little_more_than_its_text(tmp_path: Path) -> None:
    prompts = (b"a", *(b"",) * 5000, b"b", *(b"",) * 5000, b"c")
    real = recorder(open_journal(tmp_path))
    assert real.admitted(admission(facts=InferenceFacts(prompts=prompts)), AT) is None
    ((_, data),) = entries(tmp_path)
    assert len(data) < 4096
    entry = record.decode(data)
    assert isinstance(entry, record.Admitted)
    assert b"".join(entry.call.prompt.parts or []) == b"abc"
    assert entry.call.prompt.sha256 == hashlib.sha256(b"abc").digest()


@pytest.mark.parametrize("reason", Reason)
def test_a_refusals_content_is_kept_only_where_it_may_be(tmp_path: Path, reason: Reason) -> None:
    refused = Refused(CALL, Denial(reason, "why", internal="more"), "digest", PRINCIPAL, Head("chat"), verdict(), FACTS)
    assert recorder(open_journal(tmp_path)).refused(refused, AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Refused)
    assert (entry.reason, entry.status) == (reason.value, REASONS[reason].code)
    assert (entry.detail, entry.internal) == ("why", "more")
    never = reason.startswith("RESIDENCY_") or REASONS[reason].code is Code.UNAUTHENTICATED
    never = never or reason is Reason.AUDIT_UNAVAILABLE
    assert (entry.call.prompt.parts is None) is never


@pytest.mark.parametrize("allowed", [True, False])
def test_a_span_may_leave_where_the_verdict_says_so(tmp_path: Path, allowed: bool) -> None:
    real, said = recorder(open_journal(tmp_path)), replace(verdict(), may_trace=allowed)
    real.admitted(replace(admission(), verdict=said), AT)
    real.refused(Refused(CALL, Denial(Reason.RATE_TOKENS), "d", PRINCIPAL, Head("chat"), said, FACTS), AT)
    assert [entry.call.may_trace for entry in kept(tmp_path)] == [allowed] * 2  # type: ignore[union-attr]  # both have one


@pytest.mark.parametrize("reason", [Reason.MODEL_NOT_FOUND, Reason.RESIDENCY_PROCESSING, Reason.REQUEST_TOO_LARGE])
def test_without_a_verdict_a_span_may_leave_only_if_it_names_nobody(tmp_path: Path, reason: Reason) -> None:
    """Residency is decided last, and processing before telemetry: no other refusal says that telemetry may leave."""
    real = recorder(open_journal(tmp_path))
    real.refused(Refused(CALL, Denial(reason), "d", PRINCIPAL, Head("chat")), AT)
    real.refused(Refused(CALL, Denial(Reason.CREDENTIAL_MISSING), "d"), AT)
    assert [entry.call.may_trace for entry in kept(tmp_path)] == [False, True]  # type: ignore[union-attr]  # refusals


def test_a_refusal_before_the_verdict_has_no_content(tmp_path: Path) -> None:
    real = recorder(open_journal(tmp_path))
    real.refused(Refused(CALL, Denial(Reason.CREDENTIAL_MISSING), "digest"), AT)
    real.refused(Refused(CALL, Denial(Reason.POLICY_FORBIDS, rule="p1"), "d", PRINCIPAL, Head("chat"), None, FACTS), AT)
    first, second = kept(tmp_path)
    assert isinstance(first, record.Refused)
    assert isinstance(second, record.Refused)
    assert (first.call.tenant, first.call.model, first.call.level) == ("", "", "metadata")
    assert (second.call.tenant, second.call.model, second.call.rule) == ("acme", "chat", "p1")
    assert second.call.prompt.parts is None


def test_a_message_cannot_make_an_entry_large_or_unwritable(tmp_path: Path) -> None:
    hostile = replace(
        FACTS,
        model="m" * 100_000,
        request_id="\ud800x",
        parameters={f"p{n}": "v" * 5000 for n in range(500)} | {"big": 2**70},
        inputs=tuple(TensorFacts(f"t{n}", "FP32", (1,) * 300, 4) for n in range(2000)),
        prompts=(b"p" * 40_000,),
    )
    assert recorder(open_journal(tmp_path)).admitted(admission(facts=hostile), AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Admitted)
    call = entry.call
    assert (len(call.model), call.request_id) == (TEXT_CHARS, "\ufffdx")
    assert (len(call.parameters), len(call.tensors)) == (PARAMETERS, TENSORS)
    assert len(call.tensors[0].shape) == DIMENSIONS
    assert call.prompt.parts == [b"p" * 40_000], "content has its own bound"


def test_small_but_unwritable_values_are_replaced(tmp_path: Path) -> None:
    odd = replace(FACTS, request_id="\udcff", parameters={"seed": 2**70})
    assert recorder(open_journal(tmp_path)).admitted(admission(facts=odd), AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Admitted)
    assert (entry.call.request_id, entry.call.parameters) == ("\ufffd", {"seed": 2**63 - 1})


def test_a_demand_that_no_number_holds_is_recorded_as_the_largest(tmp_path: Path) -> None:
    """In mode observe nothing refuses ``max_tokens: 2^64 - 1`` times n before it is recorded."""
    asked = replace(admission(), reservation=Reservation("acme", "chat", Demand(2**70, 2**90, 7), AT))
    assert recorder(open_journal(tmp_path)).admitted(asked, AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Admitted)
    assert entry.call.reserved == (2**63 - 1, 2**63 - 1, 7)


def test_without_space_the_answer_is_audit_unavailable_but_admitted_calls_end(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    real, recorded = recorder(journal), Recorded(admission(), AT)
    real.admitted(recorded.admission, AT)
    files.free_bytes = 1000
    journal.tick(1.0)
    denial = real.admitted(admission(), AT)
    assert denial is not None
    assert (denial.reason, denial.detail) == (Reason.AUDIT_UNAVAILABLE, "")
    assert denial.retry_after
    assert "full" in denial.internal
    before = journal.next_sequence
    assert real.refused(Refused(CALL, Denial(Reason.MODEL_NOT_FOUND), "digest", PRINCIPAL), AT) is None
    assert real.refused(Refused(CALL, Denial(Reason.KEY_UNKNOWN), "digest"), AT) is None
    assert (journal.next_sequence, real.folded_refusals) == (before, 2), "refusals are many: only their count is kept"
    real.fold(AT, last=True)
    told = [entry.detail for entry in kept(tmp_path) if isinstance(entry, record.Event)]
    assert [(each["reason"], each["from"], each["count"]) for each in told] == [
        ("MODEL_NOT_FOUND", "tenant acme", 1), ("KEY_UNKNOWN", "10.1.2.0/24", 1),
    ]  # fmt: skip
    assert real.output(recorded, Output(0, (b"x",)), AT) is None
    assert real.settled(recorded, Output(1, ()), Outcome(OutcomeKind.COMPLETED), Usage(), END) is None


def test_a_disk_full_for_a_moment_at_a_calls_end_leaves_no_call_open(tmp_path: Path) -> None:
    files, fakes = FaultyFiles(), FakePorts()
    journal = open_journal(tmp_path, files=files)
    governor = Governor(Ports(fakes, fakes, fakes, fakes, recorder(journal), FakeInstruments()))
    recorded = governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    governor.deliver(recorded, b"hello", AT)
    files.fail["pwrite"] = errno.ENOSPC
    told = governor.settle(recorded, Outcome(OutcomeKind.COMPLETED), END)
    assert told is not None
    governor.sweep(END)
    assert journal.open_calls == 1
    files.fail.clear()
    governor.sweep(END)
    assert journal.open_calls == 0, "its segment could never be released"
    _, settled = kept(tmp_path)
    assert isinstance(settled, record.Settled)
    assert (settled.outcome, settled.reason, settled.at_ns) == ("failed", "AUDIT_UNAVAILABLE", END.wall_ns)
    assert (settled.texts, settled.output_sha256) == ([b"hello"], hashlib.sha256(b"hello").digest())


def test_a_faulted_journal_refuses_everything(tmp_path: Path) -> None:
    files = FaultyFiles()
    real, recorded = recorder(open_journal(tmp_path, files=files)), Recorded(admission(), AT)
    real.admitted(recorded.admission, AT)
    files.fail["pwrite"] = errno.EIO
    outcome = Outcome(OutcomeKind.COMPLETED)
    answers = [
        real.output(recorded, Output(0, (b"x",)), AT),
        real.settled(recorded, Output(0, ()), outcome, Usage(), END),
        real.admitted(admission(), AT),
        real.event("k", "a", {}),
    ]
    assert [answer.reason for answer in answers if answer is not None] == [Reason.AUDIT_UNAVAILABLE] * 4


def test_strict_calls_wait_for_the_disk_and_batch_calls_do_not(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    real = recorder(journal)
    batch, strict = admission(), admission(durability=Durability.STRICT)
    real.admitted(batch, AT)
    assert real.durable(Recorded(batch, AT)) is None
    real.admitted(strict, AT)
    future = real.durable(Recorded(strict, AT))
    assert future is not None
    assert not future.done()
    journal.tick(0.0)
    assert future.result(0) is None
    always = recorder(journal, durability=Durability.STRICT)
    always.admitted(batch, AT)
    waits = always.durable(Recorded(batch, AT))
    assert waits is not None
    files.fail["fsync"] = errno.EIO
    journal.tick(1.0)
    denial = waits.result(0)
    assert denial is not None
    assert denial.reason is Reason.AUDIT_UNAVAILABLE
    assert real.durable(Recorded(admission(durability=Durability.BATCH), AT)) is None


@pytest.mark.parametrize(
    ("mode", "copies", "there", "waits"),
    [
        (Durability.BATCH, None, True, ""),
        (Durability.BATCH, None, False, ""),
        (Durability.STRICT, None, False, "disk"),
        (Durability.STRICT, None, True, "copy"),
        (Durability.STRICT, (), True, "disk"),
        (Durability.BATCH, ("",), True, "copy"),
        (Durability.STRICT, ("outside",), True, "copy"),
        (Durability.BATCH, ("",), False, "refused"),
        (Durability.STRICT, ("outside",), False, "refused"),
    ],
)
def test_who_waits_for_a_copy(
    tmp_path: Path, mode: Durability, copies: tuple[str, ...] | None, there: bool, waits: str
) -> None:
    journal, store = open_journal(tmp_path), MemoryObjects()
    if there:
        copier = Copier(CopyTo(store), tmp_path, journal.identity, ORIGIN, 60.0, monotonic=lambda: 0.0, wall_ns=wall_ns)
        journal.copiers = {"outside": copier}
    real = recorder(journal)
    call = admission(durability=mode, copies=copies)
    assert real.admitted(call, AT) is None
    future = real.durable(Recorded(call, AT))
    if not waits:
        assert future is None
        return
    assert future is not None
    if waits == "refused":
        denial = future.result(0)
        assert denial is not None
        assert (denial.reason, denial.retry_after) == (Reason.AUDIT_UNAVAILABLE, 1.0)
        assert "audit.journal.copy names nowhere" in denial.internal
        return
    assert not future.done()
    journal.sync()
    assert future.done() is (waits == "disk")
    for each in journal.copiers.values():
        each.turn()
    assert future.result(0) is None


def test_a_crash_leaves_aborted_outcomes_with_what_was_journaled(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    real, recorded = recorder(journal), Recorded(admission(), AT)
    ended = replace_id(admission(), "call-2")
    real.admitted(recorded.admission, AT)
    real.admitted(ended, AT)
    real.output(recorded, Output(0, (b"so ", b"far")), Instant(5_000, 0))
    real.settled(Recorded(ended, AT), Output(0, ()), Outcome(OutcomeKind.COMPLETED), Usage(), END)
    crash(journal)
    again = open_journal(tmp_path)
    assert recorder(again).recovered() is None
    aborted, opened = kept(tmp_path)[-2:]
    assert isinstance(aborted, record.Settled)
    assert (aborted.call_id, aborted.outcome, aborted.status) == ("call-1", "aborted", Code.UNAVAILABLE)
    assert (aborted.output_bytes, aborted.offset, aborted.texts) == (6, 6, [])
    assert aborted.output_sha256 == hashlib.sha256(b"so far").digest()
    assert (aborted.duration_ns, aborted.at_ns) == (4_000, END.wall_ns)
    assert isinstance(opened, record.Event)
    assert (opened.kind, opened.detail["aborted"], opened.detail["copied_to"]) == ("journal_opened", 1, "")
    crash(again)
    third = open_journal(tmp_path)
    assert third.recovery.open_calls == (), "aborted once"


@pytest.mark.parametrize(
    "who",
    [
        PRINCIPAL, Principal("acme", "alice", "jwt", issuer="https://idp"),
        Principal("acme", "spiffe://a/b", "certificate", issuer="CN=ca"),
    ],
    ids=["key", "token", "certificate"],
)  # fmt: skip
def test_whom_a_call_is_counted_as_is_found_again(tmp_path: Path, who: Principal) -> None:
    journal = open_journal(tmp_path)
    took = replace(admission(), principal=who)
    recorder(journal).admitted(took, AT)
    crash(journal)
    (call,) = open_journal(tmp_path).recovery.past
    assert (call.key, call.key_name) == (who.counted_as, who.name if who.kind == "api_key" else "")


def test_what_calls_took_and_what_they_may_still_hold_is_found_again(tmp_path: Path) -> None:
    """Over one crash and another, over segments that hold no open call, and after a call's own end."""
    clock = [10**18]
    tiny = replace_bounds(segment_bytes=2048)
    journal = open_journal(tmp_path, bounds=tiny, wall_ns=lambda: clock[0])
    real, began = recorder(journal), Instant(clock[0], 0)
    took = replace(admission(), reservation=Reservation("acme", "chat", Demand(30, 4096, 8), AT))
    ended, cancelled, cut_off = (Recorded(replace_id(took, name), AT) for name in ("ended", "cancelled", "cut off"))
    cancelled.holds_ns = 60 * 10**9
    for each in (ended, cancelled, cut_off):
        real.admitted(each.admission, began)
    usage, done = Usage(10, 12, responses=3, duration_ns=5), Outcome(OutcomeKind.COMPLETED)
    for each in (ended, cancelled):
        real.settled(each, Output(0, ()), done, usage, began)
    for n in range(40):  # so that the newest segment begins long after them
        real.event("filler", "test", {"n": n, "text": "x" * 100})
    crash(journal)
    clock[0] += 30 * 10**9
    again = open_journal(tmp_path, bounds=tiny, wall_ns=lambda: clock[0])
    found = {call.call_id: call for call in again.recovery.past}
    assert list(found) == ["ended", "cancelled", "cut off"]
    assert {(call.tenant, call.model, call.reserved) for call in found.values()} == {("acme", "chat", (30, 4096, 8))}
    assert [(call.tokens, call.responses) for call in found.values()] == [(22, 3), (22, 3), (0, 0)]
    assert [call.holds_until_ns for call in found.values()] == [0, began.wall_ns + 60 * 10**9, 0]
    assert found["cut off"].ended_ns is None
    assert {call.key for call in found.values()} == {took.principal.counted_as}
    hour = 3600 * 10**9
    later = JournalRecorder(
        again, content_bytes=100, durability=Durability.BATCH, new_id=lambda: "e", now=lambda: Instant(clock[0], 0)
    )
    assert later.recovered(lambda model: {"chat": 2 * hour}[model]) is None
    crash(again)
    clock[0] += hour + 1
    third = open_journal(tmp_path, bounds=tiny, wall_ns=lambda: clock[0])
    (held,) = third.recovery.past  # of the others no limit knows any more
    assert (held.call_id, held.holds_until_ns - clock[0]) == ("cut off", hour - 1)


def test_what_was_seen_to_be_over_at_triton_is_not_held_again(tmp_path: Path) -> None:
    """Of that model, and of before that moment, alone."""
    journal, second = open_journal(tmp_path, wall_ns=lambda: 10**18), 10**9
    real = recorder(journal)
    for name, model, ended_s in (("over", "chat", 1), ("later", "chat", 3), ("another", "rag", 1)):
        admitted = replace_id(admission(facts=replace(FACTS, model=model)), name)
        recorded = Recorded(admitted, AT)
        recorded.holds_ns = 600 * second
        real.admitted(admitted, Instant(10**18, 0))
        ended = Instant(10**18 + ended_s * second, 0)
        real.settled(recorded, Output(0, ()), Outcome(OutcomeKind.CANCELLED), Usage(), ended)
    real.event(ENGINE_IDLE, "serve", {"model": "chat", "calls": 1, "at_ns": 10**18 + 2 * second})
    crash(journal)
    again = open_journal(tmp_path, wall_ns=lambda: 10**18 + 4 * second)
    assert {call.call_id: bool(call.holds_until_ns) for call in again.recovery.past} == {
        "over": False, "later": True, "another": True,
    }  # fmt: skip


def test_of_more_than_is_quickly_read_only_the_newest_is(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, bounds=replace_bounds(segment_bytes=1024), wall_ns=lambda: 10**18)
    real = recorder(journal)
    for n in range(200):
        each = Recorded(replace_id(admission(), f"call-{n}"), AT)
        real.admitted(each.admission, Instant(10**18, 0))
        real.settled(each, Output(0, ()), Outcome(OutcomeKind.COMPLETED), Usage(), Instant(10**18, 0))
    crash(journal)
    found = [call.call_id for call in open_journal(tmp_path, wall_ns=lambda: 10**18).recovery.past]
    assert 0 < len(found) < 20
    assert found[-1] == "call-199"


def replace_bounds(**changes: Any) -> Bounds:
    return dataclasses.replace(ROOMY, **changes)


def replace_id(value: Admission, call_id: str) -> Admission:
    return replace(value, call=replace(value.call, id=call_id))


def test_damage_found_at_start_is_an_event(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    real = recorder(journal)
    for _ in range(3):
        real.event("bundle_loaded", "serve", {"digest": "d"})
    crash(journal)
    (path,) = tmp_path.glob("*.seg")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 60] ^= 1
    path.write_bytes(data)
    again = open_journal(tmp_path)
    assert recorder(again).recovered() is None
    events = [entry for entry in kept(tmp_path) if isinstance(entry, record.Event)]
    assert "journal_fault" in [event.kind for event in events]


def test_calls_without_a_message_are_recorded_by_their_profile(tmp_path: Path) -> None:
    assert recorder(open_journal(tmp_path)).admitted(admission(facts=NO_FACTS), AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Admitted)
    assert (entry.call.model, entry.call.prompt, entry.call.tensors) == ("chat", record.Content(), [])


def test_an_alias_and_the_version_picked_are_recorded_with_what_answered(tmp_path: Path) -> None:
    picked = Route("2", RouteKind.CANARY, "in 10% of canary 2 by principal")
    routed = replace(verdict(), profile=ModelProfile("chat-small"), alias="chat", route=picked)
    assert recorder(open_journal(tmp_path)).admitted(replace(admission(), verdict=routed), AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Admitted)
    call = entry.call
    assert (call.model, call.alias) == ("chat-small", "chat")
    assert (call.routed_version, call.route, call.route_why) == ("2", "canary", picked.why)


@pytest.mark.parametrize(
    ("computed", "stated", "answered", "recorded_digest"),
    [
        ({("chat", "2"): "sha256:c"}, {"2": "sha256:s"}, "2", "sha256:c"),
        ({}, {"2": "sha256:s"}, "2", "sha256:s"),
        ({("chat", "1"): "sha256:c"}, {"1": "sha256:s"}, "2", ""),
        ({("chat", ""): "sha256:c"}, {}, "", ""),
    ],
)
def test_the_digest_is_of_the_version_that_answered(
    tmp_path: Path,
    computed: dict[tuple[str, str], str],
    stated: dict[str, str],
    answered: str,
    recorded_digest: str,
) -> None:
    real = JournalRecorder(
        open_journal(tmp_path), content_bytes=9, durability=Durability.BATCH, new_id=lambda: "e", now=lambda: END,
        model_digest=lambda model, version: computed.get((model, version), ""),
    )  # fmt: skip
    known = replace(admission(), verdict=replace(verdict(), profile=ModelProfile("chat", digests=stated)))
    usage = Usage(model_version=answered)
    assert real.settled(Recorded(known, AT), Output(0, ()), Outcome(OutcomeKind.COMPLETED), usage, END) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, record.Settled)
    assert entry.model_digest == recorded_digest


def short_of_space(journal: Journal, files: FaultyFiles, at: float, *, used: float) -> None:
    """So that ``used`` of the journal's capacity is held."""
    files.free_bytes = ROOMY.min_free + int(journal.nbytes * (1 / used - 1))
    journal.tick(at)


def test_under_pressure_the_content_of_those_who_allow_it_is_a_length_and_a_digest(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    real = recorder(journal)
    assert isinstance(journal.append(b"x" * 200_000), int)
    whole, before = admission(), Recorded(admission(on_pressure=OnPressure.SHED), AT)
    before.admission = replace(before.admission, call=replace(CALL, id="before"))
    real.admitted(before.admission, AT)
    assert real.output(before, Output(0, (b"early ",)), AT) is None
    short_of_space(journal, files, 1.0, used=0.85)
    assert journal.pressure is Pressure.SHED
    journal._shares.measure(1 << 40, tight=False)  # nobody is over a share: it is the journal that is short
    shed = admission(on_pressure=OnPressure.SHED)
    shed = replace(shed, call=replace(CALL, id="shed"))
    for each in (whole, shed):
        recorded = Recorded(each, AT)
        assert real.admitted(each, AT) is None
        assert real.output(recorded, Output(0, (b"words ",)), AT) is None
        assert real.settled(recorded, Output(6, (b"more",)), Outcome(OutcomeKind.COMPLETED), Usage(), END) is None
    assert real.output(before, Output(6, (b"late ",)), AT) is None
    files.free_bytes = None
    journal.tick(2.0)
    assert journal.pressure is Pressure.NONE
    assert real.output(before, Output(11, (b"later",)), AT) is None
    assert real.settled(before, Output(16, (b"last",)), Outcome(OutcomeKind.COMPLETED), Usage(), END) is None
    found = {call_id: kept_of(tmp_path, call_id) for call_id in (CALL.id, "shed", "before")}
    assert found[CALL.id] == ("full", True, b"words more")
    assert found["shed"] == ("metadata", False, b"")
    assert found["before"] == ("full", True, b"early "), "no hole: what was shed is at the end"
    assert real.shed_calls == 2
    assert not real._shed


def test_what_was_never_journaled_is_not_remembered_as_shed(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    real = recorder(journal)
    journal._shares.measure(1000, tight=False)
    journal._shares.add("acme", 1000)
    shed = admission(on_pressure=OnPressure.SHED)
    short_of_space(journal, files, 1.0, used=2.0)
    assert real.admitted(shed, AT) is not None
    assert not real._shed
    observed = Recorded(shed, AT, enforce=False)
    observed.in_journal = False
    assert real.output(observed, Output(0, (b"words",)), AT) is None
    files.fail["pwrite"] = errno.EIO
    assert real.settled(observed, Output(5, ()), Outcome(OutcomeKind.COMPLETED), Usage(), END) is not None
    assert not real._shed


def kept_of(directory: Path, call_id: str) -> tuple[str, bool, bytes]:
    """The level that a call's record says, whether it has the prompt, and its output."""
    level, prompt, output = "", False, b""
    for entry in map(record.decode, (data for _, data in entries(directory)[1:])):
        match entry:
            case record.Admitted(call=facts) if facts.call_id == call_id:
                level, prompt = facts.level, facts.prompt.parts is not None
                assert facts.prompt.nbytes
                assert len(facts.prompt.sha256) == 32
            case record.Output() | record.Settled() if entry.call_id == call_id:
                output += b"".join(entry.texts)
            case _:
                pass
    return level, prompt, output


def test_a_tenant_over_its_share_is_refused_or_shed_and_others_go_on(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    real = recorder(journal)
    journal._shares.measure(1000, tight=False)
    assert real.admitted(admission(), AT) is None
    journal._shares.add("acme", 1000)
    denial = real.admitted(admission(), AT)
    assert denial is not None
    assert (denial.reason, denial.internal) == (
        Reason.AUDIT_UNAVAILABLE, "acme holds more of the journal than its share",
    )  # fmt: skip
    assert real.admitted(admission(on_pressure=OnPressure.SHED), AT) is None
    other = admission()
    assert real.admitted(replace(other, principal=replace(PRINCIPAL, tenant="birch")), AT) is None
    assert real.refused(Refused(CALL, Denial(Reason.MODEL_NOT_FOUND), "digest", PRINCIPAL), AT) is None
    assert real.folded_refusals == 1


def test_a_flood_without_credentials_is_recorded_by_example_and_count(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    real = recorder(journal)
    for _ in range(1000):
        assert real.refused(Refused(CALL, Denial(Reason.KEY_UNKNOWN), "digest"), AT) is None
    real.fold(AT)
    assert len(kept(tmp_path)) == folding.WHOLE
    real.fold(Instant(AT.wall_ns + int(folding.WINDOW_S * 1e9), AT.mono_ns))
    event = kept(tmp_path)[-1]
    assert isinstance(event, record.Event)
    assert (event.kind, event.detail["count"], event.detail["reason"]) == ("refusals_counted", 900, "KEY_UNKNOWN")


def test_a_mended_journal_says_so_once(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    real = recorder(journal)
    assert real.admitted(admission(), AT) is None
    segments_in(tmp_path)[0][1].unlink()
    journal.tick(1.0)
    journal.tick(2.5)
    (fault,) = real.mended()
    assert fault.kind is FaultKind.DELETED
    assert real.mended() == ()
    event = kept(tmp_path)[-1]
    assert isinstance(event, record.Event)
    assert (event.kind, event.detail["kind"], event.detail["rescued"], event.detail["lost"]) == (
        "journal_mended", "deleted", 1, 0,
    )  # fmt: skip


# --- which database ------------------------------------------------------------------------------------------------


def test_every_entry_of_a_call_says_which_database_it_is_for(tmp_path: Path) -> None:
    made = admission()
    recorded = Recorded(replace(made, verdict=replace(made.verdict, store="US")), AT)
    journal = open_journal(tmp_path)
    real = recorder(journal)
    recorded.count(ResponseFacts(texts=(b"an answer",)), AT)
    assert real.admitted(recorded.admission, AT) is None
    assert real.output(recorded, Output(0, (b"an ",)), AT) is None
    assert real.settled(recorded, Output(3, (b"answer",)), Outcome(OutcomeKind.COMPLETED), Usage(), END) is None
    refused = Refused(CALL, Denial(Reason.RATE_TOKENS), "digest", PRINCIPAL, store="US")
    assert real.refused(refused, AT) is None
    assert [record.store_of(entry) for entry in kept(tmp_path)] == ["US"] * 4
    assert real.event("bundle_loaded", "serve", {}) is None
    assert record.store_of(kept(tmp_path)[-1]) == ""


def test_what_a_crash_cut_off_ends_in_the_database_that_it_began_in(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    made = admission()
    assert recorder(journal).admitted(replace(made, verdict=replace(made.verdict, store="US")), AT) is None
    crash(journal)
    assert recorder(open_journal(tmp_path)).recovered() is None
    aborted, opened = kept(tmp_path)[-2:]
    assert isinstance(aborted, record.Settled)
    assert (aborted.outcome, record.store_of(aborted), record.store_of(opened)) == ("aborted", "US", "")


def test_refusals_that_are_only_counted_are_told_to_their_tenants_database(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    real = recorder(journal)
    journal.over = bool  # type: ignore[method-assign]
    for store in ("US", "US", "EU"):
        denial = Denial(Reason.RATE_TOKENS)
        assert real.refused(Refused(CALL, denial, "digest", PRINCIPAL, store=store), AT) is None
    real.fold(END, last=True)
    told = [(entry.store, entry.detail["count"]) for entry in kept(tmp_path) if isinstance(entry, record.Event)]
    assert told == [("US", 2), ("EU", 1)]


def test_one_tenants_large_prompts_fill_its_own_share_and_its_refusals_are_counted(tmp_path: Path) -> None:
    """The others go on all the while; of the refused calls one event tells how many there were."""
    bounds = replace_bounds(max_bytes=8 * 2**20, min_free=2**16, segment_bytes=2**20)
    journal, fakes = open_journal(tmp_path, bounds=bounds), FakePorts()
    real = recorder(journal)
    governor = Governor(Ports(fakes, fakes, fakes, fakes, real, FakeInstruments()))
    large = replace(FACTS, prompts=(bytes(10 * 2**20),))
    told = []
    for number in range(20):
        for tenant, facts in (("flood", large), ("modest", FACTS)):
            call = replace_id(admission(facts=facts), f"{tenant}-{number}")
            held = fakes.reserve(tenant, "chat", Limits(), Demand(), AT, enforce=True)
            assert isinstance(held, Reservation)
            call = replace(call, principal=replace(call.principal, tenant=tenant), reservation=held)
            told.append((tenant, governor.record(call, AT)))
        journal.tick(float(number))
    refused = [tenant for tenant, each in told if isinstance(each, Refused)]
    assert set(refused) == {"flood"}
    assert 10 < len(refused) < 18
    assert journal.nbytes < 7 * 2**20
    real.fold(AT, last=True)
    counted = [each for each in kept(tmp_path) if isinstance(each, record.Event) and each.kind == "refusals_counted"]
    assert [(each.detail["from"], each.detail["count"]) for each in counted] == [("tenant flood", len(refused))]

"""The order of governance (DESIGN §4), and that a call is settled exactly once whatever fails."""

from __future__ import annotations

import hashlib
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.core.governor import Mode, Output, Recorded, Refused
from sidecar.core.model import (
    Admission,
    Allowance,
    Demand,
    Denial,
    Limits,
    MalformedRequest,
    Method,
    Outcome,
    OutcomeKind,
    Principal,
    Quantity,
    Reservation,
    ResponseFacts,
    Usage,
)
from sidecar.core.reasons import Code, Reason
from sidecar.core.recorded import OUTPUT_LAG_BYTES, OUTPUT_LAG_NS, UNWRITTEN_BYTES
from sidecar.runtime.lifecycle import SWEEP
from tests.support.core import AT, LOAD, ORDER, READY, SHARED, UNKNOWN, FakePorts, Stage, a_call, later, observing

DONE = Outcome(OutcomeKind.COMPLETED)
NO_AUDIT = Denial(Reason.AUDIT_UNAVAILABLE, retry_after=1.0, internal="disk full")


# --- the order ----------------------------------------------------------------------------------------------------


def test_every_step_comes_in_the_order_of_the_design_and_the_record_last() -> None:
    stage = Stage()
    recorded = stage.governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    assert stage.ports.steps == [*ORDER, "journal admitted"]
    assert recorded.admission.forward.message == b"request"
    assert recorded.admission.reservation.demand == Demand(tokens=7)
    assert stage.governor.in_flight == 1
    assert stage.instruments.counted == [("admitted", "c-1")]


@pytest.mark.parametrize("step", ["identify", "authorise", "isolate", "reserve"])
def test_a_refusal_stops_all_later_steps_and_reserves_nothing(step: str) -> None:
    denial = Denial(Reason.POLICY_FORBIDS, step)
    stage = Stage(FakePorts(denials={step: denial}))
    refused = stage.governor.open(a_call(), AT)
    assert isinstance(refused, Refused)
    assert refused.denial is denial
    assert stage.ports.steps == [*ORDER[: ORDER.index(step) + 1], "journal refused"]
    assert not stage.ports.held
    assert stage.governor.in_flight == 0
    assert stage.instruments.counted == [("refused", Reason.POLICY_FORBIDS)]


@pytest.mark.parametrize("step", ["head", "facts"])
def test_a_message_that_has_not_one_reading_is_refused_where_it_is_read(step: str) -> None:
    fault = MalformedRequest("model_name twice", Reason.REQUEST_AMBIGUOUS)
    stage = Stage(FakePorts(faults={step: fault}))
    refused = stage.governor.open(a_call(), AT)
    assert isinstance(refused, Refused)
    assert refused.denial == Denial(Reason.REQUEST_AMBIGUOUS, "model_name twice", rule="message")
    assert stage.ports.steps == [*ORDER[: ORDER.index(step) + 1], "journal refused"]
    assert not stage.ports.held


def test_bad_headers_are_told_after_the_credential_and_before_the_message() -> None:
    fault = Denial(Reason.REQUEST_AMBIGUOUS, "x-data-class is given 2 times")
    stage = Stage()
    refused = stage.governor.admit(a_call(fault=fault), AT)
    assert isinstance(refused, Refused)
    assert refused.denial is fault
    assert stage.ports.steps == ["identify"]
    stranger = Stage(FakePorts(denials={"identify": Denial(Reason.KEY_UNKNOWN)}))
    told = stranger.governor.admit(a_call(fault=fault), AT)
    assert isinstance(told, Refused)
    assert told.denial.reason is Reason.KEY_UNKNOWN


def test_no_credential_is_refused_without_asking_anybody() -> None:
    denial = Denial(Reason.CREDENTIAL_MISSING)
    stage = Stage()
    refused = stage.governor.admit(a_call(credential=denial), AT)
    assert isinstance(refused, Refused)
    assert (refused.denial, refused.principal) == (denial, None)
    assert stage.ports.steps == []


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (UNKNOWN, Reason.METHOD_UNKNOWN),
        (SHARED, Reason.METHOD_NOT_ALLOWED),
        (LOAD, Reason.METHOD_NOT_ALLOWED),  # its roles are not the caller's
    ],
)
def test_the_method_table_decides_before_the_policy(method: Method, reason: Reason) -> None:
    stage = Stage()
    refused = stage.governor.admit(a_call(method=method), AT)
    assert isinstance(refused, Refused)
    assert (refused.denial.reason, refused.denial.rule) == (reason, "method-table")
    assert "authorise" not in stage.ports.steps


@pytest.mark.parametrize("step", ["identify", "head", "authorise", "facts", "isolate", "reserve"])
def test_a_refusal_says_whose_database_keeps_it_as_soon_as_its_tenant_is_known(step: str) -> None:
    denial = Denial(Reason.POLICY_FORBIDS)
    faults = {step: MalformedRequest("twice")} if step in ("head", "facts") else {}
    ports = FakePorts(denials={} if faults else {step: denial}, faults=faults, stores={"acme": "US"})
    refused = Stage(ports).governor.admit(a_call(), AT)
    assert isinstance(refused, Refused)
    assert refused.store == ("" if step == "identify" else "US")


def test_what_the_wire_could_not_read_goes_to_its_tenants_database_too() -> None:
    stage = Stage(FakePorts(stores={"acme": "US"}))
    assert stage.governor.reject(a_call(), Denial(Reason.REQUEST_TOO_LARGE), AT).store == "US"
    missing = a_call(credential=Denial(Reason.CREDENTIAL_MISSING))
    assert stage.governor.reject(missing, Denial(Reason.REQUEST_TOO_LARGE), AT).store == ""


def test_what_would_be_refused_is_observed_in_its_tenants_database() -> None:
    ports = FakePorts(denials={"authorise": Denial(Reason.POLICY_FORBIDS)}, stores={"acme": "US"})
    admission = Stage(ports, mode=Mode.OBSERVE).governor.admit(a_call(), AT)
    assert isinstance(admission, Admission)
    assert admission.verdict.store == "US"


def test_what_is_no_inference_is_not_read_and_asks_for_nothing_but_a_slot() -> None:
    stage = Stage()
    admission = stage.governor.admit(a_call(method=READY), AT)
    assert isinstance(admission, Admission)
    assert stage.ports.steps == ["identify", "head", "authorise", "isolate", "reserve"]
    assert admission.reservation.demand == Demand()


@pytest.mark.parametrize(("step", "given_up"), [("reserve", 1), ("journal admitted", 1), ("isolate", 0), ("", 0)])
def test_what_isolation_set_up_for_a_refused_call_is_given_up(step: str, given_up: int) -> None:
    denials = {step: Denial(Reason.RATE_TOKENS, retry_after=2.0)} if step else {}
    stage = Stage(FakePorts(denials=denials))
    stage.governor.open(a_call(), AT)
    assert [each[:2] for each in stage.ports.given_up] == [(stage.ports.who.tenant, "chat")] * given_up  # type: ignore[union-attr]


# --- the record ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_recorded_is_not_forwarded_and_gives_back_what_it_held() -> None:
    stage = Stage(FakePorts(denials={"journal admitted": NO_AUDIT}))
    refused = stage.governor.open(a_call(), AT)
    assert isinstance(refused, Refused)
    assert refused.denial is NO_AUDIT
    assert (refused.head.model, refused.head.version, refused.principal) == ("chat", "1", stage.ports.who)
    # Of a tenant over its share, or a full journal, the recorder counts it.
    assert stage.ports.steps[-3:] == ["journal admitted", "give back", "journal refused"]
    assert not stage.ports.held
    assert stage.governor.in_flight == 0
    assert stage.instruments.counted == [
        ("unrecorded", Reason.AUDIT_UNAVAILABLE),
        ("refused", Reason.AUDIT_UNAVAILABLE),
    ]


def test_a_crash_of_the_recorder_leaves_nothing_held() -> None:
    stage = Stage(FakePorts(faults={"journal admitted": ZeroDivisionError()}))
    with pytest.raises(ZeroDivisionError):
        stage.governor.open(a_call(), AT)
    assert not stage.ports.held
    assert stage.governor.in_flight == 0


def test_a_refusal_stands_even_if_it_cannot_be_recorded() -> None:
    stage = Stage(FakePorts(denials={"identify": Denial(Reason.KEY_UNKNOWN), "journal refused": NO_AUDIT}))
    refused = stage.governor.open(a_call(), AT)
    assert isinstance(refused, Refused)
    assert refused.denial.reason is Reason.KEY_UNKNOWN
    assert stage.instruments.counted == [
        ("unrecorded", Reason.AUDIT_UNAVAILABLE),
        ("refused", Reason.KEY_UNKNOWN),
    ]


# --- settlement ---------------------------------------------------------------------------------------------------


def test_settling_journals_the_outcome_and_gives_back_once() -> None:
    stage = Stage()
    recorded = stage.open()
    assert stage.governor.deliver(recorded, b"hello", later(2)) == ResponseFacts(
        texts=(b"hello",), model_version="1", nbytes=5, message=b"hello"
    )
    assert stage.governor.settle(recorded, DONE, later(5)) is None
    assert not stage.ports.held
    assert stage.governor.in_flight == 0
    _, entry = stage.ports.entries[-1]
    assert entry == (
        "c-1",
        Output(0, (b"hello",)),
        DONE,
        Usage(
            input_tokens=3,
            output_tokens=2,
            responses=1,
            request_bytes=7,
            response_bytes=5,
            first_response_ns=2_000_000,
            duration_ns=5_000_000,
            model_version="1",
        ),
    )
    assert recorded.output_sha256 == hashlib.sha256(b"hello").digest()
    assert stage.instruments.counted[-1] == ("settled", OutcomeKind.COMPLETED)


def test_what_a_call_holds_at_triton_after_its_end_is_given_back_once_triton_ended_it() -> None:
    """By its model's own bound; or once its engine was seen with nothing under way, after the call's end here."""
    stage = Stage()
    first, second = stage.open("c-1"), stage.open("c-2")
    for recorded, ms in ((first, 5), (second, 105)):
        stage.governor.settle(recorded, DONE, later(ms), running=True)
    bound = first.admission.verdict.profile.stops_ns
    assert first.holds_ns == bound
    assert (stage.governor.running_on, len(stage.ports.held)) == (2, 2)
    model = first.admission.verdict.profile.name
    assert stage.governor.idle_at_triton("another", later(200).mono_ns, later(200)) == 0
    assert stage.governor.idle_at_triton(model, later(50).mono_ns, later(200)) == 1
    assert (stage.governor.running_on, len(stage.ports.held)) == (1, 1)
    stage.governor.sweep(later(105 + bound / 1e6 - 1))
    assert stage.governor.running_on == 1
    stage.governor.sweep(later(105 + bound / 1e6))
    assert (stage.governor.running_on, len(stage.ports.held)) == (0, 0)


def test_what_was_let_in_before_a_crash_is_held_until_triton_ended_it() -> None:
    stage = Stage()
    roomy: list[bool] = []
    stage.governor.on_room = lambda: roomy.append(True)
    held = stage.ports.reserve("acme", "chat", Limits(), Demand(), AT, enforce=False)
    assert isinstance(held, Reservation)
    stage.governor.hold("of before", held, AT, later(1000).mono_ns)
    assert stage.governor.running_on == 1
    stage.governor.sweep(later(999))
    assert (stage.governor.running_on, roomy) == (1, [])
    stage.governor.sweep(later(1000))
    assert (stage.governor.running_on, roomy, stage.ports.held) == (0, [True], {})


def test_settling_twice_is_a_bug_and_gives_nothing_back_twice() -> None:
    stage = Stage()
    recorded = stage.open()
    stage.governor.settle(recorded, DONE, AT)
    with pytest.raises(RuntimeError, match="c-1 settled twice"):
        stage.governor.settle(recorded, DONE, AT)
    assert stage.ports.steps.count("give back") == 1
    assert stage.kinds == ["admitted", "settled"]


def test_an_outcome_that_cannot_be_journaled_is_told_and_counted_as_failed() -> None:
    stage = Stage(FakePorts(denials={"journal settled": NO_AUDIT}))
    recorded = stage.open()
    assert stage.governor.settle(recorded, DONE, AT) is NO_AUDIT
    assert not stage.ports.held
    assert stage.instruments.counted[-2:] == [
        ("unrecorded", Reason.AUDIT_UNAVAILABLE),
        ("settled", OutcomeKind.FAILED),
    ]


def test_an_outcome_that_could_not_be_journaled_is_journaled_by_a_later_sweep_as_it_was_told() -> None:
    stage = Stage(FakePorts(denials={"journal settled": NO_AUDIT}))
    recorded = stage.open()
    stage.governor.deliver(recorded, b"hello", later(2))
    stage.governor.settle(recorded, DONE, later(5))
    stage.governor.sweep(later(50))
    assert stage.kinds == ["admitted"]
    del stage.ports.denials["journal settled"]
    stage.governor.sweep(later(100))
    stage.governor.sweep(later(150))
    assert stage.kinds == ["admitted", "settled"]
    _, (call_id, output, outcome, usage) = stage.ports.entries[-1]  # type: ignore[misc]
    assert (call_id, output, usage.duration_ns) == ("c-1", Output(0, (b"hello",)), 5_000_000)
    assert outcome == Outcome(OutcomeKind.FAILED, Code.UNAVAILABLE, Reason.AUDIT_UNAVAILABLE, "disk full")
    counted = [kind for kind, _ in stage.instruments.counted]
    assert (counted.count("unrecorded"), counted.count("settled")) == (1, 1)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("kind", [OutcomeKind.COMPLETED, OutcomeKind.CANCELLED])
def test_what_the_client_was_told_anyway_stays_the_outcome(mode: Mode, kind: OutcomeKind) -> None:
    stage = Stage(FakePorts(denials={"journal settled": NO_AUDIT}), mode=mode)
    stage.governor.settle(stage.open(), Outcome(kind), AT)
    stage.ports.denials.clear()
    stage.governor.sweep(later(50))
    _, (_, _, outcome, _) = stage.ports.entries[-1]  # type: ignore[misc]
    cut = mode is Mode.ENFORCE and kind is OutcomeKind.COMPLETED
    assert outcome.kind is (OutcomeKind.FAILED if cut else kind)


def test_a_crash_of_the_recorder_at_the_end_leaves_no_call_open() -> None:
    stage = Stage()
    recorded = stage.open()
    stage.ports.faults["journal settled"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        stage.governor.settle(recorded, DONE, AT)
    assert stage.instruments.counted[-1] == ("settled", OutcomeKind.FAILED)
    stage.ports.faults.clear()
    stage.governor.sweep(later(50))
    _, (_, _, outcome, _) = stage.ports.entries[-1]  # type: ignore[misc]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, Reason.INTERNAL)


def test_an_ending_that_crashes_the_recorder_again_does_not_hold_up_the_others() -> None:
    stage = Stage(FakePorts(denials={"journal settled": NO_AUDIT}))
    for call_id in ("c-1", "c-2"):
        stage.governor.settle(stage.open(call_id), DONE, AT)
    stage.ports.faults["journal settled"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        stage.governor.sweep(later(50))
    stage.ports.faults.clear()
    stage.ports.denials.clear()
    stage.governor.sweep(later(100))
    assert [entry[0] for kind, entry in stage.ports.entries if kind == "settled"] == ["c-2"]  # type: ignore[index]


# --- output -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "ms", "journaled"),
    [
        (OUTPUT_LAG_BYTES - 1, 49.9, False),
        (OUTPUT_LAG_BYTES, 0, True),
        (1, 50, True),
    ],
)
def test_output_is_journaled_when_it_would_fall_behind(size: int, ms: float, journaled: bool) -> None:
    stage = Stage()
    recorded = stage.open()
    stage.governor.deliver(recorded, b"x" * size, later(ms))
    assert ("output" in stage.kinds) is journaled


def test_the_sweep_journals_what_is_50_ms_old_and_nothing_twice() -> None:
    stage = Stage()
    old, empty = stage.open("old"), stage.open("empty")
    stage.governor.deliver(old, b"a", later(1))
    stage.governor.sweep(later(49))
    assert stage.kinds == ["admitted", "admitted"]
    stage.governor.sweep(later(51))
    stage.governor.sweep(later(200))
    assert stage.ports.entries[2:] == [("output", ("old", Output(0, (b"a",))))]
    stage.governor.deliver(old, b"bc", later(201))
    stage.governor.settle(old, DONE, later(202))
    stage.governor.settle(empty, DONE, later(202))
    stage.governor.sweep(later(900))
    offsets = [entry[1].offset for kind, entry in stage.ports.entries if kind != "admitted"]  # type: ignore[index]
    assert offsets == [0, 1, 3, 0]


def test_output_that_cannot_be_journaled_cuts_the_call_off() -> None:
    stage = Stage()
    recorded = stage.open()
    stage.ports.denials["journal output"] = NO_AUDIT
    assert stage.governor.deliver(recorded, b"x", later(60)) is NO_AUDIT
    assert stage.instruments.counted[-1] == ("unrecorded", Reason.AUDIT_UNAVAILABLE)


def test_output_that_the_sweep_lost_cuts_the_call_off_too() -> None:
    stage = Stage()
    recorded = stage.open()
    assert isinstance(stage.governor.deliver(recorded, b"x", later(1)), ResponseFacts)
    stage.ports.denials["journal output"] = NO_AUDIT
    stage.governor.sweep(later(60))
    del stage.ports.denials["journal output"]
    assert stage.governor.deliver(recorded, b"y", later(61)) is NO_AUDIT


def test_a_call_whose_output_was_lost_is_not_told_completed() -> None:
    stage = Stage()
    recorded = stage.open()
    stage.governor.deliver(recorded, b"x", later(1))
    stage.ports.denials["journal output"] = NO_AUDIT
    stage.governor.sweep(later(60))
    assert stage.governor.settle(recorded, DONE, later(61)) is NO_AUDIT
    _, (_, _, outcome, _) = stage.ports.entries[-1]  # type: ignore[misc]
    assert outcome == Outcome(OutcomeKind.FAILED, Code.UNAVAILABLE, Reason.AUDIT_UNAVAILABLE, "disk full")


def test_output_that_could_not_be_journaled_in_time_stands_in_the_calls_ending() -> None:
    stage = Stage()
    recorded = stage.open()
    stage.governor.deliver(recorded, b"one ", later(1))
    stage.ports.denials["journal output"] = NO_AUDIT
    stage.governor.sweep(later(60))
    stage.governor.deliver(recorded, b"two ", later(61))
    del stage.ports.denials["journal output"]
    stage.governor.settle(recorded, DONE, later(62))
    _, (_, output, _, _) = stage.ports.entries[-1]  # type: ignore[misc]
    assert output == Output(0, (b"one ", b"two "))


def test_output_that_cannot_be_journaled_at_all_is_kept_within_a_bound() -> None:
    stage = Stage()
    recorded = stage.open()
    stage.ports.denials["journal output"] = NO_AUDIT
    for n in range(1, 20):
        stage.governor.deliver(recorded, b"x" * OUTPUT_LAG_BYTES, later(n))
        assert recorded._pending_bytes <= UNWRITTEN_BYTES


@given(st.lists(st.integers(0, 30), max_size=60))
def test_without_any_sweep_each_delivery_itself_keeps_the_journal_close(gaps: list[int]) -> None:
    """Invariant: when a message is sent, what is not journaled was sent in the last 50 ms, though no sweep runs."""
    stage, ms = Stage(), 0
    recorded = stage.open()
    sent: list[int] = []  # when each byte was
    for gap in gaps:
        ms += gap
        stage.governor.deliver(recorded, b"x", later(ms))
        sent.append(ms)
        journaled = sum(len(entry[1].texts) for kind, entry in stage.ports.entries if kind == "output")  # type: ignore[index]
        assert all(ms - at < OUTPUT_LAG_NS / 1e6 for at in sent[journaled:])


@given(st.lists(st.tuples(st.sampled_from(["send", "sweep"]), st.sampled_from([0, 1, 24, 44, 49, 120])), max_size=40))
@example([("send", 1), ("sweep", 44), ("sweep", 120)])  # too young for one sweep, and the next is late
def test_output_is_in_the_journal_100_ms_after_it_was_sent(steps: list[tuple[str, int]]) -> None:
    """Invariant: of what was sent 100 ms ago nothing is missing from the journal, though each sweep is 20 ms late."""
    stage, ms, swept = Stage(), 0, 0
    latest = int(SWEEP * 1000) + 20
    recorded = stage.open()
    sent: list[int] = []  # when each byte was

    def oldest_missing() -> int:
        written = sum(len(entry[1].texts) for kind, entry in stage.ports.entries if kind == "output")  # type: ignore[index]
        return min(sent[written:], default=ms)

    def sweep(at: int) -> None:
        nonlocal ms, swept
        ms = swept = at
        assert ms - oldest_missing() < 100
        stage.governor.sweep(later(ms))

    for step, gap in steps:
        then = ms + gap
        while then > swept + latest:
            sweep(swept + latest)
        ms = then
        if step == "sweep":
            sweep(ms)
        else:
            stage.governor.deliver(recorded, b"x", later(ms))
            sent.append(ms)
        assert ms - oldest_missing() < 100


@pytest.mark.parametrize("late", ["deliver", "settle"])
def test_the_sweep_is_never_overtaken_by_the_calls_own_thread(late: str) -> None:
    """What the sweep took first must be journaled first: behind the outcome nobody would join it to the call."""
    stage = Stage()
    recorded = stage.open()
    stage.governor.deliver(recorded, b"first", later(1))
    writing, go_on = threading.Event(), threading.Event()
    step = stage.ports._step

    def slow(name: str) -> Denial | None:
        if name == "journal output" and not writing.is_set():
            writing.set()
            assert go_on.wait(5)
        return step(name)

    stage.ports._step = slow  # type: ignore[method-assign]  # the disk, for once slow
    sweeper = threading.Thread(target=stage.governor.sweep, args=(later(60),))
    sweeper.start()
    assert writing.wait(5)

    def go_past() -> None:
        stage.governor.deliver(recorded, b"x" * OUTPUT_LAG_BYTES, later(61))
        if late == "settle":
            stage.governor.settle(recorded, DONE, later(62))

    own = threading.Thread(target=go_past)
    own.start()
    own.join(0.1)  # long enough for it to pass, if it could
    go_on.set()
    for thread in (sweeper, own):
        thread.join(5)
        assert not thread.is_alive()
    offsets = [entry[1].offset for kind, entry in stage.ports.entries if kind != "admitted"]  # type: ignore[index]
    assert offsets == sorted(offsets)
    assert offsets[:2] == [0, 5]


def test_who_comes_second_finds_nothing_to_journal() -> None:
    stage = Stage()
    recorded = stage.open()
    stage.governor.deliver(recorded, b"x", later(1))
    stage.governor.sweep(later(60))
    stage.governor._catch_up(recorded, later(61))  # as the other thread, which saw it lag before the sweep took it
    stage.governor.settle(recorded, DONE, later(200))
    stage.governor._catch_up(recorded, later(300))
    assert stage.kinds == ["admitted", "output", "settled"]


def test_two_threads_delivering_and_sweeping_journal_every_byte_once() -> None:
    stage = Stage()
    recorded = stage.open()
    over = threading.Event()

    def sweep() -> None:
        ms = 0.0
        while not over.is_set():
            stage.governor.sweep(later(ms := ms + 60))

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    for n in range(500):
        stage.governor.deliver(recorded, b"%d " % n, later(n))
    stage.governor.settle(recorded, DONE, later(1000))
    over.set()
    sweeper.join(5)
    assert journaled(stage) == b"".join(b"%d " % n for n in range(500))


def journaled(stage: Stage) -> bytes:
    """The one call's output, put together from its entries as the shipper does: by offset, in order."""
    found = b""
    for kind, entry in stage.ports.entries:
        if kind in ("output", "settled"):
            output: Output = entry[1]  # type: ignore[index]
            assert output.offset == len(found)
            found += b"".join(output.texts)
    return found


# --- observe ------------------------------------------------------------------------------------------------------


def test_the_reader_is_told_what_the_caller_may_know_of_and_all_of_it_to_observe() -> None:
    for stage, foreign in ((Stage(), False), (observing(), True)):
        recorded = stage.open()
        stage.governor.deliver(recorded, b"hello", AT)
        assert len(stage.ports.seen) == 2  # the request's and the response's
        for sees in stage.ports.seen:
            assert (sees("chat", ""), sees("foreign", "1")) == (True, foreign)


def test_observing_goes_on_without_the_journal() -> None:
    denials = {"journal admitted": NO_AUDIT, "journal output": NO_AUDIT, "journal settled": NO_AUDIT}
    stage = observing(denials=denials)
    recorded = stage.governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    assert isinstance(stage.governor.deliver(recorded, b"x", later(60)), ResponseFacts)
    assert stage.governor.settle(recorded, DONE, later(61)) is None
    assert [kind for kind, _ in stage.instruments.counted].count("unrecorded") == 3
    assert not stage.ports.held
    stage.ports.denials.clear()
    stage.governor.sweep(later(100))
    assert stage.ports.entries == []  # it was never open in the journal


def test_observing_still_refuses_for_the_credential_of_an_unreadable_message_by_the_wire() -> None:
    stage = observing(denials={"identify": Denial(Reason.KEY_UNKNOWN)})
    refused = stage.governor.reject(a_call(), Denial(Reason.REQUEST_TOO_LARGE), AT)
    assert refused.denial.reason is Reason.REQUEST_TOO_LARGE


# --- turning away, draining ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", Mode)
def test_a_draining_governor_refuses_new_calls_and_lets_the_old_ones_end(mode: Mode) -> None:
    stage = Stage(mode=mode)
    before = stage.open("before")
    stage.governor.drain()
    refused = stage.governor.open(a_call("after"), AT)
    assert isinstance(refused, Refused)
    assert refused.denial == Denial(Reason.DRAINING, retry_after=1.0)
    assert stage.governor.turns_away(a_call().credential, AT)
    assert stage.governor.in_flight == 1
    assert stage.governor.settle(before, DONE, AT) is None
    assert stage.governor.in_flight == 0


def test_who_is_unknown_is_turned_away_before_the_message_is_read() -> None:
    stage = Stage(FakePorts(denials={"identify": Denial(Reason.KEY_UNKNOWN)}))
    assert stage.governor.turns_away(a_call().credential, AT)
    assert stage.governor.turns_away(Denial(Reason.CREDENTIAL_MISSING), AT)
    assert not Stage().governor.turns_away(a_call().credential, AT)
    assert not observing().governor.turns_away(Denial(Reason.CREDENTIAL_MISSING), AT)
    assert stage.ports.entries == []


# --- what a credential narrows, and its withdrawal ----------------------------------------------------------------


def test_who_takes_a_keys_id_for_a_name_is_not_counted_as_that_key() -> None:
    whos = [
        Principal("acme", "laptop", "api_key", key_id="k3yk3yk3yk3y"),
        Principal("acme", "k3yk3yk3yk3y", "jwt"),
        Principal("acme", "k3yk3yk3yk3y", "certificate"),
        Principal("acme", "someone", "jwt", issuer="https://a"),
        Principal("acme", "someone", "jwt", issuer="https://b"),
    ]
    stages = [Stage(FakePorts(who=who)) for who in whos]
    for stage in stages:
        stage.open()
    counted = [key for stage in stages for key in stage.ports.counted]
    assert counted == [
        "k3yk3yk3yk3y", "jwt::k3yk3yk3yk3y", "certificate::k3yk3yk3yk3y",
        "jwt:https://a:someone", "jwt:https://b:someone",
    ]  # fmt: skip


def test_a_call_outside_of_its_credentials_scope_is_refused_before_any_policy_is_asked() -> None:
    stage = Stage(FakePorts(who=Principal("acme", "laptop", "api_key", methods=("ServerLive",))))
    refused = stage.governor.open(a_call(), AT)
    assert isinstance(refused, Refused)
    assert (refused.denial.reason, refused.denial.rule) == (Reason.METHOD_NOT_ALLOWED, "key.methods")
    assert "authorise" not in stage.ports.steps
    assert not stage.ports.held


@pytest.mark.parametrize("reason", Reason)
def test_only_a_revocation_ends_a_call_under_way(reason: Reason) -> None:
    stage, credential = Stage(FakePorts(denials={"identify": Denial(reason)})), a_call().credential
    found = stage.governor.revoked(credential, AT)
    assert (found is not None) is (reason in {Reason.KEY_REVOKED, Reason.TOKEN_REVOKED})


def test_what_is_in_order_or_only_observed_goes_on() -> None:
    revoked = {"identify": Denial(Reason.KEY_REVOKED)}
    assert Stage().governor.revoked(a_call().credential, AT) is None
    assert observing(denials=revoked).governor.revoked(a_call().credential, AT) is None
    assert Stage(FakePorts(denials=revoked)).governor.revoked(Denial(Reason.CREDENTIAL_MISSING), AT) is None


def test_who_may_do_nothing_is_turned_away_before_the_message_is_read() -> None:
    """Else a suspended tenant's valid key could fill the buffers that all share."""
    assert Stage(FakePorts(unserved=frozenset({"acme"}))).governor.turns_away(a_call().credential, AT)
    assert not observing(unserved=frozenset({"acme"})).governor.turns_away(a_call().credential, AT)


def test_a_tenant_that_may_do_nothing_is_told_so_though_its_message_was_not_read() -> None:
    ports = FakePorts(
        unserved=frozenset({"acme"}),
        denials={"authorise": Denial(Reason.TENANT_SUSPENDED)},
        faults={"head": MalformedRequest("no model")},
    )
    refused = Stage(ports).governor.open(a_call(message=b""), AT)
    assert isinstance(refused, Refused)
    assert refused.denial.reason is Reason.TENANT_SUSPENDED


def test_a_call_is_on_its_tenants_account_and_the_unknown_share_one() -> None:
    assert Stage().governor.tenant(a_call().credential, AT) == "acme"
    assert observing().governor.tenant(Denial(Reason.CREDENTIAL_MISSING), AT) == "(observed)"
    unknown = observing(denials={"identify": Denial(Reason.KEY_UNKNOWN)})
    assert unknown.governor.tenant(a_call().credential, AT) == "(observed)"


def test_what_is_left_before_any_call_is_told_to_those_whose_tenant_is_known() -> None:
    left = (Allowance(Quantity.REQUESTS, 20, 10, 20, 0),)
    asked = a_call().credential
    assert Stage(FakePorts(allowances=left)).governor.standing(asked, AT) == left
    assert Stage(FakePorts(allowances=left, unserved=frozenset({"acme"}))).governor.standing(asked, AT) == ()
    assert Stage(FakePorts(allowances=left)).governor.standing(Denial(Reason.CREDENTIAL_MISSING), AT) == ()
    denied = FakePorts(allowances=left, denials={"identify": Denial(Reason.KEY_UNKNOWN)})
    assert Stage(denied).governor.standing(asked, AT) == ()

"""What a decision in the making keeps: all that was known by a refusal, and the first one that observe let pass."""

from __future__ import annotations

import pytest

from sidecar.core.governor import OBSERVED, Mode, Recorded, Refused
from sidecar.core.model import (
    AuditLevel,
    AuditRule,
    Denial,
    MalformedRequest,
    replace,
)
from sidecar.core.reasons import Reason
from sidecar.core.routing import NO_ROUTE, WHOLE, Canary, Route, RouteKind
from tests.support.core import AT, ORDER, READY, FakePorts, Stage, a_call, observing

# --- refused ----------------------------------------------------------------------------------------------------------


def test_a_refusal_keeps_what_was_known_by_then() -> None:
    stage = Stage(FakePorts(denials={"reserve": Denial(Reason.RATE_TOKENS, retry_after=2.0)}))
    refused = stage.governor.admit(a_call(), AT)
    assert isinstance(refused, Refused)
    assert refused.principal is stage.ports.who
    assert (refused.head.model, refused.bundle) == ("chat", "sha256:fake")
    assert refused.verdict is not None
    assert refused.facts.prompts == (b"prompt",)
    unread = Stage(FakePorts(denials={"authorise": Denial(Reason.RESIDENCY_STORAGE)})).governor.admit(a_call(), AT)
    assert isinstance(unread, Refused)
    assert (unread.verdict, unread.facts.prompts) == (None, ())


def test_an_unreadable_message_is_recorded_with_its_caller() -> None:
    stage = Stage()
    too_large = Denial(Reason.REQUEST_TOO_LARGE)
    refused = stage.governor.reject(a_call(message=b""), too_large, AT)
    assert (refused.denial, refused.principal) == (too_large, stage.ports.who)
    assert stage.kinds == ["refused"]


def test_an_unreadable_message_of_a_stranger_is_refused_for_its_credential() -> None:
    stage = Stage(FakePorts(denials={"identify": Denial(Reason.KEY_REVOKED)}))
    refused = stage.governor.reject(a_call(), Denial(Reason.REQUEST_TOO_LARGE), AT)
    assert (refused.denial.reason, refused.principal) == (Reason.KEY_REVOKED, None)


# --- shadow -----------------------------------------------------------------------------------------------------------


def test_what_a_rule_in_shadow_would_refuse_goes_on_and_is_recorded_and_counted() -> None:
    shadow, over = Denial(Reason.POLICY_FORBIDS, rule="trial"), Denial(Reason.CONCURRENCY)
    stage = Stage(FakePorts(shadow=shadow, over=over))
    recorded = stage.open()
    assert recorded.admission.would_refuse is shadow
    assert recorded.admission.verdict.audit.level is AuditLevel.FULL, "the call is allowed, so its record is whole"
    assert ("would refuse", Reason.POLICY_FORBIDS) in stage.instruments.counted


# --- observe ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["identify", "authorise", "isolate", "reserve"])
def test_observing_enforces_nothing_and_records_what_it_would_have_refused(step: str) -> None:
    denial = Denial(Reason.POLICY_FORBIDS, step)
    stage = observing(denials={step: denial})
    recorded = stage.governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    assert recorded.admission.would_refuse is denial
    assert recorded.admission.forward.message == b"request"
    assert stage.ports.steps == [*ORDER, "journal admitted"]
    assert stage.instruments.counted == [("admitted", "c-1"), ("would refuse", Reason.POLICY_FORBIDS)]


def test_observing_refuses_what_could_end_the_server() -> None:
    denial = Denial(Reason.REQUEST_MALFORMED, "kills", always=True)
    stage = observing(denials={"isolate": denial})
    refused = stage.governor.open(a_call(), AT)
    assert isinstance(refused, Refused)
    assert refused.denial is denial
    assert stage.instruments.counted == [("refused", Reason.REQUEST_MALFORMED)]
    assert "reserve" not in stage.ports.steps


def test_observing_keeps_the_first_refusal() -> None:
    first, second = Denial(Reason.KEY_UNKNOWN), Denial(Reason.RATE_TOKENS)
    recorded = observing(denials={"identify": first, "reserve": second}).governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    assert recorded.admission.would_refuse is first
    assert recorded.admission.principal is OBSERVED


def test_observing_forwards_what_it_could_not_read() -> None:
    stage = observing(faults={"facts": MalformedRequest("field 9")})
    recorded = stage.governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    assert recorded.admission.would_refuse == Denial(Reason.REQUEST_MALFORMED, "field 9", rule="message")


@pytest.mark.parametrize(
    "reason",
    [
        Reason.RESIDENCY_STORAGE,
        Reason.MODEL_NOT_FOUND,  # told before residency is looked at
        Reason.TENANT_SUSPENDED,
        Reason.POLICY_FORBIDS,
    ],
)
@pytest.mark.parametrize("step", ["identify", "authorise"])
def test_observing_keeps_no_content_of_what_was_refused_before_residency_was_passed(step: str, reason: Reason) -> None:
    recorded = observing(denials={step: Denial(reason)}).governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    assert recorded.admission.verdict.audit.level is AuditLevel.METADATA
    assert not recorded.admission.verdict.may_trace


def test_observing_keeps_no_content_of_a_call_whose_headers_are_bad() -> None:
    fault = Denial(Reason.REQUEST_AMBIGUOUS, "x-data-class is given 2 times")
    kept = AuditRule(retention_days=30)
    recorded = observing(audit=kept).governor.open(a_call(fault=fault), AT)
    assert isinstance(recorded, Recorded)
    assert recorded.admission.verdict.audit == AuditRule(AuditLevel.METADATA, retention_days=30)


@pytest.mark.parametrize("step", ["isolate", "reserve"])
def test_observing_keeps_what_the_tenant_keeps_where_the_policy_allowed_the_call(step: str) -> None:
    kept = AuditRule(AuditLevel.PROMPT)
    recorded = observing(denials={step: Denial(Reason.RATE_TOKENS)}, audit=kept).governor.open(a_call(), AT)
    assert isinstance(recorded, Recorded)
    assert recorded.admission.verdict.audit == kept


# --- which model and version answers ----------------------------------------------------------------------------------


CANARY = Canary("2", "1", WHOLE)


@pytest.mark.parametrize(
    ("canary", "asked", "sequence", "picked"),
    [
        (None, "", 0, Route()),
        (CANARY, "", 0, Route("2", RouteKind.CANARY, "in 100% of canary 2 by principal")),
        (replace(CANARY, share=0), "", 0, Route("1", RouteKind.STABLE, "not in 0% of canary 2 by principal")),
        (CANARY, "7", 0, Route("", RouteKind.CLIENT, "the client asked for it")),
        (CANARY, "", 9, Route("1", RouteKind.STABLE, "a sequence stays out of 100% of canary 2")),
    ],
)
@pytest.mark.parametrize("mode", Mode)
def test_the_version_is_picked_before_isolation(
    mode: Mode, canary: Canary | None, asked: str, sequence: int, picked: Route
) -> None:
    parameters = {"sequence_id": sequence} if sequence else {}
    stage = Stage(FakePorts(canary=canary, version=asked, parameters=parameters), mode=mode)
    assert stage.open().admission.verdict.route == picked


def test_only_an_inference_has_its_version_picked() -> None:
    stage = Stage(FakePorts(canary=CANARY, version=""))
    recorded = stage.governor.open(a_call(method=READY), AT)
    assert isinstance(recorded, Recorded)
    assert recorded.admission.verdict.route is NO_ROUTE


def test_what_answers_for_an_alias_is_what_quotas_and_the_record_name() -> None:
    stage = Stage(FakePorts(aliases={"chat": "chat-small"}))
    admission = stage.open().admission
    assert (admission.verdict.profile.name, admission.verdict.alias) == ("chat-small", "chat")
    assert admission.reservation.model == "chat-small"


def test_what_isolation_would_refuse_goes_on_untouched_in_observe_to_what_the_client_named() -> None:
    refused = Denial(Reason.PARAMETER_NOT_ALLOWED)
    ports = FakePorts(aliases={"chat": "chat-small"}, canary=CANARY, version="", denials={"isolate": refused})
    admission = Stage(ports, mode=Mode.OBSERVE).open().admission
    assert admission.would_refuse == refused
    assert (admission.verdict.profile.name, admission.verdict.alias) == ("chat", "")
    assert admission.verdict.route is NO_ROUTE
    assert admission.forward.suffix == b""

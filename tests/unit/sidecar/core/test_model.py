"""The nouns: what they promise by themselves."""

from __future__ import annotations

import pickle

import pytest

from sidecar.core.model import (
    PROOF,
    Admission,
    AuditRule,
    Denial,
    Forward,
    Instant,
    Limits,
    MalformedRequest,
    ModelProfile,
    Reservation,
    Secret,
    TraceContext,
    Verdict,
)
from sidecar.core.model import Demand as Demanded
from sidecar.core.reasons import REASONS, Reason
from tests.support.core import ACME, AT, INFER, a_call


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret(b"hunter2")
    assert secret.reveal() == b"hunter2"
    for shown in (repr(secret), str(secret), f"{secret}", repr(a_call(credential=secret)), repr([secret])):
        assert "hunter2" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.mark.parametrize("forged", [None, object(), True])
def test_only_the_governor_makes_an_admission(forged: object) -> None:
    verdict = Verdict("rule", "sha256:0", ModelProfile("m"), Limits(), AuditRule())
    reservation = Reservation("acme", "m", Demanded(), AT)
    parts = (a_call(), ACME, verdict, None, Forward(b""), reservation, None)
    with pytest.raises(TypeError, match=r"only Governor\.admit"):
        Admission(*parts, forged)  # type: ignore[arg-type]  # what a forger would try
    assert "proof" not in repr(Admission(*parts, PROOF))  # type: ignore[arg-type]  # facts play no part


def test_a_denial_tells_the_tables_sentence_and_its_own_detail() -> None:
    row = REASONS[Reason.RATE_TOKENS]
    assert Denial(Reason.RATE_TOKENS).public == row.public
    assert Denial(Reason.RATE_TOKENS, "60000 a minute", internal="bucket -3").public == f"{row.public}: 60000 a minute"


def test_a_malformed_request_keeps_its_detail() -> None:
    fault = MalformedRequest("field 4")
    assert (fault.reason, fault.detail, str(fault)) == (Reason.REQUEST_MALFORMED, "field 4", "field 4")


def test_names_and_times_are_read_off_values() -> None:
    assert INFER.name == "ModelInfer"
    assert INFER.rpc == "inference.GRPCInferenceService/ModelInfer"
    assert Instant(1_500_000_000, 7).wall == 1.5


@pytest.mark.parametrize(("sampled", "flags"), [(True, "01"), (False, "00")])
def test_traceparent_is_the_55_characters_of_w3c(sampled: bool, flags: str) -> None:
    trace = TraceContext("a" * 32, "b" * 16, None, sampled)
    assert trace.traceparent == f"00-{'a' * 32}-{'b' * 16}-{flags}"
    assert len(trace.traceparent) == 55

"""The one rescue point: what a refusal looks like to a gRPC client, in a stream, and over HTTP."""

from __future__ import annotations

import base64
import json

import pytest
from google.rpc import error_details_pb2, status_pb2

from sidecar.core.model import Demand, Denial, Limits, RequestRate
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.quotas.local import REASON_OF, LocalQuotas
from sidecar.transports import render
from sidecar.triton.protos import ModelStreamInferResponse
from tests.support.core import AT

DENIAL = Denial(
    Reason.RATE_TOKENS,
    "60000 a minute",
    retry_after=1.5,
    rule="tenants/acme.yaml:limits",
    internal="bucket at -3",
    metadata=(("limit", "60000"),),
)
QUOTAS = {str(reason) for reason in REASON_OF.values()} | {"UPSTREAM_QUEUE_FULL"}


def details(status: render.Status) -> dict[str, object]:
    rich = status_pb2.Status.FromString(status.details)
    assert (rich.code, rich.message) == (status.code, status.message)
    found: dict[str, object] = {}
    for each in rich.details:
        kind = each.TypeName().rpartition(".")[2]
        message = getattr(error_details_pb2, kind)()
        each.Unpack(message)
        found[kind] = message
    return found


def test_a_quota_refusal_says_what_when_and_by_which_rule() -> None:
    status = render.status(DENIAL, "call-1")
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert status.message == "[RATE_TOKENS] token budget exceeded: 60000 a minute; retry in 1.5s"
    found = details(status)
    info, retry, failure = found["ErrorInfo"], found["RetryInfo"], found["QuotaFailure"]
    assert (info.reason, info.domain) == ("RATE_TOKENS", "warden")  # type: ignore[attr-defined]  # protobuf's own types
    assert dict(info.metadata) == {  # type: ignore[attr-defined]
        "call_id": "call-1",
        "rule": "tenants/acme.yaml:limits",
        "limit": "60000",
    }
    assert retry.retry_delay.ToMilliseconds() == 1500  # type: ignore[attr-defined]
    assert failure.violations[0].subject == "tenants/acme.yaml:limits"  # type: ignore[attr-defined]


def test_a_quotas_failure_names_whose_quota_it_is_and_says_so_once() -> None:
    limits, demand = Limits(concurrency=0), Demand()
    denial = LocalQuotas().reserve("acme", "chat", limits, demand, AT, enforce=True)
    assert isinstance(denial, Denial)
    found = details(render.status(denial, "call-1"))
    (violation,) = found["QuotaFailure"].violations  # type: ignore[attr-defined]
    assert violation.subject == "tenant:acme"
    assert violation.description == "concurrency 0 at once, which can never fit"
    assert dict(found["ErrorInfo"].metadata) == {  # type: ignore[attr-defined]
        "call_id": "call-1",
        "rule": "quota:concurrency",
        "quota": "concurrency",
        "limit": "0 at once",
    }


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_told_with_its_own_code_and_nothing_internal(reason: Reason) -> None:
    status = render.status(Denial(reason, internal="secret detail"), "c")
    assert status.code == REASONS[reason].code
    assert status.message == f"[{reason}] {REASONS[reason].public}"
    found = details(status)
    assert found["ErrorInfo"].reason == reason  # type: ignore[attr-defined]
    assert "RetryInfo" not in found
    assert ("QuotaFailure" in found) is (reason in QUOTAS)
    assert b"secret detail" not in status.details


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.001s"),
        (0.0004, "0.001s"),
        (0.439, "0.439s"),
        (1.5, "1.5s"),
        (12.3451, "12.346s"),
        (90.0, "90s"),
        (100.0, "100s"),
        (3599.28, "3599.28s"),
    ],
)
def test_a_retry_is_told_in_plain_digits_never_too_early_and_never_as_none(seconds: float, text: str) -> None:
    assert render.text(Denial(Reason.CONCURRENCY, retry_after=seconds)).endswith(f"; retry in {text}")


def test_in_band_a_refusal_names_the_request_and_ends_it() -> None:
    told = ModelStreamInferResponse.FromString(render.in_band(DENIAL, "r-1"))
    parameters = told.infer_response.parameters
    assert told.error_message == render.text(DENIAL)
    assert told.infer_response.id == "r-1"
    assert parameters["warden_reason"].string_param == "RATE_TOKENS"
    assert parameters["warden_retry_after_ms"].int64_param == 1500
    assert parameters["triton_final_response"].bool_param
    final = ModelStreamInferResponse.FromString(render.in_band(Denial(Reason.INTERNAL), ""))
    assert "warden_retry_after_ms" not in final.infer_response.parameters


def test_in_band_tritons_own_end_is_told_in_its_words() -> None:
    told = ModelStreamInferResponse.FromString(render.in_band_status(render.Status(13, "model died"), "r-1"))
    assert (told.error_message, told.infer_response.id) == ("model died", "r-1")
    assert set(told.infer_response.parameters) == {"triton_final_response"}


@pytest.mark.parametrize("size", range(1, 5))
def test_binary_headers_are_base64_without_padding(size: int) -> None:
    header = render.details_header(b"\xff" * size)
    assert b"=" not in header
    assert base64.b64decode(header + b"=" * (-len(header) % 4)) == b"\xff" * size


def test_over_http_a_refusal_is_a_problem() -> None:
    status, headers, body = render.problem(DENIAL, "call-1")
    assert status == 429
    assert dict(headers) == {
        b"content-type": b"application/problem+json",
        b"x-warden-call-id": b"call-1",
        b"retry-after": b"2",
    }
    problem = json.loads(body)
    assert (problem["status"], problem["reason"], problem["call_id"]) == (429, "RATE_TOKENS", "call-1")
    assert problem["detail"] == "token budget exceeded: 60000 a minute"
    assert "bucket" not in body.decode()
    _, headers, _ = render.problem(Denial(Reason.METHOD_UNKNOWN), "c")
    assert b"retry-after" not in dict(headers)


def test_a_refusal_for_residency_says_where_the_call_may_go() -> None:
    denial = Denial(
        Reason.RESIDENCY_PROCESSING, "this is eu-west-1 (EU)", metadata=(("allowed_regions", "us-east-1,us-west-2"),)
    )
    found = render.status(denial, "c-1")
    assert found.regions == "us-east-1,us-west-2"
    info = error_details_pb2.ErrorInfo()
    status_pb2.Status.FromString(found.details).details[0].Unpack(info)
    assert info.metadata["allowed_regions"] == "us-east-1,us-west-2"
    told = ModelStreamInferResponse.FromString(render.in_band(denial, "r-1"))
    assert told.infer_response.parameters["warden_allowed_regions"].string_param == "us-east-1,us-west-2"
    assert (b"x-warden-allowed-regions", b"us-east-1,us-west-2") in render.problem(denial, "c-1")[1]
    assert render.status(Denial(Reason.RATE_TOKENS), "c-1").regions is None


def test_a_quotas_refusal_has_the_rate_limit_fields() -> None:
    quotas, limits = LocalQuotas(), Limits(requests=RequestRate(2, 4))
    for _ in range(4):
        assert not isinstance(quotas.reserve("acme", "chat", limits, Demand(), AT, enforce=True), Denial)
    denial = quotas.reserve("acme", "chat", limits, Demand(), AT, enforce=True)
    assert isinstance(denial, Denial)
    status, headers, _ = render.problem(denial, "c-1")
    told = dict(headers)
    assert status == 429
    assert told[b"ratelimit-policy"] == b'"requests";q=4;w=2'
    assert told[b"ratelimit"] == b'"requests";r=0;t=1'
    assert told[b"retry-after"] == b"1"


def test_slots_have_no_window_and_other_refusals_no_fields() -> None:
    denial = LocalQuotas().reserve("acme", "chat", Limits(concurrency=0), Demand(), AT, enforce=True)
    assert isinstance(denial, Denial)
    assert render.rate_limit(denial) == []  # a limit of nothing has no quota to state
    full = Denial(Reason.CONCURRENCY, metadata=(("quota", "concurrency"),), policy=(3, 0))
    assert render.rate_limit(full) == [
        (b"ratelimit-policy", b'"concurrency";q=3'),
        (b"ratelimit", b'"concurrency";r=0'),
    ]
    assert render.rate_limit(Denial(Reason.DRAINING, retry_after=1.0)) == []

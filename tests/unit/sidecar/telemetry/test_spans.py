"""sidecar.telemetry.spans: ids and times as recorded, names of the conventions, errors only where the server failed."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from audit.record import CallFacts, Refused
from sidecar.core.reasons import Code
from sidecar.telemetry import semconv as names
from sidecar.telemetry.spans import SERVER_ERRORS, resource_of, span_of, to_be_exported
from tests.support.store import content, facts, settled

RESOURCE = resource_of("pod-1", "eu-west-1", "EU")


def traced(**changes: Any) -> CallFacts:
    ids = {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
        "parent_id": "00f067aa0ba902b7",
    }
    return facts(**ids | {"sampled": True} | changes)


def test_the_span_is_the_calls() -> None:
    call = traced(parameters={"temperature": 0.5, "top_k": True})
    span = span_of(call, settled(call, b"secret output"), RESOURCE)
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == call.trace_id
    assert f"{span.context.span_id:016x}" == call.span_id
    assert (f"{span.parent.span_id:016x}", span.parent.is_remote) == (call.parent_id, True)
    assert (span.start_time, span.end_time) == (call.started_ns, call.started_ns + 5_000_000)
    assert (span.kind, span.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    assert span.name == "text_completion chat"
    assert [(e.name, e.timestamp) for e in span.events] == [(names.FIRST_RESPONSE, call.started_ns + 2_000_000)]
    assert span.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "inference.GRPCInferenceService/ModelInfer",
        "rpc.response.status_code": "OK",
        "warden.call_id": call.call_id,
        "warden.outcome": "completed",
        "warden.tenant": "acme",
        "warden.rule": call.rule,
        "warden.bundle": call.bundle,
        "warden.model_version": "1",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "nvidia.triton",
        "gen_ai.request.model": "chat",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.time_to_first_chunk": 0.002,
    }


def test_content_never_leaves() -> None:
    call = traced(prompt=content(b"secret prompt"), subject="secret subject", parameters={"stop": "secret word"})
    told = span_of(call, settled(call, b"secret output", internal="secret words"), RESOURCE).to_json()
    assert "secret" not in told


@pytest.mark.parametrize("code", list(Code))
def test_only_the_servers_own_failures_are_errors(code: Code) -> None:
    call = traced()
    span = span_of(call, Refused(call, "SOME_REASON", code), RESOURCE)
    assert (span.status.status_code is StatusCode.ERROR) is (code in SERVER_ERRORS)
    assert ("error.type" in (span.attributes or {})) is (code in SERVER_ERRORS)
    assert (span.attributes or {})["rpc.response.status_code"] == code.name
    assert span.end_time == call.decided_ns


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (
            {"method": "/inference.GRPCInferenceService/ServerLive", "model": ""},
            "inference.GRPCInferenceService/ServerLive",
        ),
        ({"method": "/inference.GRPCInferenceService/ModelMetadata"}, "inference.GRPCInferenceService/ModelMetadata"),
        ({"prompt": content(), "requested_tokens": 0}, "infer chat"),
        ({"method": "/grpc.health.v1.Health/Check", "model": ""}, "grpc.health.v1.Health/Check"),
    ],
)
def test_names(changes: dict[str, Any], name: str) -> None:
    call = traced(**changes)
    assert span_of(call, settled(call), RESOURCE).name == name


def test_a_root_has_no_parent_and_an_unknown_status_is_unknown() -> None:
    call = traced(parent_id="")
    span = span_of(call, settled(call, status=77, outcome="aborted"), RESOURCE)
    assert span.parent is None
    assert (span.attributes or {})["rpc.response.status_code"] == "UNKNOWN"


def test_only_sampled_calls_with_ids_are_exported() -> None:
    assert to_be_exported(traced())
    assert not to_be_exported(traced(sampled=False))
    assert not to_be_exported(traced(trace_id=""))


def test_nothing_goes_where_telemetry_may_not() -> None:
    assert not to_be_exported(traced(may_trace=False))


def test_every_name_is_in_a_namespace_of_ours_or_the_conventions() -> None:
    attributes = [value for name, value in vars(names).items() if name.isupper() and "." in str(value)]
    known = (
        "rpc.",
        "gen_ai.",
        "warden.",
        "service.",
        "cloud.",
        "error.",
        "nvidia.",
        "https://opentelemetry.io/schemas/",
    )
    assert len(attributes) > 20
    assert [value for value in attributes if not value.startswith(known)] == []

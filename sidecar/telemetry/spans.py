"""Makes a call's span from what was recorded of it: pure, never content, an error only where the server failed."""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from audit.record import CallFacts, Refused, Settled
from sidecar.core.reasons import Code
from sidecar.telemetry import semconv as names

__all__ = ["resource_of", "span_of", "to_be_exported"]

# RPC conventions: whatever else a caller is told is the caller's own doing, or a policy's.
SERVER_ERRORS: Final = frozenset(
    {Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS}
)
_INFERENCE: Final = frozenset({"ModelInfer", "ModelStreamInfer"})
_SERVICE: Final = "inference.GRPCInferenceService"
_SCOPE: Final = InstrumentationScope(names.SCOPE, schema_url=names.SCHEMA_URL)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SAMPLING: Final = (  # request parameter → attribute
    ("temperature", names.GEN_AI_TEMPERATURE),
    ("top_p", names.GEN_AI_TOP_P),
    ("top_k", names.GEN_AI_TOP_K),
)

Attributes = dict[str, str | bool | int | float]


def resource_of(sidecar: str, region: str, jurisdiction: str) -> Resource:
    """Who sends the spans. Made without the SDK's detectors: nothing of the host's environment leaks in."""
    return Resource(
        {
            names.SERVICE_NAME: names.SERVICE,
            names.SERVICE_INSTANCE: sidecar,
            names.CLOUD_REGION: region,
            names.WARDEN_JURISDICTION: jurisdiction,
        },
        names.SCHEMA_URL,
    )


def to_be_exported(facts: CallFacts) -> bool:
    """Sampled, by the flag of the trace itself: what Triton and the client sampled is what is sent.

    Only where residency allowed the call, whatever else refused it: it is the last to be asked, so a refusal for the
    model or the region says nothing yet of where the tenant's telemetry may go.
    """
    return facts.may_trace and facts.sampled and len(facts.trace_id) == 32 and len(facts.span_id) == 16


def span_of(facts: CallFacts, end: Settled | Refused, resource: Resource) -> ReadableSpan:
    """The sidecar's SERVER span of one call, with the ids that were sent to Triton and to the client."""
    trace_id = int(facts.trace_id, 16)
    status = Code(end.status) if end.status in Code.__members__.values() else Code.UNKNOWN
    failed = status in SERVER_ERRORS
    return ReadableSpan(
        name=_name(facts),
        context=SpanContext(trace_id, int(facts.span_id, 16), False, _SAMPLED),  # noqa: FBT003 — OpenTelemetry's signature
        parent=SpanContext(trace_id, int(facts.parent_id, 16), True, _SAMPLED) if facts.parent_id else None,  # noqa: FBT003
        resource=resource,
        attributes=_attributes(facts, end, status),
        events=_events(facts, end),
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, end.reason or status.name) if failed else Status(StatusCode.UNSET),
        start_time=facts.started_ns,
        end_time=max(facts.started_ns, _end_ns(facts, end)),
        instrumentation_scope=_SCOPE,
    )


def _method(facts: CallFacts) -> str:
    path = facts.method.removeprefix("/")
    return path if "/" in path else f"{_SERVICE}/{path}"


def _operation(facts: CallFacts) -> str | None:
    if _method(facts).rpartition("/")[2] not in _INFERENCE or not facts.model:
        return None
    return names.GEN_AI_TEXT if facts.prompt.nbytes or facts.requested_tokens else names.GEN_AI_TENSORS


def _name(facts: CallFacts) -> str:
    operation = _operation(facts)
    return f"{operation} {facts.model}" if operation else _method(facts)


def _end_ns(facts: CallFacts, end: Settled | Refused) -> int:
    return facts.started_ns + end.duration_ns if isinstance(end, Settled) else facts.decided_ns


def _attributes(facts: CallFacts, end: Settled | Refused, status: Code) -> Attributes:
    settled = end if isinstance(end, Settled) else None
    told: Attributes = {
        names.RPC_SYSTEM: names.RPC_SYSTEM_GRPC,
        names.RPC_METHOD: _method(facts),
        names.RPC_STATUS: status.name,
        names.WARDEN_CALL: facts.call_id,
        names.WARDEN_OUTCOME: settled.outcome if settled else "refused",
    }
    optional = {
        names.WARDEN_TENANT: facts.tenant,
        names.WARDEN_KEY: facts.key_id,
        names.WARDEN_REASON: end.reason,
        names.WARDEN_RULE: facts.rule,
        names.WARDEN_BUNDLE: facts.bundle,
        names.WARDEN_DATA_CLASS: facts.data_class,
        names.WARDEN_WOULD_REFUSE: facts.would_refuse,
        names.WARDEN_VERSION: settled.model_version if settled else "",
        names.ERROR_TYPE: (end.reason or status.name) if status in SERVER_ERRORS else "",
    }
    told.update((name, value) for name, value in optional.items() if value)
    if _operation(facts):
        told.update(_generation(facts, settled))
    return told


def _generation(facts: CallFacts, settled: Settled | None) -> Attributes:
    told: Attributes = {
        names.GEN_AI_OPERATION: _operation(facts) or "",
        names.GEN_AI_PROVIDER: names.GEN_AI_PROVIDER_TRITON,
        names.GEN_AI_REQUEST_MODEL: facts.model,
    }
    if facts.requested_tokens:
        told[names.GEN_AI_MAX_TOKENS] = facts.requested_tokens
    for parameter, name in _SAMPLING:
        value = facts.parameters.get(parameter)
        if isinstance(value, int | float) and not isinstance(value, bool):
            told[name] = value
    if settled is not None and told[names.GEN_AI_OPERATION] == names.GEN_AI_TEXT:
        told[names.GEN_AI_INPUT_TOKENS] = settled.input_tokens
        told[names.GEN_AI_OUTPUT_TOKENS] = settled.output_tokens
        if settled.first_response_ns is not None:
            told[names.GEN_AI_TTFT] = settled.first_response_ns / 1e9
    return told


def _events(facts: CallFacts, end: Settled | Refused) -> tuple[Event, ...]:
    if not isinstance(end, Settled) or end.first_response_ns is None:
        return ()
    return (Event(names.FIRST_RESPONSE, {}, facts.started_ns + end.first_response_ns),)

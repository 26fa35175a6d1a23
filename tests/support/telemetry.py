"""Values for tests of what is counted: calls, admissions and refusals as the governor would make them."""

from __future__ import annotations

from sidecar.core import model
from sidecar.core.governor import Recorded, Refused
from sidecar.core.model import (
    Action,
    Admission,
    AuditRule,
    Call,
    Credential,
    Demand,
    Denial,
    Disposition,
    Forward,
    InferenceFacts,
    Instant,
    Limits,
    Method,
    ModelProfile,
    Principal,
    Reservation,
    Secret,
    TraceContext,
    Verdict,
)
from sidecar.core.reasons import Reason

AT = Instant(1_700_000_000_000_000_000, 1_000_000_000)
INFER = Method("/inference.GRPCInferenceService/ModelInfer", Action.INFER, Disposition.FORWARD, frozenset({"tenant"}))
READY = Method("/inference.GRPCInferenceService/ServerReady", Action.HEALTH, Disposition.FORWARD, frozenset({"tenant"}))
TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", None, sampled=True)
METHODS = (INFER, READY)


def call(method: Method = INFER, *, trace: TraceContext | None = None) -> Call:
    return Call("c-1", method, AT, b"", Credential("api_key", Secret(b"s")), trace=trace)


def principal(tenant: str = "acme") -> Principal:
    return Principal(tenant, "key", "api_key")


def admission(
    tenant: str = "acme", method: Method = INFER, *, streaming: bool = False, sampled: bool = False
) -> Admission:
    verdict = Verdict("allow", "sha256:0", ModelProfile("chat"), Limits(), AuditRule())
    reservation = Reservation(tenant, "chat", Demand(), AT)
    made = call(method, trace=TRACE if sampled else None)
    facts = InferenceFacts(streaming=streaming)
    return Admission(made, principal(tenant), verdict, facts, Forward(b""), reservation, None, model.PROOF)


def recorded(
    tenant: str = "acme", method: Method = INFER, *, streaming: bool = False, sampled: bool = False
) -> Recorded:
    return Recorded(admission(tenant, method, streaming=streaming, sampled=sampled), AT)


def refused(reason: Reason, tenant: str | None = "acme", method: Method = INFER, *, rule: str = "") -> Refused:
    return Refused(call(method), Denial(reason, rule=rule), "sha256:0", None if tenant is None else principal(tenant))

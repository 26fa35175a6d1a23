"""The real reader as the governor calls it: isolation and answers, for a principal that may know of everything."""

from __future__ import annotations

from typing import Any

from sidecar.core.model import (
    NO_FACTS,
    PROOF,
    Admission,
    AuditRule,
    Call,
    Demand,
    Denial,
    Forward,
    InferenceFacts,
    Limits,
    Method,
    ModelProfile,
    Principal,
    Reservation,
    ResponseFacts,
    Verdict,
)
from sidecar.core.ports import Reader
from tests.support.core import ACME, AT, a_call


def everything(model: str, version: str) -> bool:
    """A ``Sees`` that hides nothing."""
    return True


def verdict(profile: ModelProfile, limits: Limits | None = None) -> Verdict:
    """An allow for a model of this profile."""
    return Verdict("allow", "sha256:fake", profile, limits or Limits(), AuditRule())


def isolated(
    reader: Reader, call: Call, profile: ModelProfile, *, who: Principal = ACME, limits: Limits | None = None
) -> Forward | Denial:
    """What ``reader`` makes of a call that was allowed."""
    facts = reader.facts(call.method, call.message, profile)
    return reader.isolate(call, who, facts, verdict(profile, limits), AT, everything)


def answered(
    reader: Reader,
    method: Method,
    message: bytes,
    profile: ModelProfile,
    *,
    forward: Forward | None = None,
    facts: InferenceFacts = NO_FACTS,
) -> ResponseFacts:
    """What ``reader`` makes of a response to a call that was forwarded so."""
    held = Reservation(ACME.tenant, profile.name, Demand(), AT)
    made: Any = a_call(method=method)
    allowed, sent = verdict(profile), forward or Forward(b"")
    return reader.response(Admission(made, ACME, allowed, facts, sent, held, None, PROOF), message, everything)

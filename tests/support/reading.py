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
    Secret,
    Verdict,
)
from sidecar.core.ports import Reader, everything
from sidecar.triton.isolation import Isolation
from sidecar.triton.knowledge import ModelBook, ModelFacts
from sidecar.triton.reader import TritonReader
from sidecar.triton.sequences import SequenceTable
from tests.support.core import ACME, AT, a_call
from tests.support.models import book


def isolation(*models: ModelFacts, complete: bool = True) -> Isolation:
    """Isolation that knows these models; not ``complete``: and can't say that there are no others."""
    known = book(*models) if complete or models else ModelBook()
    return Isolation(known, Secret(b"k" * 32), SequenceTable(Secret(b"s" * 32)))


def reader(*models: ModelFacts) -> TritonReader:
    """The real reader, which knows these models and that there are no others."""
    return TritonReader(isolation(*models))


def verdict(profile: ModelProfile, limits: Limits | None = None, loras: tuple[str, ...] = ()) -> Verdict:
    """An allow for a model of this profile."""
    return Verdict("allow", "sha256:fake", profile, limits or Limits(), AuditRule(), loras=frozenset(loras))


def isolated(
    reader: Reader,
    call: Call,
    profile: ModelProfile,
    *,
    who: Principal = ACME,
    limits: Limits | None = None,
    loras: tuple[str, ...] = (),
) -> Forward | Denial:
    """What ``reader`` makes of a call that was allowed."""
    facts = reader.facts(call.method, call.message, profile)
    return reader.isolate(call, who, facts, verdict(profile, limits, loras), AT, everything)


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
    return reader.response(admitted(facts, method, profile, forward), message, everything)


def admitted(
    facts: InferenceFacts = NO_FACTS,
    method: Method | None = None,
    profile: ModelProfile | None = None,
    forward: Forward | None = None,
    who: Principal = ACME,
) -> Admission:
    """A call that was admitted with these facts."""
    made: Any = a_call(method=method) if method is not None else a_call()
    profile = profile or ModelProfile(facts.model)
    held = Reservation(who.tenant, profile.name, Demand(), AT)
    return Admission(made, who, verdict(profile), facts, forward or Forward(b""), held, None, PROOF)

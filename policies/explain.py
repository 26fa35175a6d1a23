"""Answers "what would the sidecar say, and why?" by asking the very policy that the sidecar asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from policies.bundle import Bundle, Case
from policies.decision import Step
from policies.document import CaseDoc
from policies.policy import LoadedPolicy
from policies.residency import Place
from policies.yamlfile import Problem
from sidecar.core.model import (
    STAFF,
    Action,
    Call,
    Denial,
    Disposition,
    Head,
    Instant,
    Method,
    Principal,
    Verdict,
)
from sidecar.core.reasons import Reason

__all__ = ["Asked", "CaseResult", "Explanation", "asked_of", "explain", "question", "run_cases"]

_SERVICE: Final = "/inference.GRPCInferenceService/"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as a person puts it. ``storage`` and ``telemetry`` (jurisdictions) None: the region's own.

    ``model`` "" asks about the server itself, for ``metadata`` and ``manage``.
    """

    tenant: str
    model: str
    region: str
    data_class: str = ""
    action: Action = Action.INFER
    roles: frozenset[str] = frozenset({"tenant"})
    principal: str = "explain"
    storage: str | None = None
    telemetry: str | None = None
    key: str = ""  # an API key's name; then ``principal`` counts for nothing
    method: str = ""  # one of the action's methods; "": the usual one
    source: str = ""  # the caller's address
    at: float = 0.0  # seconds since the UNIX epoch


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict, and every step on the way to it."""

    verdict: Verdict | Denial
    steps: tuple[Step, ...]
    bundle: str

    @property
    def allowed(self) -> bool:
        return isinstance(self.verdict, Verdict)

    @property
    def reason(self) -> Reason | None:
        return self.verdict.reason if isinstance(self.verdict, Denial) else None

    @property
    def shadow(self) -> Denial | None:
        """What a rule in shadow would have answered."""
        return self.verdict.would_refuse if isinstance(self.verdict, Verdict) else None

    @property
    def allowed_regions(self) -> list[str] | None:
        """Where a call refused for residency may go instead; None for any other answer."""
        told = dict(self.verdict.metadata) if isinstance(self.verdict, Denial) else {}
        return list(filter(None, told["allowed_regions"].split(","))) if "allowed_regions" in told else None

    def json(self) -> dict[str, Any]:
        """The shape of ``warden policy explain --json`` (DESIGN §6)."""
        path = [{"step": s.step, "outcome": s.outcome, "rule": s.rule, "detail": s.detail} for s in self.steps]
        return {
            "verdict": "allow" if self.allowed else "deny",
            "reason": self.reason,
            "rule": self.verdict.rule,
            "path": path,
            "bundle": self.bundle,
            "shadow": None if self.shadow is None else {"reason": self.shadow.reason, "rule": self.shadow.rule},
            "allowed_regions": self.allowed_regions,
        }


def explain(
    bundle: Bundle, asked: Asked, policies: dict[Place, LoadedPolicy] | None = None
) -> Explanation | list[Problem]:
    """Problems are about the question: a region or jurisdiction that the bundle doesn't know.

    ``policies`` keeps the bundle as it is at each place, for many questions.
    """
    # For a region that isn't known any jurisdiction will do: the region's problem is then told alone.
    own = bundle.regions.get(asked.region) or next(iter(bundle.regions.values()))
    place = bundle.place(asked.region, asked.storage or own, asked.telemetry or own)
    if isinstance(place, list):
        return place
    policies = {} if policies is None else policies
    policy = policies.get(place) or policies.setdefault(place, LoadedPolicy(bundle, place))
    verdict, steps = policy.trace(*question(asked), asked.at)
    return Explanation(verdict, tuple(steps), bundle.digest)


def question(asked: Asked) -> tuple[Principal, Call, Head]:
    """What the sidecar would hand to ``LoadedPolicy.authorise``."""
    principal = Principal(
        tenant=asked.tenant,
        name=asked.key or asked.principal,
        kind="api_key" if asked.key else "jwt",
        roles=asked.roles,
    )
    method = _method(asked.action, asked.method, by_model=asked.action is Action.INFER or bool(asked.model))
    credential = Denial(Reason.CREDENTIAL_MISSING)  # identity is settled by the time a policy is asked
    peer = f"[{asked.source}]:0" if asked.source else ""
    call = Call("explain", method, Instant(0, 0), b"", credential, peer=peer, data_class=asked.data_class)
    return principal, call, Head(asked.model)


def _method(action: Action, name: str, *, by_model: bool) -> Method:
    names = {
        (Action.INFER, True): "ModelInfer",
        (Action.METADATA, True): "ModelMetadata",
        (Action.METADATA, False): "ServerMetadata",
        (Action.MANAGE, True): "RepositoryModelLoad",
        (Action.MANAGE, False): "RepositoryIndex",
    }
    path = _SERVICE + (name or names[action, by_model])
    everyone = STAFF | {"tenant"}
    whole = everyone if action is Action.MANAGE else STAFF if action is Action.METADATA else frozenset()
    return Method(path, action, Disposition.FORWARD, everyone, by_model=by_model, whole=whole)


# --- test cases ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case of ``tests/*.yaml`` and what came of it; ``failure`` "" where it holds."""

    case: Case
    explanation: Explanation
    failure: str

    @property
    def name(self) -> str:
        """``tests/demo.yaml:12 acme chat eu-west-1``, or the case's own name after its place."""
        case = self.case.case
        told = case.name or " ".join(filter(None, (case.tenant, case.model, case.region, case.data_class)))
        return f"{self.case.file}:{self.case.line} {told}"


def run_cases(bundle: Bundle, at: float = 0.0) -> Iterator[CaseResult]:
    """Every case of the bundle, in file order; those that name no moment are asked ``at``."""
    policies: dict[Place, LoadedPolicy] = {}
    for case in bundle.cases:
        asked = asked_of(case.case, at)
        found = explain(bundle, asked, policies)
        assert isinstance(found, Explanation), "compiling a bundle checks the places of its cases"
        yield CaseResult(case, found, _failure(case, found))


def asked_of(doc: CaseDoc, at: float) -> Asked:
    """A case's question; ``at`` where it names no moment."""
    return Asked(
        tenant=doc.tenant,
        model=doc.model,
        region=doc.region,
        data_class=doc.data_class,
        action=Action(doc.action),
        roles=frozenset(doc.roles),
        principal=doc.principal or "explain",
        key=doc.key,
        method=doc.method,
        source=doc.source,
        at=at if doc.at is None else doc.at,
        storage=doc.storage,
        telemetry=doc.telemetry,
    )


def _failure(case: Case, found: Explanation) -> str:
    expected, got = case.case.expect, str(found.reason or "allow")
    if got != expected:
        return f"expected {expected}, got {got} by {found.verdict.rule}"
    rule = case.case.rule
    if rule is not None and rule != found.verdict.rule:
        return f"expected rule {rule}, got {found.verdict.rule}"
    shadow = found.shadow.rule if found.shadow is not None else None
    if case.case.shadow is not None and case.case.shadow != shadow:
        return f"expected {case.case.shadow} in shadow, got {shadow or 'nothing'}"
    return ""

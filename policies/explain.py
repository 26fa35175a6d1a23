"""Answers "what would the sidecar say, and why?" by asking the very policy that the sidecar asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import structs

from policies.bundle import Bundle
from policies.content import Content, Judged, facts_of, judge, unread
from policies.decision import Step
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

__all__ = ["Asked", "Explanation", "Kind", "explain", "question", "with_content", "with_judged"]

Kind = Literal["jwt", "api_key", "certificate", "listener"]
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
    issuer: str = ""  # the token's
    kind: Kind = "jwt"  # of the credential; an API key's wherever ``key`` names one
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict, and every step on the way to it."""

    verdict: Verdict | Denial
    steps: tuple[Step, ...]
    bundle: str
    judged: Judged | None = None  # of the content, where some was given

    @property
    def answer(self) -> str:
        """``allow``, a reason, or ``cut`` for an output that a guard ends."""
        if self.judged is not None and self.judged.cut:
            return "cut"
        return str(self.reason or "allow")

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
        """The shape of ``warden policy explain --json`` (DESIGN §6); ``findings`` and ``redacted`` of content alone."""
        path = [{"step": s.step, "outcome": s.outcome, "rule": s.rule, "detail": s.detail} for s in self.steps]
        content: dict[str, Any] = {}
        if self.judged is not None:
            names = ("guard", "on", "verdict", "enforced")
            found = [dict(zip(names, structs.astuple(each), strict=True)) for each in self.judged.findings]
            content = {"findings": found, "redacted": self.judged.redacted}
        return {
            "verdict": "allow" if self.allowed else "cut" if self.answer == "cut" else "deny",
            "reason": self.reason,
            "rule": self.verdict.rule,
            "path": path,
            "bundle": self.bundle,
            "shadow": None if self.shadow is None else {"reason": self.shadow.reason, "rule": self.shadow.rule},
            "allowed_regions": self.allowed_regions,
            **content,
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
    found = Explanation(verdict, tuple(steps), bundle.digest)
    if asked.content is None:
        return found
    return with_content(found, asked.content)


def with_content(found: Explanation, content: Content) -> Explanation:
    """Where the call itself is allowed, what its content adds to that."""
    verdict = found.verdict
    if isinstance(verdict, Denial):
        return found
    output = None if content.output is None else content.output.encode("utf-8", "surrogateescape")
    return with_judged(found, unread(verdict) or judge(verdict, facts_of(content, verdict), output))


def with_judged(found: Explanation, judged: Judged) -> Explanation:
    """As ``with_content``, of content that was judged before."""
    verdict = found.verdict
    assert isinstance(verdict, Verdict)
    told: Verdict | Denial = judged.denial or structs.replace(
        verdict, would_refuse=verdict.would_refuse or judged.shadow
    )
    return Explanation(told, (*found.steps, *judged.steps), found.bundle, judged)


def question(asked: Asked) -> tuple[Principal, Call, Head]:
    """What the sidecar would hand to ``LoadedPolicy.authorise``."""
    principal = Principal(
        tenant=asked.tenant,
        name=asked.key or asked.principal,
        kind="api_key" if asked.key else asked.kind,
        roles=asked.roles,
        issuer=asked.issuer,
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
        (Action.HEALTH, False): "ServerLive",
        (Action.HEALTH, True): "ModelReady",
    }
    path = _SERVICE + (name or names[action, by_model])
    everyone = STAFF | {"tenant"}
    whole = STAFF if action in (Action.METADATA, Action.MANAGE) else frozenset()
    return Method(path, action, Disposition.FORWARD, everyone, by_model=by_model, whole=whole)

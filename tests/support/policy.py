"""Policies for tests of other rooms: one that says what it is told to, and the demo's real bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from policies.bundle import Bundle, load
from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import AuditRule, Call, Denial, Head, Limits, ModelProfile, Principal, Verdict
from sidecar.core.ports import Policy

DEMO_BUNDLE = Path(str(files("policies"))) / "library" / "demo"
DEMO_PLACE = Place("eu-west-1", "EU", "EU", "EU")


@dataclass
class FakePolicy:
    """``ports.Policy`` that allows everything, but what ``denials`` holds by tenant; remembers what it was asked."""

    digest: str = "sha256:fake"
    limits: Limits = field(default_factory=Limits)
    audit: AuditRule = field(default_factory=AuditRule)
    profiles: Mapping[str, ModelProfile] = field(default_factory=dict)
    denials: Mapping[str, Denial] = field(default_factory=dict)
    asked: list[tuple[Principal, Call, Head]] = field(default_factory=list)

    def sees(self, principal: Principal, model: str, version: str) -> bool:
        return principal.tenant not in self.denials

    def serves(self, tenant: str) -> bool:
        return tenant not in self.denials

    def store(self, principal: Principal, call: Call) -> str:
        return ""

    def authorise(self, principal: Principal, call: Call, head: Head, at: float) -> Verdict | Denial:
        self.asked.append((principal, call, head))
        denial = self.denials.get(principal.tenant)
        if denial is not None:
            return denial
        return Verdict(
            "fake", self.digest, self.profile(head.model), self.limits, self.audit, call.data_class, may_trace=True
        )

    def profile(self, model: str) -> ModelProfile:
        return self.profiles.get(model) or ModelProfile(name=model)


@dataclass
class StaticPolicies:
    """``ports.Policies`` over one policy; assign ``policy`` to swap it."""

    policy: Policy

    def current(self) -> Policy:
        return self.policy


def demo_bundle() -> Bundle:
    """The bundle that ships with the product; it must load."""
    found = load(DEMO_BUNDLE)
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


def demo_policy(place: Place = DEMO_PLACE) -> LoadedPolicy:
    """The demo's bundle at the demo's pod (eu-west-1), or elsewhere."""
    return LoadedPolicy(demo_bundle(), place)

"""Calls that were recorded, decided again: under the bundle they were decided with, or under another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policies.bundle import Bundle
from policies.document import DECIDABLE
from policies.explain import Explanation
from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import Call, Denial, Head, Instant, Method, Principal, Verdict
from sidecar.core.reasons import Reason

__all__ = ["Past", "Replay", "Told", "again", "verdict_of"]

LOCATION: Final = "location"  # the rule of a refusal for doubt where the pod is: no bundle's
GUARDS: Final = "guards."  # how the rules of guards begin: they are asked about content, once access has been given


@dataclass(frozen=True, slots=True)
class Past:
    """One recorded call: all that its decision was made from, and what was decided.

    ``verdict`` is ``allow`` or a reason of the policy's; None where a call was refused before the bundle was asked.
    ``would_refuse`` was not enforced, by mode observe or by a rule in shadow.
    """

    call_id: str
    principal: Principal
    method: Method
    model: str
    data_class: str  # several between commas
    peer: str
    at: float  # seconds since the UNIX epoch
    region: str
    storage: str  # the database's jurisdiction
    telemetry: str | None
    bundle: str
    verdict: str | None
    rule: str
    would_refuse: str = ""

    def call(self) -> Call:
        nobody = Denial(Reason.CREDENTIAL_MISSING)  # identity was settled then
        at = Instant(round(self.at * 1e9), 0)
        return Call(self.call_id, self.method, at, b"", nobody, peer=self.peer, data_class=self.data_class)


def verdict_of(outcome: str, reason: str, rule: str) -> str | None:
    """What a record says that the policy said."""
    if outcome != "refused":
        return "allow"
    if reason in DECIDABLE:
        if rule.startswith(GUARDS):
            return "allow"
        return None if rule == LOCATION or rule.startswith("key.") else reason
    known = reason in set(Reason)
    asked = known and Reason(reason) in _AFTER
    return "allow" if asked else None


# Reasons that a call is refused for once the policy has allowed it; all others come before the bundle is asked.
_AFTER: Final = frozenset(
    {
        Reason.PARAMETER_NOT_ALLOWED,
        Reason.RATE_REQUESTS,
        Reason.RATE_TOKENS,
        Reason.CONCURRENCY,
        Reason.MEMORY_KV,
        Reason.MEMORY_TENSOR,
        Reason.AUDIT_UNAVAILABLE,
    }
)


def again(bundle: Bundle, past: Past) -> Explanation | str:
    """The decision made anew, step by step; a text says why this bundle can't be asked."""
    place = _place(bundle, past)
    if isinstance(place, str):
        return place
    policy = LoadedPolicy(bundle, place)
    verdict, steps = policy.trace(past.principal, past.call(), Head(past.model), past.at)
    return Explanation(verdict, tuple(steps), bundle.digest)


def _place(bundle: Bundle, past: Past) -> Place | str:
    found = bundle.place(past.region, past.storage, past.telemetry)
    return "; ".join(problem.message for problem in found) if isinstance(found, list) else found


@dataclass(frozen=True, slots=True)
class Told:
    """A call that this bundle would have decided otherwise."""

    past: Past
    verdict: str
    rule: str


class Replay:
    """Many calls under one bundle; ``counts`` says what became of them."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._policies: dict[tuple[str, str, str | None], LoadedPolicy | str] = {}
        self.counts = {"same": 0, "changed": 0, "not decided by a bundle": 0}

    def decide(self, past: Past) -> Told | None:
        """None where the answer is the same, or the bundle was never asked."""
        if past.verdict is None:
            self.counts["not decided by a bundle"] += 1
            return None
        found = self._answer(past)
        old = {past.verdict, past.would_refuse} if past.would_refuse in DECIDABLE else {past.verdict}
        if isinstance(found, str):
            verdict, rule, same = "REGION_UNKNOWN", found, False
        elif isinstance(found, Verdict):
            shadow = found.would_refuse.reason if found.would_refuse is not None else ""
            verdict, rule = "allow", found.rule
            same = past.verdict == "allow" and (past.would_refuse not in DECIDABLE or past.would_refuse == shadow)
        else:
            verdict, rule, same = str(found.reason), found.rule, str(found.reason) in old
        self.counts["same" if same else "changed"] += 1
        return None if same else Told(past, verdict, rule)

    def _answer(self, past: Past) -> Verdict | Denial | str:
        key = (past.region, past.storage, past.telemetry)
        policy = self._policies.get(key)
        if policy is None:
            place = _place(self._bundle, past)
            policy = self._policies[key] = place if isinstance(place, str) else LoadedPolicy(self._bundle, place)
        if isinstance(policy, str):
            return policy
        return policy.authorise(past.principal, past.call(), Head(past.model), past.at)

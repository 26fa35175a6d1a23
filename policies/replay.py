"""Calls that were recorded, decided again: under the bundle they were decided with, or under another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from policies.bundle import Bundle
from policies.content import Judged, judge
from policies.document import DECIDABLE
from policies.explain import Explanation, with_judged
from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import Call, Denial, Finding, Head, InferenceFacts, Instant, Method, Principal, Verdict
from sidecar.core.reasons import Reason

__all__ = ["GUARDS", "Past", "Replay", "Told", "Unknown", "again", "is_same", "verdict_of"]

LOCATION: Final = "location"  # the rule of a refusal for doubt where the pod is: no bundle's
GUARDS: Final = "guards."  # how the rules of guards begin: they are asked about content, once access has been given
OBSERVE: Final = "observe"  # the rule of what mode observe let pass, though the bundle refused it
UNRECORDED: Final = frozenset({"prompt_tokens", "sequences", "streaming"})  # that a rule on content may look at


@dataclass(frozen=True, slots=True)
class Past:
    """One recorded call: all that its decision was made from, and what was decided.

    ``verdict`` is ``allow`` or a reason of the policy's; None where a call was refused before the bundle was asked.
    ``would_refuse`` was not enforced, by mode observe or by a rule in shadow (``would_rule``). ``guarded``: what guards
    made of it, ``allow``, ``POLICY_FORBIDS`` (its prompt) or ``cut`` (its output); ``answered``: whether Triton was
    asked at all, so that there is an output.
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
    would_rule: str = ""
    guarded: str = "allow"
    findings: tuple[Finding, ...] = ()
    answered: bool = True

    def call(self) -> Call:
        nobody = Denial(Reason.CREDENTIAL_MISSING)  # identity was settled then
        at = Instant(round(self.at * 1e9), 0)
        return Call(self.call_id, self.method, at, b"", nobody, peer=self.peer, data_class=self.data_class)

    def decided(self) -> tuple[str, str]:
        """What the bundle said of access, and what a rule of it in shadow would have said."""
        assert self.verdict is not None
        unenforced = (
            "" if self.would_rule.startswith(GUARDS) or self.would_refuse not in DECIDABLE else self.would_refuse
        )
        if unenforced and self.rule == OBSERVE:
            return unenforced, ""
        return self.verdict, unenforced


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why a call's content can't be judged again."""

    why: str


# What is known of the request, and the output (None: it was not kept, or there is none).
Read = Callable[[Past], "tuple[InferenceFacts, bytes | None] | Unknown"]


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


def again(bundle: Bundle, past: Past, read: Read | None = None) -> Explanation | str:
    """The decision made anew, step by step; a text says why this bundle can't be asked, or its content not judged."""
    place = _place(bundle, past)
    if isinstance(place, str):
        return place
    policy = LoadedPolicy(bundle, place)
    verdict, steps = policy.trace(past.principal, past.call(), Head(past.model), past.at)
    found = Explanation(verdict, tuple(steps), bundle.digest)
    if read is None or not isinstance(verdict, Verdict):
        return found
    judged = _judged(bundle, past, verdict, read)
    return judged.why if isinstance(judged, Unknown) else with_judged(found, judged)


def is_same(past: Past, found: Explanation) -> bool:
    """Whether the decision made anew is the recorded one, as far as it was made anew."""
    if past.verdict is None:
        return True
    old, _ = past.decided()
    if found.judged is None:
        return str(found.reason or "allow") == old
    return found.answer == (past.guarded if old == "allow" else old)


def _place(bundle: Bundle, past: Past) -> Place | str:
    found = bundle.place(past.region, past.storage, past.telemetry)
    return "; ".join(problem.message for problem in found) if isinstance(found, list) else found


def _judged(bundle: Bundle, past: Past, verdict: Verdict, read: Read) -> Judged | Unknown:
    """The content, as far as the bundle looks at it."""
    if verdict.guards is None:
        return Judged()
    if _looks_at_what_is_not_recorded(bundle, past, verdict):
        return Unknown("a rule looks at what isn't recorded")
    found = read(past)
    if isinstance(found, Unknown):
        return found
    facts, output = found
    judged = judge(verdict, facts, output)
    if judged.denial is None and past.answered and output is None and verdict.guards.watch(facts) is not None:
        return Unknown("its output was not kept")
    return judged


def _looks_at_what_is_not_recorded(bundle: Bundle, past: Past, verdict: Verdict) -> bool:
    rules = bundle.rules.rules.values() if bundle.rules is not None else ()
    return any(
        rule.mentions & UNRECORDED
        and rule.tenant in ("", past.principal.tenant)
        and rule.model in ("", verdict.profile.name)
        for rule in rules
    )


@dataclass(frozen=True, slots=True)
class Told:
    """A call that this bundle would have decided otherwise. ``old`` and ``new``: the verdicts, as a caller meets them.

    ``found``: of guards, what is found no more (``-``) and what is found now (``+``).
    """

    past: Past
    old: str
    new: str
    rule: str
    found: tuple[str, ...] = ()


class Replay:
    """Many calls under one bundle; ``counts`` says what became of them, ``undecided`` whose content can't be judged.

    ``read`` fetches a call's content; None: no content is looked at. In memory: what a policy remembers, and no call.
    """

    def __init__(self, bundle: Bundle, read: Read | None = None) -> None:
        self._bundle, self._read = bundle, read
        self._policies: dict[tuple[str, str, str | None], LoadedPolicy | str] = {}
        self.counts = {"same": 0, "changed": 0, "not decided by a bundle": 0, "content not judged": 0}
        self.undecided: dict[str, int] = {}  # by why

    def decide(self, past: Past) -> Told | None:
        """None where the answer is the same, isn't known, or the bundle was never asked."""
        if past.verdict is None:
            self.counts["not decided by a bundle"] += 1
            return None
        told = self._decided(past)
        if isinstance(told, Unknown):
            self.counts["content not judged"] += 1
            self.undecided[told.why] = self.undecided.get(told.why, 0) + 1
            return None
        self.counts["same" if told is None else "changed"] += 1
        return told

    def _decided(self, past: Past) -> Told | Unknown | None:
        found = self._answer(past)
        old, old_shadow = past.decided()
        if isinstance(found, str):
            return Told(past, old, "REGION_UNKNOWN", found)
        if isinstance(found, Denial):
            same = (str(found.reason), "") == (old, old_shadow)
            was = past.guarded if old == "allow" else old
            return None if same else Told(past, _with_shadow(was, old_shadow), str(found.reason), found.rule)
        shadow = str(found.would_refuse.reason) if found.would_refuse is not None else ""
        if old != "allow":
            return Told(past, old, _with_shadow("allow", shadow), found.rule)
        told = self._content(past, found)
        if shadow == old_shadow:
            return told
        was, new, rule, changed = (
            (told.old, told.new, told.rule, told.found)
            if isinstance(told, Told)
            else (past.guarded, past.guarded, found.rule, ())
        )
        return Told(past, _with_shadow(was, old_shadow), _with_shadow(new, shadow), rule, changed)

    def _content(self, past: Past, verdict: Verdict) -> Told | Unknown | None:
        """What guards would make of a call that may be made, then and now."""
        if verdict.guards is None and not past.findings and past.guarded == "allow":
            return None
        if verdict.guards is None:
            judged: Judged | Unknown = Judged()
        elif self._read is None:
            judged = Unknown("its content was not asked for")
        else:
            judged = _judged(self._bundle, past, verdict, self._read)
        if isinstance(judged, Unknown):
            return judged
        new = "cut" if judged.cut else "allow" if judged.denial is None else str(judged.denial.reason)
        rule = verdict.rule if judged.denial is None else judged.denial.rule
        before, after = ({_finding(each) for each in found} for found in (past.findings, judged.findings))
        if (new, after) == (past.guarded, before):
            return None
        changed = (*(f"-{each}" for each in sorted(before - after)), *(f"+{each}" for each in sorted(after - before)))
        return Told(past, past.guarded, new, rule, changed)

    def _answer(self, past: Past) -> Verdict | Denial | str:
        key = (past.region, past.storage, past.telemetry)
        policy = self._policies.get(key)
        if policy is None:
            place = _place(self._bundle, past)
            policy = self._policies[key] = place if isinstance(place, str) else LoadedPolicy(self._bundle, place)
        if isinstance(policy, str):
            return policy
        return policy.authorise(past.principal, past.call(), Head(past.model), past.at)


def _with_shadow(verdict: str, shadow: str) -> str:
    return f"{verdict} (in shadow {shadow})" if shadow else verdict


def _finding(each: Finding) -> str:
    done = "in shadow" if each.enforced == "none" else each.enforced
    return f"guards.{each.guard} on {each.on}: {each.verdict}" + ("" if done == each.verdict else f" {done}")

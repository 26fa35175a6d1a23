"""Replay: what was recorded, decided again; what was never a bundle's to decide is counted and left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.bundle import Bundle, compile_bundle
from policies.explain import Explanation
from policies.replay import Past, Replay, Told, Unknown, again, is_same, verdict_of
from sidecar.core.model import Finding, InferenceFacts, Principal
from sidecar.triton.methods import METHODS
from tests.support.policy import demo_bundle

INFER = METHODS["/inference.GRPCInferenceService/ModelInfer"]
PAST = Past(
    call_id="c-1",
    principal=Principal("acme", "alice", "jwt"),
    method=INFER,
    model="chat",
    data_class="phi",
    peer="10.0.0.1:1",
    at=1_796_000_000.0,
    region="eu-west-1",
    storage="EU",
    telemetry="EU",
    bundle="sha256:old",
    verdict="allow",
    rule="tenants/acme.yaml:models[0]",
)


def edited(name: str, old: bytes, new: bytes) -> Bundle:
    files = dict(demo_bundle().files)
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    found = compile_bundle(files)
    assert isinstance(found, Bundle)
    return found


def test_the_same_bundle_says_the_same() -> None:
    replay = Replay(demo_bundle(), lambda _: (InferenceFacts(prompts=(b"hello",)), b""))
    assert replay.decide(PAST) is None
    assert replay.decide(replace(PAST, model="rag", verdict="POLICY_FORBIDS")) is None
    assert replay.decide(replace(PAST, verdict=None)) is None
    assert replay.counts == {"same": 2, "changed": 0, "not decided by a bundle": 1, "content not judged": 0}


def test_a_change_is_told_with_its_rule() -> None:
    replay = Replay(edited("access/health-data.cedar", b'Model::"rag"', b'Model::"chat"'))
    told = replay.decide(PAST)
    assert told is not None
    assert (told.old, told.new, told.rule) == ("allow", "POLICY_FORBIDS", "phi-not-in-rag")
    allowed = replay.decide(replace(PAST, model="rag", verdict="POLICY_FORBIDS"))
    assert allowed is not None
    assert allowed.new == "allow"
    assert replay.counts["changed"] == 2


def test_what_mode_observe_let_pass_was_refused_by_the_bundle() -> None:
    observed = replace(PAST, model="rag", rule="observe", would_refuse="POLICY_FORBIDS", would_rule="phi-not-in-rag")
    assert Replay(demo_bundle()).decide(observed) is None, "and would be now"
    without = edited("access/health-data.cedar", b'"phi"', b'"public"')
    told = Replay(without).decide(observed)
    assert told is not None
    assert (told.old, told.new) == ("POLICY_FORBIDS", "allow")
    assert Replay(demo_bundle()).decide(replace(PAST, would_refuse="RATE_TOKENS")) is None, "a quota is no verdict"


def test_a_rule_in_shadow_that_is_enforced_from_now_on_is_a_change() -> None:
    shadow = edited("access/health-data.cedar", b"forbid (", b'@shadow("x") forbid (')
    recorded = replace(PAST, model="rag", would_refuse="POLICY_FORBIDS", would_rule="phi-not-in-rag")
    assert Replay(shadow).decide(recorded) is None
    told = Replay(demo_bundle()).decide(recorded)
    assert told is not None
    assert (told.old, told.new) == ("allow (in shadow POLICY_FORBIDS)", "POLICY_FORBIDS")
    told = Replay(shadow).decide(replace(PAST, model="rag"))
    assert told is not None
    assert (told.old, told.new) == ("allow", "allow (in shadow POLICY_FORBIDS)")


# --- content ------------------------------------------------------------------------------------------------------

BIRCH = replace(PAST, principal=Principal("birch", "bob", "jwt"), data_class="", rule="tenants/birch.yaml:models[0]")
CARD = b"pay with 4111 1111 1111 1111"
DENIED = replace(
    BIRCH, rule="guards.no-cards", guarded="POLICY_FORBIDS", answered=False,
    findings=(Finding("no-cards", "prompt", "deny", "deny"),),
)  # fmt: skip


def replayed(past: Past, prompt: bytes, output: bytes | None = b"", bundle: Bundle | None = None) -> Told | None:
    replay = Replay(bundle or demo_bundle(), lambda _: (InferenceFacts(prompts=(prompt,)), output))
    return replay.decide(past)


def test_content_is_put_to_the_guards_again() -> None:
    assert replayed(BIRCH, b"hello") is None
    assert replayed(DENIED, CARD, None) is None
    told = replayed(BIRCH, CARD)
    assert told is not None
    assert (told.old, told.new, told.rule) == ("allow", "POLICY_FORBIDS", "guards.no-cards")
    assert told.found == ("+guards.no-cards on prompt: deny",)
    flagged = edited("tenants/birch.yaml", b"[card], then: deny", b"[card], then: flag")
    told = replayed(DENIED, CARD, None, flagged)
    assert told is not None
    assert (told.old, told.new) == ("POLICY_FORBIDS", "allow")
    assert told.found == ("-guards.no-cards on prompt: deny", "+guards.no-cards on prompt: flag")
    cuts = edited("tenants/birch.yaml", b"then: deny, shadow: true}", b"then: deny}")
    shadowed = replace(BIRCH, findings=(Finding("canary-word", "output", "deny", "none"),))
    told = replayed(shadowed, b"go", b"the harbour lights", cuts)
    assert told is not None
    assert (told.old, told.new, told.rule) == ("allow", "cut", "guards.canary-word")
    assert replayed(shadowed, b"go", b"the harbour lights") is None


def test_a_prompt_s_guard_in_shadow_is_no_rule_of_access() -> None:
    shadow = edited("tenants/birch.yaml", b"[card], then: deny", b"[card], then: deny, shadow: true")
    found = (Finding("no-cards", "prompt", "deny", "none"),)
    past = replace(BIRCH, would_refuse="POLICY_FORBIDS", would_rule="guards.no-cards", findings=found)
    assert replayed(past, CARD, b"", shadow) is None
    told = replayed(past, CARD)
    assert told is not None
    assert (told.old, told.new) == ("allow", "POLICY_FORBIDS")


def test_content_that_can_t_be_judged_is_said_apart_by_why() -> None:
    replay = Replay(demo_bundle())
    assert replay.decide(BIRCH) is None
    gone = Replay(demo_bundle(), lambda _: Unknown("erased"))
    assert gone.decide(BIRCH) is None
    assert gone.decide(replace(BIRCH, model="vision")) is None, "birch's guards look at every model's calls"
    assert gone.decide(replace(PAST, data_class="")) is None
    assert (replay.undecided, replay.counts["content not judged"]) == ({"its content was not asked for": 1}, 1)
    assert gone.undecided == {"erased": 3}
    half = Replay(demo_bundle(), lambda _: (InferenceFacts(prompts=(b"hello",)), None))
    assert half.decide(BIRCH) is None
    assert half.undecided == {"its output was not kept": 1}
    denied = Replay(demo_bundle(), lambda _: (InferenceFacts(prompts=(CARD,)), None))
    assert denied.decide(BIRCH) is not None, "its prompt decides, whatever came out"


def test_a_rule_on_what_is_not_recorded_can_t_be_asked() -> None:
    rule = b'@id("many") forbid(principal == Tenant::"birch", action == Action::"prompt", resource) when'
    found = compile_bundle({**demo_bundle().files, "guards/more.cedar": rule + b" { context.sequences > 2 };"})
    assert isinstance(found, Bundle)
    replay = Replay(found, lambda _: (InferenceFacts(prompts=(b"hello",)), b""))
    assert replay.decide(BIRCH) is None
    assert replay.undecided == {"a rule looks at what isn't recorded": 1}
    assert replay.decide(replace(PAST, data_class="")) is None
    assert replay.counts["same"] == 1, "acme's calls are none of that rule's"


def test_a_past_call_s_content_is_explained() -> None:
    read = lambda _: (InferenceFacts(prompts=(CARD,)), None)  # noqa: E731
    found = again(demo_bundle(), DENIED, read)
    assert isinstance(found, Explanation)
    assert (found.answer, found.verdict.rule, is_same(DENIED, found)) == ("POLICY_FORBIDS", "guards.no-cards", True)
    assert again(demo_bundle(), DENIED, lambda _: Unknown("erased")) == "erased"
    access = again(demo_bundle(), DENIED)
    assert isinstance(access, Explanation)
    assert (access.answer, is_same(DENIED, access)) == ("allow", True), "access was given; the guard came after"


def test_a_region_that_the_bundle_does_not_know_is_a_change() -> None:
    told = Replay(demo_bundle()).decide(replace(PAST, region="eu-west-9"))
    assert told is not None
    assert told.new == "REGION_UNKNOWN"
    assert isinstance(again(demo_bundle(), replace(PAST, region="eu-west-9")), str)


@pytest.mark.parametrize(
    ("outcome", "reason", "rule", "verdict"),
    [
        ("completed", "", "r", "allow"),
        ("failed", "UPSTREAM_TIMEOUT", "r", "allow"),
        ("refused", "POLICY_FORBIDS", "phi-not-in-rag", "POLICY_FORBIDS"),
        ("refused", "POLICY_FORBIDS", "key.networks", None),
        ("refused", "POLICY_FORBIDS", "guards.no-cards", "allow"),  # of its content, which isn't put again
        ("refused", "RESIDENCY_PROCESSING", "location", None),
        ("refused", "RATE_TOKENS", "quota:tokens", "allow"),
        ("refused", "TOKEN_EXPIRED", "", None),
        ("refused", "METHOD_NOT_ALLOWED", "method-table", None),
        ("refused", "of a later version", "", None),
    ],
)
def test_a_record_says_what_the_policy_said(outcome: str, reason: str, rule: str, verdict: str | None) -> None:
    assert verdict_of(outcome, reason, rule) == verdict

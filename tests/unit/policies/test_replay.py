"""Replay: what was recorded, decided again; what was never a bundle's to decide is counted and left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.bundle import Bundle, compile_bundle
from policies.replay import Past, Replay, again, verdict_of
from sidecar.core.model import Principal
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
    replay = Replay(demo_bundle())
    assert replay.decide(PAST) is None
    assert replay.decide(replace(PAST, model="rag", verdict="POLICY_FORBIDS")) is None
    assert replay.decide(replace(PAST, verdict=None)) is None
    assert replay.counts == {"same": 2, "changed": 0, "not decided by a bundle": 1}


def test_a_change_is_told_with_its_rule() -> None:
    replay = Replay(edited("access/health-data.cedar", b'Model::"rag"', b'Model::"chat"'))
    told = replay.decide(PAST)
    assert told is not None
    assert (told.verdict, told.rule) == ("POLICY_FORBIDS", "phi-not-in-rag")
    allowed = replay.decide(replace(PAST, model="rag", verdict="POLICY_FORBIDS"))
    assert allowed is not None
    assert allowed.verdict == "allow"
    assert replay.counts["changed"] == 2


def test_what_was_not_enforced_is_no_change_where_it_still_is_not_or_now_would_be() -> None:
    observed = replace(PAST, model="rag", would_refuse="POLICY_FORBIDS")
    assert Replay(demo_bundle()).decide(observed) is None, "mode observe: the bundle refused then and would now"
    shadow = edited("access/health-data.cedar", b"forbid (", b'@shadow("x") forbid (')
    assert Replay(shadow).decide(observed) is None
    without = edited("access/health-data.cedar", b'"phi"', b'"public"')
    assert Replay(without).decide(observed) is not None
    assert Replay(demo_bundle()).decide(replace(PAST, would_refuse="RATE_TOKENS")) is None, "a quota is no verdict"


def test_a_region_that_the_bundle_does_not_know_is_a_change() -> None:
    told = Replay(demo_bundle()).decide(replace(PAST, region="eu-west-9"))
    assert told is not None
    assert told.verdict == "REGION_UNKNOWN"
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

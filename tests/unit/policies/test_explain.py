"""Explanations: every step in order, the JSON shape that outside programs rely on, and the bundle's own cases."""

from __future__ import annotations

from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from policies.explain import Asked, Explanation, explain
from sidecar.core.model import Action
from sidecar.core.reasons import Reason
from tests.support.policy import demo_bundle


def explained(asked: Asked) -> Explanation:
    found = explain(demo_bundle(), asked)
    assert isinstance(found, Explanation), found
    return found


def test_an_allow_shows_every_step() -> None:
    found = explained(Asked("acme", "chat", "eu-west-1", data_class="phi"))
    assert [(step.step, step.outcome) for step in found.steps] == [
        ("tenant", "pass"),
        ("status", "pass"),
        ("model", "pass"),
        ("access", "pass"),
        ("residency", "pass"),
    ]
    assert found.allowed
    assert found.steps[-1].detail == "processed in eu-west-1 (EU), stored in EU, traced to EU"


def test_a_denial_ends_with_the_step_that_denied() -> None:
    found = explained(Asked("birch", "rag", "eu-west-1"))
    assert [(step.step, step.outcome) for step in found.steps] == [
        ("tenant", "pass"),
        ("status", "pass"),
        ("model", "deny"),
    ]
    assert found.steps[-1].detail == "not among the tenant's models", "told here, and never to the caller"
    assert found.reason is Reason.MODEL_NOT_FOUND


def test_json_has_the_contract_s_shape() -> None:
    bundle = demo_bundle()
    assert explained(Asked("cobalt", "chat", "eu-west-1")).json() == {
        "verdict": "deny",
        "reason": "RESIDENCY_PROCESSING",
        "rule": "tenants/cobalt.yaml:residency.processing",
        "path": [
            {"step": "tenant", "outcome": "pass", "rule": "tenants/cobalt.yaml:tenant", "detail": ""},
            {"step": "status", "outcome": "pass", "rule": "tenants/cobalt.yaml:status", "detail": ""},
            {"step": "model", "outcome": "pass", "rule": "tenants/cobalt.yaml:models[0]", "detail": ""},
            {"step": "access", "outcome": "pass", "rule": "", "detail": "no policy forbids it"},
            {
                "step": "residency",
                "outcome": "deny",
                "rule": "tenants/cobalt.yaml:residency.processing",
                "detail": "this data may not be processed in this region: this is eu-west-1 (EU); allowed: us-east-1",
            },
        ],
        "bundle": bundle.digest,
        "shadow": None,
        "allowed_regions": ["us-east-1"],
    }
    allowed = explained(Asked("acme", "chat", "eu-west-1")).json()
    assert (allowed["verdict"], allowed["reason"]) == ("allow", None)


def test_a_region_that_is_not_in_the_bundle_is_a_bad_question() -> None:
    found = explain(demo_bundle(), Asked("acme", "chat", "eu-west-2"))
    assert isinstance(found, list)
    assert [problem.message for problem in found] == [
        'the sidecar\'s region eu-west-2 is not in the bundle; did you mean "eu-west-1"?'
    ]


def test_the_server_can_be_asked_about_without_a_model() -> None:
    assert explained(Asked("birch", "", "eu-west-1", action=Action.METADATA)).allowed
    assert explained(Asked("birch", "", "eu-west-1", action=Action.MANAGE)).allowed
    assert not explained(Asked("birch", "", "eu-west-1")).allowed, "an inference names a model"


def test_the_demo_s_cases_hold_and_reach_every_reason() -> None:
    results = list(run_cases(demo_bundle()))
    assert [result.name for result in results if result.failure] == []
    assert {result.explanation.reason for result in results} == {
        None,
        Reason.TENANT_UNKNOWN,
        Reason.TENANT_SUSPENDED,
        Reason.MODEL_NOT_FOUND,
        Reason.POLICY_FORBIDS,
        Reason.RESIDENCY_PROCESSING,
        Reason.RESIDENCY_STORAGE,
        Reason.RESIDENCY_TELEMETRY,
    }


def test_a_case_that_does_not_hold_says_what_came_instead() -> None:
    cases = (
        "- {tenant: birch, model: rag, region: eu-west-1, expect: allow}\n"
        "- {name: named, tenant: acme, model: chat, region: us-east-1, expect: RESIDENCY_PROCESSING, rule: other}\n"
        "- {tenant: acme, model: chat, region: eu-west-1, expect: allow}\n"
    )
    bundle = compile_bundle({**demo_bundle().files, "tests/demo.yaml": cases.encode()})
    assert isinstance(bundle, Bundle)
    assert [(result.name, result.failure) for result in run_cases(bundle)] == [
        ("tests/demo.yaml:1 birch rag eu-west-1", "expected allow, got MODEL_NOT_FOUND by tenants/birch.yaml:models"),
        ("tests/demo.yaml:2 named", "expected rule other, got tenants/acme.yaml:residency.processing"),
        ("tests/demo.yaml:3 acme chat eu-west-1", ""),
    ]

"""Coverage: every rule that can decide is listed, and what a case went by is touched."""

from __future__ import annotations

from policies.bundle import Bundle, compile_bundle
from policies.coverage import rules, untouched
from policies.explain import run_cases
from tests.support.policy import demo_bundle


def with_cases(text: str, cedar: str = "") -> Bundle:
    files = {**demo_bundle().files, "tests/demo.yaml": text.encode()}
    if cedar:
        files["access/more.cedar"] = cedar.encode()
    found = compile_bundle(files)
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


def left(bundle: Bundle) -> set[str]:
    return set(untouched(bundle, run_cases(bundle)))


def test_without_cases_nothing_is_touched() -> None:
    bundle = with_cases("[]")
    assert left(bundle) == set(rules(bundle))
    assert {"phi-not-in-rag", "tenants/acme.yaml:keys.nightly", "tenants/acme.yaml:residency.classes.phi"} < left(
        bundle
    )


def test_an_allow_touches_what_it_went_by() -> None:
    bundle = with_cases("- {tenant: acme, model: vision, region: eu-west-1, data_class: phi, expect: allow}")
    assert set(rules(bundle)) - left(bundle) == {
        "tenants/acme.yaml:status",
        "tenants/acme.yaml:models[1]",
        "tenants/acme.yaml:residency",
        "tenants/acme.yaml:residency.classes.phi",
    }


def test_a_refusal_touches_what_came_before_it_and_no_more() -> None:
    bundle = with_cases("- {tenant: acme, model: rag, region: eu-west-1, data_class: phi, expect: POLICY_FORBIDS}")
    touched = set(rules(bundle)) - left(bundle)
    assert touched == {"tenants/acme.yaml:status", "tenants/acme.yaml:models[2]", "phi-not-in-rag"}


def test_permits_and_shadows_count_where_they_determine() -> None:
    cedar = (
        '@id("grant") permit(principal in Tenant::"birch", action, resource == Model::"rag");'
        '@id("trial") @shadow("x") forbid(principal in Tenant::"birch", action, resource == Model::"rag");'
        '@id("idle") forbid(principal in Tenant::"cobalt", action, resource);'
    )
    bundle = with_cases("- {tenant: birch, model: rag, region: eu-west-1, expect: allow, shadow: trial}", cedar)
    assert [result.failure for result in run_cases(bundle)] == [""]
    assert {"grant", "trial", "idle"} & left(bundle) == {"idle"}

"""Coverage: every rule that can decide is listed, and what a case went by is touched."""

from __future__ import annotations

from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from policies.coverage import rules, untouched
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


def seen(bundle: Bundle) -> set[str]:
    return set(rules(bundle)) - left(bundle)


def test_an_allow_touches_what_it_went_by() -> None:
    bundle = with_cases("- {tenant: acme, model: vision, region: eu-west-1, data_class: phi, expect: allow}")
    assert seen(bundle) == {
        "bundle.yaml:regions.eu-west-1",
        "models.yaml:vision",
        "plans.yaml:gold",
        "tenants/acme.yaml:status",
        "tenants/acme.yaml:models[1]",
        "tenants/acme.yaml:residency",
        "tenants/acme.yaml:residency.classes.phi",
    } | ({"bundle.yaml:classes.phi"} if bundle.classes else set())


def test_a_refusal_touches_what_came_before_it_and_no_more() -> None:
    bundle = with_cases("- {tenant: acme, model: rag, region: eu-west-1, data_class: phi, expect: POLICY_FORBIDS}")
    assert {rule for rule in seen(bundle) if not rule.startswith("bundle.yaml")} == {
        "models.yaml:rag",
        "tenants/acme.yaml:status",
        "tenants/acme.yaml:models[2]",
        "phi-not-in-rag",
    }


def test_permits_and_shadows_count_where_they_determine() -> None:
    cedar = (
        '@id("grant") permit(principal in Tenant::"birch", action, resource == Model::"rag");'
        '@id("trial") @shadow("x") forbid(principal in Tenant::"birch", action, resource == Model::"rag");'
        '@id("idle") forbid(principal in Tenant::"cobalt", action, resource);'
    )
    bundle = with_cases("- {tenant: birch, model: rag, region: eu-west-1, expect: allow, shadow: trial}", cedar)
    assert [result.failure for result in run_cases(bundle)] == [""]
    assert {"grant", "trial", "idle"} & left(bundle) == {"idle"}


def test_all_that_determine_count_not_only_the_first() -> None:
    forbid = 'forbid(principal in Tenant::"birch", action, resource == Model::"rag")'
    cedar = (
        '@id("grant") permit(principal in Tenant::"birch", action, resource == Model::"rag");'
        '@id("grant-too") permit(principal in Tenant::"birch", action, resource in Group::"GROUP");'
        f'@id("one") {forbid};@id("two") {forbid};@id("shadow-one") @shadow("x") {forbid};'
    )
    group = demo_bundle().models["rag"].groups[0]
    case = "- {tenant: birch, model: rag, region: eu-west-1, expect: POLICY_FORBIDS}"
    bundle = with_cases(case, cedar.replace("GROUP", group))
    assert {"grant", "grant-too", "one", "two", "shadow-one"} & left(bundle) == {"shadow-one"}


DATED = """tenant: birch
plan: bronze
status: active
from: 2026-01-01
models: [{model: chat, until: 2026-06-01}, vision]
limits: [{concurrency: 2}, {from: 2026-05-01, until: 2026-05-02, concurrency: 3}]
keys: {ci: {until: 2026-04-01, models: [vision, chat]}}
residency: {processing: [EU], storage: [EU], telemetry: [EU]}
audit: {level: full, retention: 1d}
"""


def dated(*cases: str) -> set[str]:
    """What such cases touch of a tenant whose every rule has its dates."""
    text = "".join(f"- {{tenant: birch, region: eu-west-1, {case}}}\n" for case in cases)
    files = {**demo_bundle().files, "tests/demo.yaml": text.encode(), "tenants/birch.yaml": DATED.encode()}
    bundle = compile_bundle(files)
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    assert [result.failure for result in run_cases(bundle)] == [""] * len(cases)
    place = "tenants/birch.yaml:"
    return {rule.removeprefix(place) for rule in seen(bundle) if rule.startswith(place)}


def test_a_date_is_touched_from_its_far_side() -> None:
    early = "model: chat, at: 2025-12-31, expect: TENANT_SUSPENDED"
    assert dated(early) == {"status", "from"}
    assert dated("model: chat, at: 2026-06-01, expect: MODEL_NOT_FOUND") == {"status", "models[0].until"}
    assert dated("model: chat, at: 2026-05-31, expect: allow") == {"status", "models[0]", "limits[0]", "residency"}
    assert dated("model: chat, at: 2026-05-01, expect: allow") >= {"limits[0]", "limits[1]"}
    key = "model: chat, key: ci, at: 2026-03-01, expect: allow"
    assert dated(key) == {"status", "models[0]", "limits[0]", "residency", "keys.ci", "keys.ci.models[1]"}
    assert "keys.ci.until" in dated("model: vision, key: ci, at: 2026-04-01, expect: POLICY_FORBIDS")


def test_aliases_and_plans_are_rules() -> None:
    plans = (
        demo_bundle()
        .files["plans.yaml"]
        .decode()
        .replace("bronze:\n", "bronze:\n  aliases: {gpt: chat, eye: vision}\n")
    )
    case = "- {tenant: birch, model: gpt, region: eu-west-1, expect: allow}"
    bundle = compile_bundle({**demo_bundle().files, "tests/demo.yaml": case.encode(), "plans.yaml": plans.encode()})
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    assert {"plans.yaml:bronze", "plans.yaml:bronze.aliases.gpt", "models.yaml:chat"} <= seen(bundle)
    assert {"plans.yaml:gold", "plans.yaml:bronze.aliases.eye", "models.yaml:vision"} <= left(bundle)

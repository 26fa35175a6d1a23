"""Bundles whose guards, rules or keys can't be: each refused with what is wrong and where."""

from __future__ import annotations

import re

import pytest

from policies import files
from tests.unit.policies.test_bundle import GOOD, TENANT, good, told

FIRST = GOOD[TENANT].count("\n") + 1  # line of what is added to the tenant's document


def tenant(added: str) -> dict[str, str | None]:
    return {TENANT: GOOD[TENANT] + added}


GUARD = "guards:\n  - {id: a, on: prompt, then: deny, %s}\n"
MANY = "guards:\n  - {id: a, on: prompt, then: deny, patterns: [" + ", ".join(f"p{n}" for n in range(10_000)) + "]}\n"
HEAVY = "guards:\n" + "".join(
    f"  - {{id: g{n}, on: output, then: deny, patterns: ['\\pL{{9}}{n}', '\\pL{{9}}x{n}']}}\n" for n in range(12)
)


@pytest.mark.parametrize(
    ("added", "line", "message"),
    [
        (GUARD % "patterns: ['(x{1000}){1000}']", 1, "pattern: not RE2: .*repetition"),
        (GUARD % "patterns: ['(a+)\\1']", 1, "pattern: not RE2: invalid escape"),
        (MANY, 1, "should have at most 64 items"),
        (HEAVY, 0, r"the patterns together are \d+ instructions of RE2's, at most 200000"),
        ("guards:\n  - {id: a, on: output, then: deny, classes: [emial]}\n", 1, "no class 'emial'"),
        ("guards:\n  - {id: a, on: output, then: dney, classes: [email]}\n", 1, 'did you mean "deny"'),
        ("guards:\n  - {id: a, on: output, then: deny, longer_than: 5}\n", 1, "longer_than: is for prompts"),
        ("guards:\n  - {id: a, on: output, then: deny, paterns: [x]}\n", 1, 'unknown key; did you mean "patterns"'),
        ("hold_back: {bytes: 1000000000, within: 1s}\n", 0, "less than or equal to 16384"),
        ("hold_back: {bytes: 0, within: 1s}\n", 0, "greater than 0"),
        ("hold_back: {bytes: 64, within: 1h}\n", 0, "at most 10s"),
        ("hold_back: {bytes: 64}\n", 0, "required, and missing"),
        ("keys:\n  ci:\n    limits: {concurrency: 64}\n", 2, r"\(64\) is more than the tenant's own \(32\)"),
        ("keys:\n  ci:\n    limits: {}\n", 2, "limits nothing"),
        ("keys:\n  ci:\n    limits: {concurency: 4}\n", 2, 'unknown key; did you mean "concurrency"'),
    ],
)  # fmt: skip
def test_what_a_tenant_may_not_say_of_content_and_keys(added: str, line: int, message: str) -> None:
    found = told(tenant(added))
    assert any(re.search(message, each) for each in found), found
    assert {int(each.split(":")[1]) for each in found} == {FIRST + line}, found
    assert all(each.startswith(f"{TENANT}:") for each in found)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('@id("r") forbid(principal, action, resource)\nwhen { context.langth > 5 };', "2:", 'no langth;'),
        ('@id("r") forbid(principal, action == Action::"infer", resource);', "1:", "infer"),
        ('@id("r") forbid(principal in Tenant::"acmee", action, resource);', "1:", 'did you mean "acme"'),
        ('@id("r") permit(principal, action, resource);', "1:", "grants nothing"),
    ],
)  # fmt: skip
def test_what_a_rule_may_not_say_is_told_with_the_rest(text: str, place: str, message: str) -> None:
    found = told({"guards/r.cedar": text, **tenant("hold_back: {bytes: 64}\n")})
    assert any(each.startswith(f"guards/r.cedar:{place}") and message in each for each in found), found
    assert any(each.startswith(f"{TENANT}:{FIRST}:") for each in found), "all mistakes at once"


def test_only_cedar_belongs_among_the_rules() -> None:
    assert files._belongs("guards/a.cedar")
    assert not files._belongs("guards/a.yaml")


def test_a_keys_limits_are_its_own_then_per_keys() -> None:
    plans = GOOD["plans.yaml"] + "  per_key: {concurrency: 4, requests: {rate: 1/s, burst: 1}}\n"
    added = (
        "keys:\n  ci: {limits: {concurrency: 8, shadow: [concurrency]}}\n  web: {models: [chat]}\n"
        "limits:\n  - {from: 2030-01-01, per_key: {requests: unlimited, concurrency: 2}}\n"
    )
    acme = good({"plans.yaml": plans, **tenant(added)}).tenants["acme"]
    assert acme.keys is not None
    ci, web = acme.keys["ci"], acme.keys["web"]
    assert web.limits_at(0.0) is None
    before, after = ci.limits_at(0.0), ci.limits_at(2e9)
    assert before is not None
    assert after is not None
    assert before.requests is not None
    assert (before.concurrency, before.shadow) == (8, frozenset({"concurrency"}))
    assert (after.concurrency, after.requests) == (8, None)
    assert ci.limits_at(1.0) is before, "the same object: an account would be set up anew for another"

"""Differences between bundles: every change of a verdict, and nothing else, however the two differ."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.bundle import Bundle, compile_bundle
from policies.compare import compare
from policies.explain import Asked, Explanation, explain
from sidecar.core.model import Action
from tests.support.policy import demo_bundle

AT = 1_796_000_000.0  # 2026-11-30
# One line of one file each; what can't be combined is left out of the pair.
EDITS = (
    ("tenants/dormant.yaml", b"suspended", b"active"),
    ("tenants/birch.yaml", b"models: [chat, vision]", b"models: [chat, 'v*', rag]"),
    ("tenants/birch.yaml", b"models: [chat, vision]", b"models: [{model: chat, until: 2026-12-24}]"),
    ("tenants/birch.yaml", b"status: active", b"status: active\nfrom: 2027-01-01"),
    ("tenants/birch.yaml", b"storage: [EU]", b"storage: [US]"),
    ("tenants/birch.yaml", b"telemetry: [EU]", b"telemetry: withheld"),
    ("tenants/cobalt.yaml", b"processing: [US]", b"processing: [US, eu-west-1]"),
    ("tenants/acme.yaml", b"phi: [eu-west-1]", b"phi: []"),
    ("tenants/acme.yaml", b"    models: [vision, counter]", b"    models: [vision]"),
    ("tenants/acme.yaml", b"plan: gold", b"plan: bronze"),  # limits are no verdict
    ("access/health-data.cedar", b'Model::"rag"', b'Model::"chat"'),
    ("access/health-data.cedar", b"forbid (", b'@shadow("trial")\nforbid ('),
    ("access/health-data.cedar", b'context.data_class == "phi"', b"context.hour < 6"),
    ("access/health-data.cedar", b'context.data_class == "phi"', b'principal == Principal::"acme/bob"'),
    (
        "bundle.yaml",
        b"us-east-1: {jurisdiction: US}",
        b"us-east-1: {jurisdiction: US}\n  us-west-2: {jurisdiction: US}",
    ),
)


def edited(edits: list[tuple[str, bytes, bytes]]) -> Bundle:
    files = dict(demo_bundle().files)
    for name, old, new in edits:
        files[name] = files[name].replace(old, new)
    found = compile_bundle(files)
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


PAIRS = st.tuples(*[st.lists(st.sampled_from(EDITS), max_size=3, unique=True)] * 2)


def verdict(bundle: Bundle, asked: Asked) -> str:
    found = explain(bundle, asked)
    return str(found.reason or "allow") if isinstance(found, Explanation) else "REGION_UNKNOWN"


@settings(max_examples=6, deadline=None)
@given(PAIRS)
def test_every_change_is_named_and_nothing_else(pair: tuple[list[tuple[str, bytes, bytes]], ...]) -> None:
    """Each change is one; and of all combinations of names that either bundle knows, those that changed are named."""
    old, new = map(edited, pair)
    named = {change.asked: (change.old.verdict, change.new.verdict) for change in compare(old, new, AT).changes()}
    for asked, (before, after) in named.items():
        assert (before, after) == (verdict(old, asked), verdict(new, asked))
        assert before != after
    changed = {
        (tenant, who, model, region, data_class)
        for tenant, (principal, who), model, region, data_class in itertools.product(
            [*old.tenants], [("", ""), ("bob", "bob"), ("", "nightly")], [*old.models, "none"],
            sorted({*old.regions, *new.regions}), ["", "phi", "public"],
        )
        if verdict(old, asked := question(tenant, principal, who, model, region, data_class)) != verdict(new, asked)
    }  # fmt: skip
    told = {
        (
            asked.tenant,
            asked.key or ("bob" if asked.principal == "bob" else ""),
            "none" if asked.model == "(another model)" else asked.model,
            asked.region,
            asked.data_class,
        )
        for asked in named
        if asked.action is Action.INFER and asked.at == AT and not asked.source
    }
    # Who is named nowhere is asked as anybody: a change for everybody is told once, for "".
    missed = {each for each in changed - told if each[1] in ("", "nightly") or (each[0], "", *each[2:]) not in told}
    assert not {each for each in missed if asks(each, old, new)}


def question(tenant: str, principal: str, who: str, model: str, region: str, data_class: str) -> Asked:
    key = who if who == "nightly" else ""
    return Asked(tenant, model, region, data_class=data_class, principal=principal or "explain", key=key, at=AT)


def asks(each: tuple[str, str, str, str, str], old: Bundle, new: Bundle) -> bool:
    """Whether the combination is one of the grid's: a key and a data class are asked of the tenant that has them."""
    tenant, who, _, _, data_class = each
    sides = [bundle.tenants[tenant] for bundle in (old, new)]
    keys = {key for side in sides for key in side.keys or ()}
    classes = {name for side in sides for name in side.residency.classes}
    return (who != "nightly" or who in keys) and (not data_class or data_class in classes)


def test_bundles_that_answer_alike_differ_in_nothing() -> None:
    old = demo_bundle()
    new = edited(
        [("plans.yaml", b"rate: 200/s", b"rate: 100/s"), ("tenants/acme.yaml", b"plan: gold", b"plan: bronze")]
    )
    compared = compare(old, new, AT)
    assert list(compared.changes()) == []
    assert compared.asked > len(old.cases)


def test_a_date_to_come_is_told_with_its_moment() -> None:
    new = edited([("tenants/birch.yaml", b"status: active", b"status: active\nuntil: 2026-12-24")])
    found = [change for change in compare(demo_bundle(), new, AT).changes() if change.asked.action is Action.INFER]
    assert found
    assert {change.asked.at for change in found} == {1_798_070_400.0}, "at once nothing changes; on that day it does"
    assert {(change.old.verdict, change.new.verdict, change.new.rule) for change in found} >= {
        ("allow", "TENANT_SUSPENDED", "tenants/birch.yaml:until")
    }


def test_a_case_is_named_by_its_place() -> None:
    new = edited([("access/health-data.cedar", b'Model::"rag"', b'Model::"chat"')])
    cases = {change.case for change in compare(demo_bundle(), new, AT).changes() if change.case}
    assert cases
    assert all(case.startswith("tests/demo.yaml:") for case in cases)

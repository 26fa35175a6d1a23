"""Differences between bundles: every change of a verdict, and nothing else, however the two differ."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.bundle import Bundle, compile_bundle
from policies.compare import Change, compare
from policies.explain import Asked, Explanation, explain
from policies.grid import METHODS, grid
from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import Action
from tests.support.policy import demo_bundle

AT = 1_796_000_000.0  # 2026-11-30, a Monday
TENANT = """tenant: TENANT
plan: only
status: STATUS
models: MODELS
keys: KEYS
residency: {processing: PROCESSING, storage: STORAGE, telemetry: TELEMETRY, classes: CLASSES}
audit: {level: metadata, retention: 1d}
"""
PLAN = """only:
  {requests: unlimited, tokens: unlimited, concurrency: unlimited, kv_memory: unlimited, tensor_memory: unlimited,
   aliases: ALIASES}
"""
POLICIES = (
    'forbid(principal, action == Action::"infer", resource == Model::"ab") when { context.data_class == "phi" };',
    'forbid(principal, action, resource in Group::"llm") when { context.data_class like "p*" };',
    'permit(principal in Tenant::"one", action, resource == Model::"special");',
    'forbid(principal == Principal::"one/bob", action == Action::"infer", resource);',
    'forbid(principal, action, resource) when { principal.name == "ci" && principal.kind == "api_key" };',
    'forbid(principal, action, resource) when { principal.issuer == "https://one.example" };',
    'forbid(principal, action == Action::"infer", resource) when { context.method == "ModelStreamInfer" };',
    'forbid(principal, action, resource) unless { context has source && context.source.isInRange(ip("10.0.0.0/8")) };',
    'forbid(principal, action, resource) when { context.hour > 20 };',
    'forbid(principal, action, resource) when { context.weekday == 7 };',
    '@shadow("trial") forbid(principal, action, resource);',
)  # fmt: skip
Written = tuple[dict[str, str], list[int], str]
WRITTEN = {
    "STATUS": st.sampled_from(["active", "active", "active", "suspended"]),
    "MODELS": st.sampled_from(["[a, b]", "['a*']", "['a?']", "['*']", "['*b']", "[a, {model: b, until: 2026-12-24}]"]),
    "KEYS": st.sampled_from(["{}", "{ci: {models: ['*b']}}", "{ci: {models: ['*c'], until: 2026-12-10}}"]),
    "PROCESSING": st.sampled_from(["[EU, US]", "[EU]", "[eu-1]"]),
    "STORAGE": st.sampled_from(["[EU, US]", "[EU]"]),
    "TELEMETRY": st.sampled_from(["[EU, US]", "[EU]", "withheld"]),
    "CLASSES": st.sampled_from(["{}", "{phi: [eu-1]}", "{phi: {telemetry: withheld}, open: {telemetry: [EU]}}"]),
}


def _compiles(written: Written) -> bool:
    """No class may widen what is withheld: such a bundle is refused."""
    return written[0]["TELEMETRY"] != "withheld" or "[EU]" not in written[0]["CLASSES"]


BUNDLES = st.tuples(
    st.fixed_dictionaries(WRITTEN),
    st.lists(st.sampled_from(range(len(POLICIES))), max_size=1),
    st.sampled_from(["{}", "{ay: a}", "{ay: b}"]),
).filter(_compiles)


def compiled(written: Written) -> Bundle:
    words, policies, aliases = written
    files = {
        "bundle.yaml": "regions: {eu-1: {jurisdiction: EU}, us-1: {jurisdiction: US}}",
        "models.yaml": "a: {contract: generic, groups: [llm]}\nb: {contract: generic}",
        "plans.yaml": PLAN.replace("ALIASES", aliases),
        "access/all.cedar": "\n".join(f'@id("p{number}") {POLICIES[number]}' for number in sorted(policies)),
    }
    text = TENANT.replace("TENANT", "one")
    for word, instead in words.items():
        text = text.replace(word, instead)
    files["tenants/one.yaml"] = text
    found = compile_bundle({name: text.encode() for name, text in files.items()})
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


def brute() -> Iterator[Asked]:
    """Names that were not taken from any bundle, but for the tenants and regions."""
    whos = (
        {}, {"principal": "bob"}, {"key": "ci"}, {"key": "web"}, {"issuer": "https://one.example"},
        {"roles": frozenset({"admin"})},
    )  # fmt: skip
    elsewhere = ({}, {"storage": "US"}, {"telemetry": "US"})
    at = (AT, AT + 10 * 3600, AT + 6 * 86400, 1_798_070_400.0)
    models = ("a", "b", "ab", "axb", "qc", "aq", "special", "ay", "nothing")
    for who, model, place, data_class, when, source in itertools.product(
        whos, models, elsewhere, ("", "phi", "open,phi", "pq"), at, ("", "10.1.2.3")
    ):
        staff = who.get("roles") is not None
        method = "ModelMetadata" if staff else "ModelStreamInfer"
        action = Action.METADATA if staff else Action.INFER
        yield Asked(
            "one", model, "eu-1", data_class=data_class, action=action, method=method, source=source, at=when,
            **place, **who,
        )  # type: ignore[arg-type]  # fmt: skip


class Brute:
    """A bundle asked by ``explain`` alone, each decision made anew."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.policies = bundle, dict[Place, LoadedPolicy]()

    def verdict(self, asked: Asked) -> str:
        found = explain(self.bundle, asked, self.policies)
        return str(found.reason or "allow") if isinstance(found, Explanation) else "REGION_UNKNOWN"


def kind(asked: Asked, keys: set[str], old: str, new: str) -> tuple[object, ...]:
    """What must be the same of a change and of the one that stands for it; ``keys``: those that a bundle narrows."""
    staff = not asked.roles.isdisjoint({"operator", "admin"})
    return asked.region, asked.storage, asked.telemetry, asked.action, staff, asked.key in keys, old, new


@settings(max_examples=3, deadline=None, derandomize=True)  # some pairs take a minute: those are for tests/long
@given(BUNDLES, BUNDLES, st.randoms(use_true_random=False))
def test_every_change_is_named_and_nothing_else(one: Written, other: Written, random: Random) -> None:
    """The questions of the grid that are named are those that the two answer otherwise; so from either side.

    And whatever else is asked: a change of its kind is among the named.
    """
    check_named(one, other, random, questions=400)


def check_named(one: Written, other: Written, random: Random, *, questions: int) -> None:
    """``questions``: how many of the grid, and how many others, are put to both without ``compare``."""
    old, new = compiled(one), compiled(other)
    there, back = named(old, new), named(new, old)
    assert there == {asked: (after, before) for asked, (before, after) in back.items()}
    before, after = Brute(old), Brute(new)
    asked = list(grid(old, new, AT))
    for each in random.sample(asked, min(questions, len(asked))):
        pair = before.verdict(each), after.verdict(each)
        assert there.get(each, (pair[0], pair[0])) == pair, each
    keys = {key for bundle in (old, new) for key in bundle.tenants["one"].keys or ()}
    kinds = {kind(each, keys, *pair) for each, pair in there.items()}
    points = list(brute())
    for point in random.sample(points, min(questions, len(points))):
        pair = before.verdict(point), after.verdict(point)
        assert pair[0] == pair[1] or kind(point, keys, *pair) in kinds, point


def named(old: Bundle, new: Bundle) -> dict[Asked, tuple[str, str]]:
    found: dict[Asked, tuple[str, str]] = {}
    for change in compare(old, new, AT).changes():
        assert change.asked not in found, "each is named once"
        found[change.asked] = (change.old.verdict, change.new.verdict)
    return found


@settings(max_examples=4, deadline=None, derandomize=True)
@given(BUNDLES)
def test_equal_bundles_differ_in_nothing(written: Written) -> None:
    """The same files, compiled twice: no change of a verdict and of no term."""
    compared = compare(compiled(written), compiled(written), AT)
    assert list(compared.terms()) == []
    assert list(compared.changes()) == []


def test_the_rows_of_the_method_table_are_those_that_a_bundle_may_be_asked_about() -> None:
    from sidecar.triton.methods import METHODS as TABLE  # noqa: PLC0415

    known = {method.name: method for method in TABLE.values() if method.roles}
    rows = {row.name: row for row in METHODS}
    assert set(known) - set(rows) == {"ServerReady", "Check", "Watch"}, "which are asked as ServerLive is"
    for name, row in rows.items():
        method = known[name]
        assert (row.action, row.roles, row.by_model) == (method.action, method.roles, method.by_model)
        assert row.by_server == (method.all_models or not method.by_model)


# --- by example ---------------------------------------------------------------------------------------------------


def edited(*edits: tuple[str, bytes, bytes]) -> Bundle:
    files = dict(demo_bundle().files)
    for name, old, new in edits:
        assert old in files[name]
        files[name] = files[name].replace(old, new)
    found = compile_bundle(files)
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


@lru_cache(maxsize=1)
def health_data_kept_out_of_chat() -> list[Change]:
    new = edited(("access/health-data.cedar", b'Model::"rag"', b'Model::"chat"'))
    return list(compare(demo_bundle(), new, AT).changes())


def test_limits_are_no_verdict() -> None:
    new = edited(("plans.yaml", b"rate: 200/s", b"rate: 100/s"))
    compared = compare(demo_bundle(), new, AT)
    assert list(compared.changes()) == []
    assert compared.asked > len(new.cases)


def test_a_date_to_come_is_told_with_its_moment() -> None:
    new = edited(("tenants/birch.yaml", b"status: active", b"status: active\nuntil: 2026-12-24"))
    found = [change for change in compare(demo_bundle(), new, AT).changes() if change.asked.action is Action.INFER]
    assert found
    assert {change.asked.at for change in found} == {1_798_070_400.0}, "at once nothing changes; on that day it does"
    assert {(change.old.verdict, change.new.verdict, change.new.rule) for change in found} >= {
        ("allow", "TENANT_SUSPENDED", "tenants/birch.yaml:until")
    }


def test_a_case_is_named_by_its_place() -> None:
    cases = {change.case for change in health_data_kept_out_of_chat() if change.case}
    assert cases
    assert all(case.startswith("tests/demo.yaml:") for case in cases)


def test_a_class_that_only_a_policy_names_is_asked_about() -> None:
    changed = {change.asked.data_class for change in health_data_kept_out_of_chat() if change.asked.tenant == "birch"}
    assert changed == {"phi"}, "birch declares none: it was refused for residency, and now is for the policy"

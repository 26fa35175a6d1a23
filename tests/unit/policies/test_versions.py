"""Canaries, aliases, digests and prefix caches in a bundle: what they mean, and every mistake at its place."""

from __future__ import annotations

import pytest

from policies.versions import CANARIES_MAX, PrefixCache
from sidecar.core.routing import Canary, Sticky
from tests.unit.policies.test_bundle import GOOD, edited, good, told

MODELS = GOOD["models.yaml"]
PLANS = GOOD["plans.yaml"]
SHA = "sha256:" + "0f" * 32


def models(more: str) -> dict[str, str | None]:
    return {"models.yaml": MODELS + more}


def plans(more: str) -> dict[str, str | None]:
    return {"plans.yaml": PLANS + more}


class TestCanary:
    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("{version: 2, percent: 10}", Canary("2", "1", 1_000)),
            ('{version: "12", percent: 0}', Canary("12", "11", 0)),
            ("{version: 1, stable: 3, percent: 100}", Canary("1", "3", 10_000)),
            ("{version: 2, percent: 0.25, sticky: request}", Canary("2", "1", 25, Sticky.REQUEST)),
            ("{version: 2, percent: 5, tenants: [acme]}", Canary("2", "1", 500, Sticky.PRINCIPAL, ("acme",))),
            ("{version: 2, percent: 5, tenants: ['a*']}", Canary("2", "1", 500, Sticky.PRINCIPAL, ("a*",))),
        ],
    )
    def test_it_is_understood(self, written: str, meant: Canary) -> None:
        assert good(models(f"embed: {{contract: generic, canary: {written}}}\n")).models["embed"].canary == meant

    @pytest.mark.parametrize(
        ("written", "problem"),
        [
            ("{version: 2, percent: 101}", "5:58: embed.canary.percent: should be from 0 to 100"),
            ("{version: 2, percent: -1}", "5:58: embed.canary.percent: should be from 0 to 100"),
            ("{version: 2, percent: 0.001}", "5:58: embed.canary.percent: has more than two decimals"),
            ("{version: 2, percent: ten}", "5:58: embed.canary.percent: is not a number"),
            ("{version: 2, percent: true}", "5:58: embed.canary.percent: is not a number"),
            ("{version: 0, percent: 1}", "5:46: embed.canary.version: is not a version"),
            ("{version: 01x, percent: 1}", "5:46: embed.canary.version: is not a version"),
            ("{version: 1, percent: 1}", "version 1 has none before it; write stable"),
            ("{version: 2, stable: 2, percent: 1}", "stable and version are the same"),
            ("{version: 2, percent: 1, sticky: tenant}", "5:69: embed.canary.sticky: "),
            ("{version: 2, percent: 1, tenants: []}", "5:61: embed.canary.tenants: "),
            (
                "{version: 2, percent: 1, tenants: [acne]}",
                '5:71: embed.canary.tenants[0]: no such tenant; did you mean "acme"?',
            ),
            ("{version: 2, percent: 1, tenants: ['z*']}", "5:71: embed.canary.tenants[0]: no such tenant"),
            ("{version: 2}", "embed.canary.percent"),
            ("{version: 2, percent: 1, shadow: true}", "embed.canary.shadow"),
        ],
    )
    def test_a_mistake_is_told_where_it_stands(self, written: str, problem: str) -> None:
        (found,) = told(models(f"embed: {{contract: generic, canary: {written}}}\n"))
        assert found.startswith("models.yaml:5:")
        assert problem in found

    def test_more_than_can_be_counted_are_refused(self) -> None:
        one = "m{0}: {{contract: generic, canary: {{version: 2, percent: 1}}}}\n"
        assert good(models("".join(one.format(n) for n in range(CANARIES_MAX))))
        (found,) = told(models("".join(one.format(n) for n in range(CANARIES_MAX + 1))))
        assert "m16.canary: more than 16 canaries at once" in found


class TestAliases:
    def test_a_plans_aliases_are_its_tenants(self) -> None:
        assert good(plans("  aliases: {assistant: chat}\n")).tenants["acme"].aliases == {"assistant": "chat"}
        assert good().tenants["acme"].aliases == {}

    @pytest.mark.parametrize(
        ("written", "problem"),
        [
            ("{a: chta}", '7:16: gold.aliases.a: no such model in models.yaml; did you mean "chat"?'),
            ("{chat: chat}", "gold.aliases.chat: goes round in a circle: chat → chat; name the model itself"),
            ("{a: chat, chat: a}", "goes round in a circle: a → chat → a; name the model itself"),
            ("{a: b, b: chat}", "7:16: gold.aliases.a: leads to another alias: a → b → chat; name the model itself"),
            ("{'a*': chat}", "gold.aliases"),
        ],
    )
    def test_a_mistake_is_told_where_it_stands(self, written: str, problem: str) -> None:
        found = told(plans(f"  aliases: {written}\n"))
        assert found[0].startswith("plans.yaml:7:")
        assert problem in found[0]

    def test_of_a_models_file_that_cannot_be_read_nothing_is_said(self) -> None:
        found = told({"models.yaml": "chat: [\n", **plans("  aliases: {a: chat}\n")})
        assert not any("plans.yaml" in problem for problem in found)


class TestDigests:
    def test_they_are_stated_by_version(self) -> None:
        found = good(models(f'embed: {{contract: generic, digests: {{1: "{SHA}"}}}}\n'))
        assert found.models["embed"].digests == {"1": SHA}

    @pytest.mark.parametrize("written", ['{1: "md5:00"}', f'{{x: "{SHA}"}}', '{1: "sha256:0F"}'])
    def test_what_is_none_is_refused(self, written: str) -> None:
        assert "embed.digests" in told(models(f"embed: {{contract: generic, digests: {written}}}\n"))[0]


class TestPrefixCache:
    def test_a_language_model_has_one_unless_it_says_otherwise(self) -> None:
        assert good().prefix_caches == {"chat": PrefixCache()}
        off = good(edited("models.yaml", "groups: [llm]", "groups: [llm]\n  prefix_cache: {enabled: false}"))
        assert off.prefix_caches["chat"] == PrefixCache(enabled=False)

    def test_groups_and_the_acceptance_are_understood(self) -> None:
        accepted = "{by: dpo, on: 2026-11-30, reason: paid}"
        written = f"groups: [llm]\n  prefix_cache:\n    trust_groups: [[acme]]\n    accepted: {accepted}"
        found = good(edited("models.yaml", "groups: [llm]", written)).prefix_caches["chat"]
        assert found == PrefixCache(True, (frozenset({"acme"}),), "dpo on 2026-11-30: paid")

    @pytest.mark.parametrize(
        ("written", "problem"),
        [
            ("{trust_groups: [[acme, bee]]}", "5:40: chat.prefix_cache.trust_groups[0][1]: no such tenant"),
            ("{enabled: false, trust_groups: [[acme]]}", "leave trust_groups and accepted out"),
            ("{accepted: {by: dpo, on: tomorrow, reason: x}}", "is not a date; write it as 2026-11-30"),
            ("{accepted: {by: dpo, on: 2026-11-30}}", "reason"),
            ("{enabled: 'no'}", "chat.prefix_cache.enabled"),
        ],
    )
    def test_a_mistake_is_told_where_it_stands(self, written: str, problem: str) -> None:
        found = told(edited("models.yaml", "groups: [llm]", f"groups: [llm]\n  prefix_cache: {written}"))
        assert problem in found[0]

    def test_a_generic_model_has_none(self) -> None:
        assert (
            "a generic model has no prefix cache"
            in told(models("embed: {contract: generic, prefix_cache: {enabled: true}}\n"))[0]
        )
        assert "embed" not in good(models("embed: {contract: generic}\n")).prefix_caches

    def test_who_trusts_whom(self) -> None:
        cache = PrefixCache(True, (frozenset({"a", "b"}), frozenset({"b", "c"})))
        assert cache.trusts(["a", "b"])
        assert cache.trusts(["c"])
        assert cache.trusts([])
        assert not cache.trusts(["a", "c"])
        assert not PrefixCache().trusts(["a", "b"])

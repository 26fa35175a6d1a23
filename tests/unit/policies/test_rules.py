"""policies.rules: Cedar asked about what was taken from content; policies.rule_reading: what a rule may not be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.identifiers import CLASSES
from policies import rule_reading
from policies.guards import Guards, Joined
from policies.residency import Residency, Rules
from policies.rule_reading import compile_rules
from policies.rules import GuardRules, RuleSet, Scope
from policies.tenant import Tenant
from sidecar.core.model import AuditRule, Finding, InferenceFacts, Limits

SCOPE = Scope("acme", "gold", "chat", ("llm",), ())
CARD = b"pay 4111 1111 1111 1111 now"


def compiled(*texts: str, **more: Any) -> GuardRules:
    found = compile_rules(
        {"guards/a.cedar": "\n".join(texts).encode()}, ["acme", "birch"], ["llm"], ["phi"], {}, **more
    )
    assert isinstance(found, GuardRules), found
    return found


def rule(condition: str, *, on: str = "prompt", id_: str = "a", more: str = "", principal: str = "principal") -> str:
    return f'@id("{id_}") {more} forbid({principal}, action == Action::"{on}", resource) when {{ {condition} }};'


def asked(rules: GuardRules, on: str = "prompt", scope: Scope = SCOPE) -> RuleSet:
    found = rules.of(scope, on)
    assert found is not None
    return found


def tenant(name: str = "acme") -> Tenant:
    residency = Residency(Rules(("EU",), ("EU",), ("EU",)), {})
    return Tenant(name, f"tenants/{name}.yaml", "gold", active=True, grants=(), limits=Limits(), residency=residency,
                  audit=AuditRule())  # fmt: skip


def joined(*texts: str, who: str = "acme", data_classes: tuple[str, ...] = ()) -> Guards | None:
    return Joined(compiled(*texts)).of(tenant(who), "chat", ("llm",), data_classes)


@pytest.mark.parametrize(
    ("condition", "facts", "found"),
    [
        ("context.length > 10", InferenceFacts(prompts=(b"x" * 11,)), True),
        ("context.length > 10", InferenceFacts(prompts=(("é" * 10).encode(),)), False),
        ('context.classes.contains("card")', InferenceFacts(prompts=(CARD,)), True),
        ('context.classes.contains("email")', InferenceFacts(prompts=(CARD,)), False),
        ("!context.classes.isEmpty()", InferenceFacts(prompts=(b"a@example.com",)), True),
        ("context.max_tokens >= 500", InferenceFacts(prompts=(b"x",), requested_tokens=500), True),
        ("context.max_tokens >= 500", InferenceFacts(prompts=(b"x",), requested_tokens=499), False),
        (
            "context.sequences > 1 && context.streaming",
            InferenceFacts(prompts=(b"x",), sequences=2, streaming=True),
            True,
        ),
        (
            'context has temperature && context.temperature.greaterThan(decimal("1.5"))',
            InferenceFacts(prompts=(b"x",), parameters={"temperature": 1.6}),
            True,
        ),
        (
            'context has temperature && context.temperature.greaterThan(decimal("1.5"))',
            InferenceFacts(prompts=(b"x",)),
            False,
        ),
    ],
)
def test_a_rule_sees_what_was_taken_from_the_prompt(condition: str, facts: InferenceFacts, *, found: bool) -> None:
    guards = joined(rule(condition))
    assert guards is not None
    assert guards.prompt(facts) == ((Finding("a", "prompt", "deny", "deny"),) if found else ())


def test_what_a_rule_says_and_what_is_done_are_told_apart() -> None:
    for more, verdict, enforced in (
        ("", "deny", "deny"),
        ('@flag("x")', "flag", "flag"),
        ('@shadow("x")', "deny", "none"),
    ):
        guards = joined(rule("context.length > 0", more=more))
        assert guards is not None
        assert guards.prompt(InferenceFacts(prompts=(b"x",))) == (Finding("a", "prompt", verdict, enforced),)


def test_a_rule_is_asked_of_its_own_tenant_and_data_class_only() -> None:
    own = rule("context.length > 0", principal='principal == Tenant::"acme"')
    assert joined(own, who="birch") is None
    health = rule('context.data_classes.contains("phi")')
    for classes, found in (((), 0), (("phi",), 1), (("public", "phi"), 1)):
        guards = joined(health, data_classes=classes)
        assert guards is not None
        assert len(guards.prompt(InferenceFacts(prompts=(b"x",)))) == found


def test_an_output_is_judged_as_it_grows() -> None:
    guards = joined(rule('context.classes.contains("card") && context.length > 60', on="output"))
    assert guards is not None
    watch = guards.watch(InferenceFacts())
    assert watch is not None
    assert watch.holds
    assert watch.feed([CARD]) == ()
    assert watch.feed([b"x" * 30]) == ()
    assert watch.feed([b"x" * 30]) == (Finding("a", "output", "deny", "deny"),)


def test_rules_that_only_tell_hold_nothing() -> None:
    guards = joined(rule('context.classes.contains("card")', on="output", more='@flag("x")'))
    assert guards is not None
    watch = guards.watch(InferenceFacts())
    assert watch is not None
    assert not watch.holds
    assert watch.feed([CARD]) == ()
    assert watch.finish() == (Finding("a", "output", "flag", "flag"),)


@given(
    st.lists(
        st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), st.integers(-3, 12)), min_size=1, max_size=4
    ),
    st.lists(st.integers(0, 15), min_size=1, max_size=12),
)
def test_a_remembered_answer_is_the_answer(orders: list[tuple[str, int]], lengths: list[int]) -> None:
    """What is remembered by where a number stands among a rule's bounds is what the rule says of that very number."""
    rules = compiled(*(rule(f"context.length {o} {n}", id_=f"r{i}") for i, (o, n) in enumerate(orders)))
    remembering = asked(rules)
    for length in lengths:
        fresh = asked(rules).judge(length, frozenset(), InferenceFacts())
        assert remembering.judge(length, frozenset(), InferenceFacts()) == fresh
        python = {f"r{i}" for i, (o, n) in enumerate(orders) if eval(f"{length} {o} {n}")}
        assert {found.guard for found in fresh} == python


def test_an_answer_is_remembered_by_what_the_rules_mention_alone() -> None:
    found = asked(compiled(rule("context.max_tokens > 100")))
    for tokens, temperature, length in ((5, 0.1, 1), (99, 0.7, 2), (100, 0.9, 3)):
        found.judge(
            length, frozenset(), InferenceFacts(requested_tokens=tokens, parameters={"temperature": temperature})
        )
    assert len(found._known) == 2, "below the bound, and on it"


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ('@id("a") permit(principal, action, resource);', 1, 10, "forbids, and grants nothing"),
        (rule("context.lenght > 5"), 1, None, "no lenght;"),
        (rule("context.length + 1 > 5"), 1, None, "context.length may only be compared with a number"),
        (rule("context.length > context.max_tokens"), 1, None, "may only be compared with a number"),
        (rule("context.temperature.lessThan(decimal(\"1.0\"))"), 1, None, "context.temperature may be absent"),
        (rule('context.classes.contains("emial")'), 1, None, 'is called "emial"; did you mean "email"?'),
        (rule('context.data_classes.contains("phy")'), 1, None, 'no data class in bundle.yaml is called "phy"'),
        (rule("true", principal='principal == Tenant::"acmee"'), 1, None, 'Tenant::"acmee" is not in the bundle'),
        (rule("true", more='@flagg("x")'), 1, None, "@flagg means nothing here"),
        (rule("context == context"), 1, None, "the context as a whole"),
        ('\n\nforbid(principal, action, resource) when { "x };', 3, None, "doesn't end"),
        ("forbid(principal, action, resource);", 1, 1, 'without @id("…")'),
        (rule("true", id_="taken"), 1, None, "the @id of a guard too, in tenants/acme.yaml"),
        ('@id("a") forbid(principal, action == Action::"infer", resource);', 1, None, "infer"),
    ],
)  # fmt: skip
def test_what_a_rule_may_not_be(text: str, line: int, column: int | None, words: str) -> None:
    sources = {"guards/a.cedar": text.encode()}
    found = compile_rules(sources, ["acme"], ["llm"], ["phi"], {"taken": "tenants/acme.yaml"})
    assert isinstance(found, list)
    assert any(words in each.message for each in found), found
    assert {(each.file, each.line) for each in found} == {("guards/a.cedar", line)}
    assert column is None or found[0].column == column


def test_rules_and_identifiers_go_by_the_same_names() -> None:
    assert rule_reading.IDENTIFIERS == CLASSES


def test_no_rules_are_nothing_at_all() -> None:
    assert compile_rules({"guards/a.cedar": b"// none yet\n"}, [], [], None, {}) is None

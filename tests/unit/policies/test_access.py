"""Cedar policies: what is refused at load and where, and what permits and forbids mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.access import (
    MENTIONABLE,
    Access,
    Answer,
    Question,
)
from policies.statements import MAX_NESTING, MAX_POLICIES, MAX_POLICY_CHARS, compile_access
from sidecar.core.model import Action

ASKED = Question(
    tenant="acme",
    plan="gold",
    name="alice",
    kind="jwt",
    issuer="https://issuer",
    roles=frozenset({"tenant"}),
    action=Action.INFER,
    model="chat",
    groups=("llm",),
    region="eu-west-1",
    jurisdiction="EU",
    data_class="",
    method="ModelInfer",
    source="10.1.2.3",
    hour=9,
    minute=30,
    weekday=2,
)
NO, ANY = Answer(applies=False), "principal, action, resource"


def access(text: str, *more: str) -> Access:
    sources = {f"access/{index}.cedar": source.encode() for index, source in enumerate((text, *more))}
    found = compile_access(sources, {"acme", "birch"}, {"llm"})
    assert isinstance(found, Access), [str(problem) for problem in found]
    return found


def told(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    found = compile_access({"a.cedar": data}, {"acme", "birch"}, {"llm"})
    assert isinstance(found, list), "these policies should be refused"
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("condition", "applies"),
    [
        ("", True),
        ('when { principal in Tenant::"acme" }', True),
        ('when { principal in Tenant::"birch" }', False),
        ('when { principal == Principal::"acme/alice" }', True),
        ('when { principal.tenant.plan == "gold" }', True),
        ('when { principal.name like "al*" }', True),
        ('when { principal.kind == "api_key" }', False),
        ('when { principal.issuer == "https://issuer" }', True),
        ('when { principal.roles.contains("admin") }', False),
        ('when { resource in Group::"llm" }', True),
        ('when { resource == Model::"rag" }', False),
        ('when { context.region == "eu-west-1" && context.jurisdiction == "EU" }', True),
        ('when { context.data_class == "phi" }', False),
        ('when { context.method == "ModelInfer" }', True),
        ('unless { action == Action::"infer" }', False),
        ('when { context has source && context.source.isInRange(ip("10.0.0.0/8")) }', True),
        ('when { context has source && context.source.isInRange(ip("2001:db8::/32")) }', False),
        ("when { context.hour >= 8 && context.hour < 18 && context.weekday <= 5 }", True),
        ("when { context.minute > 30 }", False),
    ],
)
def test_a_policy_sees_the_whole_question(condition: str, *, applies: bool) -> None:
    answer = Answer(applies, ("x",) if applies else ())
    assert access(f'@id("x") forbid({ANY}) {condition};').forbidden(ASKED) == answer
    assert access(f'@id("x") permit({ANY}) {condition};').grants(ASKED) == answer


def test_nothing_is_granted_or_forbidden_without_policies() -> None:
    empty = access("")
    assert (empty.grants(ASKED), empty.forbidden(ASKED)) == (NO, NO)
    assert access(f'@id("p") permit({ANY});').forbidden(ASKED) == NO
    assert access(f'@id("f") forbid({ANY});').grants(ASKED) == NO


def test_all_that_apply_are_named_in_the_bundle_s_order() -> None:
    found = access(f'@id("z") forbid({ANY});', f'@id("a") forbid({ANY});')
    assert found.forbidden(ASKED) == Answer(applies=True, rules=("z", "a"))


def test_the_server_itself_can_be_asked_about() -> None:
    found = access('@id("m") forbid(principal, action == Action::"manage", resource == Server::"triton");')
    asked = replace(ASKED, action=Action.MANAGE, model="", groups=(), method="RepositoryIndex")
    assert found.forbidden(asked) == Answer(applies=True, rules=("m",))
    assert found.forbidden(replace(asked, model="chat")) == NO


def test_a_forbid_that_cannot_be_evaluated_forbids_and_such_a_permit_grants_nothing() -> None:
    overflow = 'when { 9223372036854775807 + context.method.contains("x") > 0 }'
    assert told(f'@id("x") forbid({ANY}) {overflow};'), "the schema already refuses what has the wrong type"
    condition = 'when { Tenant::"birch".plan == "gold" }'  # asked about acme, so birch is not among the entities
    answer = access(f'@id("x") forbid({ANY}) {condition};').forbidden(ASKED)
    assert answer.applies
    assert "birch" in answer.fault
    assert not access(f'@id("x") permit({ANY}) {condition};').grants(ASKED).applies
    beside = access(f'@id("x") permit({ANY}) {condition};\n@id("y") permit({ANY});')
    assert not beside.grants(ASKED).applies, "not even beside one that can be"


def test_a_name_that_cedar_cannot_hold_is_a_fault_not_a_crash() -> None:
    odd = replace(ASKED, name="\ud800")
    assert access(f'@id("x") forbid({ANY}) when {{ context.data_class == "phi" }};').forbidden(odd).applies
    assert not access(f'@id("x") permit({ANY});').grants(odd).applies


@pytest.mark.parametrize(
    ("condition", "by_name"),
    [
        ("", False),
        ('when { principal in Tenant::"acme" }', False),
        ('when { principal.roles.contains("tenant") && principal.kind == "jwt" }', False),
        ('when { principal == Principal::"acme/alice" }', True),
        ('when { principal.name == "alice" }', True),
        ('when { principal has issuer && principal.issuer == "x" }', True),
        ('when { principal["name"] == "alice" }', True),
        ('when { [Principal::"acme/alice"].contains(principal) }', True),
    ],
)
def test_knows_whether_it_matters_who_exactly_asks(condition: str, *, by_name: bool) -> None:
    assert access(f'@id("x") forbid({ANY}) {condition};').by_name is by_name


@pytest.mark.parametrize(
    ("condition", "mentions"),
    [
        ("", ""),
        ("when { context.hour > 8 }", "hour"),
        ("when { context has source && context.source.isLoopback() }", "source"),
        ('when { context["method"] == "ModelInfer" }', "method"),
        ("when { principal.roles.contains(principal.kind) || context.minute == context.weekday }",
         "roles kind minute weekday"),
        ("when { principal.tenant.plan == context.region }", ""),
        # Looked at as a whole, anything in it may decide.
        ("when { context == context }", " ".join(MENTIONABLE)),
    ],
)  # fmt: skip
def test_knows_what_an_answer_depends_on(condition: str, mentions: str) -> None:
    assert access(f'@id("x") forbid({ANY}) {condition};').mentions == set(mentions.split())


def test_a_caller_without_an_address_is_in_no_network() -> None:
    inside = access(
        f'@id("x") forbid({ANY}) unless {{ context has source && context.source.isInRange(ip("10.0.0.0/8")) }};'
    )
    assert inside.forbidden(ASKED) == NO
    assert inside.forbidden(replace(ASKED, source="")).rule == "x"


def test_a_forbid_in_shadow_is_asked_apart() -> None:
    found = access(f'@id("x") @shadow("on trial") forbid({ANY});\n@id("y") forbid({ANY}) when {{ context.hour == 0 }};')
    assert found.forbidden(ASKED) == NO
    assert found.shadowed(ASKED) == Answer(applies=True, rules=("x",))
    assert access(f'@id("y") forbid({ANY});').shadowed(ASKED) == NO


def test_data_classes_are_the_bundle_s() -> None:
    text = f'@id("x") forbid({ANY}) when {{ context.data_class == "phy" || "pii" != context.data_class }};'
    found = compile_access({"a.cedar": text.encode()}, {"acme"}, {"llm"}, ("phi", "public"))
    assert isinstance(found, list)
    assert sorted(str(problem) for problem in found) == [
        'a.cedar:1:75: x: data class "phy" is not in bundle.yaml; did you mean "phi"?',
        'a.cedar:1:84: x: data class "pii" is not in bundle.yaml; did you mean "phi"?',
    ]
    assert isinstance(compile_access({"a.cedar": text.encode()}, {"acme"}, {"llm"}), Access), "it names none"
    unset = f'@id("x") forbid({ANY}) when {{ context.data_class == "" }};'
    assert isinstance(compile_access({"a.cedar": unset.encode()}, {"acme"}, {"llm"}, ("phi",)), Access)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (f'@id("x") @shadow("y") permit({ANY});',
         ["a.cedar:1:10: x: a permit can't be in shadow: nothing would come of it"]),
        (f'@id("x") @shaddow("y") forbid({ANY});',
         ['a.cedar:1:10: x: @shaddow means nothing here; did you mean "shadow"?']),
        (f'@id("x") forbid({ANY}) when {{ context.source.isLoopback() }};',
         ["a.cedar:1:61: x: context.source may be absent; write context has source && before what asks for it"]),
        (f"forbid({ANY});", ['a.cedar:1:1: a policy without @id("…"); refusals name it']),
        (f'// why\n\n  @id("")\nforbid({ANY});', ['a.cedar:3:3: a policy without @id("…"); refusals name it']),
        (f'@id("a b") forbid({ANY});',
         ["a.cedar:1:5: a b: an @id is letters, digits, '.', '_' and '-', at most 64"]),
        (f'@id("allow-list") permit({ANY});',
         ['a.cedar:1:5: allow-list: @id("allow-list") is the base permission\'s']),
        (f'@id("x") forbid({ANY});\n@id("x") permit({ANY});',
         ["a.cedar:2:5: x: duplicate @id, first at a.cedar:1"]),
        (f'@id("x") forbid({ANY})\nwhen {{ context.colour == "red" }};',
         [("a.cedar:2:16: x: the context has no colour; it has data_class, hour, jurisdiction, method, minute, region, "
           "source and weekday; did you mean \"hour\"?")]),
        ('@id("x") forbid(principal, action == Action::"infr", resource);',
         ['a.cedar:1:38: x: no action is called infr; there are infer, manage and metadata; did you mean "infer"?']),
        ('@id("x") forbid(principal in Tenant::"acne", action, resource in Group::"lm");',
         ['a.cedar:1:66: x: Group::"lm" is not in the bundle; did you mean "llm"?',
          'a.cedar:1:30: x: Tenant::"acne" is not in the bundle; did you mean "acme"?']),
        ("forbid(principal, resource);",
         ["a.cedar:1:19: not Cedar: found the variable `resource` where the variable `action` must be used"]),
        ('@id("x") forbid(principal == ?principal, action, resource);',
         ["a.cedar:1:1: a template; write the principal or resource instead of a ?slot"]),
        (f'@id("x") forbid({ANY})', ["a.cedar:1:1: a policy that doesn't end with a semicolon"]),
        (f'@id("x") forbid({ANY}) when {{ "a }};', ["a.cedar:1:53: a string that doesn't end"]),
        (b"// \xff\n", ["a.cedar:1:4: not UTF-8"]),
        (f'@id("x") forbid({ANY}) when {{ ' + "(" * 5000 + "true" + ")" * 5000 + " };",
         [f"a.cedar:1:{53 + MAX_NESTING - 1}: nested deeper than {MAX_NESTING} brackets"]),
        (f'@id("x") forbid({ANY}) when {{ ' + "true && " * MAX_POLICY_CHARS + "true };",
         [f"a.cedar:1:1: a policy longer than {MAX_POLICY_CHARS} characters"]),
        (f'@id("x") forbid({ANY}) when {{ ' + "1+" * 4000 + "1 > 0 };", ["a.cedar:1:1: nested too deeply"]),
        ("".join(f'@id("x{n}") forbid({ANY});' for n in range(MAX_POLICIES + 1)),
         [f"a.cedar:1:1: more than {MAX_POLICIES} policies in access/"]),
    ],
    ids=range(20),
)  # fmt: skip
def test_a_bad_policy_is_told_at_its_place(text: str | bytes, problems: list[str]) -> None:
    assert told(text) == problems


def test_semicolons_and_slashes_in_strings_are_text() -> None:
    found = access(f'@id("x") forbid({ANY}) when {{ context.data_class == "a;b//c\\";" }}; // end\n')
    assert list(found.statements) == ["x"]
    assert found.forbidden(replace(ASKED, data_class='a;b//c";')).applies

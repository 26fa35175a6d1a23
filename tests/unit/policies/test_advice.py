"""policies.advice: a policy that can't be is told where, in the schema's own names, and with what was meant."""

from __future__ import annotations

from importlib.resources import files

import cedarpy
import pytest

from policies.advice import Words, words_of
from tests.unit.policies.test_bundle import told

SCHEMAS = ("warden.cedarschema", "guards.cedarschema")
TYPES = "there are Group, Model, Principal, Server and Tenant"
CONTEXT = "it has data_class, hour, jurisdiction, method, minute, region, source and weekday"


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ('(principal, action == Action::"infr", resource)',
         '2:30: x: no action is called infr; there are infer, manage and metadata; did you mean "infer"?'),
        ('(principal, action in [Action::"infer", Action::"mange"], resource)',
         '2:48: x: no action is called mange; there are infer, manage and metadata; did you mean "manage"?'),
        ('(principal in Tenat::"acme", action, resource)',
         f'2:22: x: no entity type is called Tenat; {TYPES}; did you mean "Tenant"?'),
        ("(principal is Prinicpal, action, resource)",
         f'2:22: x: no entity type is called Prinicpal; {TYPES}; did you mean "Principal"?'),
        ('(principal, action, resource in Gruop::"llm")',
         f'2:40: x: no entity type is called Gruop; {TYPES}; did you mean "Group"?'),
        ('(principal, action, resource in Group::"lmm")',
         '2:40: x: Group::"lmm" is not in the bundle; did you mean "llm"?'),
        ('(principal == Tenant::"acme", action, resource)',
         '2:22: x: no principal is ever a Tenant; did you mean principal in Tenant::"acme"?'),
        ('(principal, action, resource == Group::"llm")',
         '2:40: x: no resource is ever a Group; did you mean resource in Group::"llm"?'),
        ('(principal in Group::"llm", action, resource)',
         "2:22: x: no principal is in a Group; it is in a Principal or Tenant"),
        ('(principal, action == Action::"infer", resource == Server::"triton")',
         "2:59: x: no resource of infer is ever a Server; it is a Model"),
        ('(principal == Principal::"acme", action, resource)',
         '2:22: x: Principal::"acme" is nobody: write its tenant, a slash and its name; did you mean "acme"?'),
        ('(principal == Principal::"acm/ada", action, resource)',
         '2:22: x: Principal::"acm/ada" is nobody: write its tenant, a slash and its name; did you mean "acme"?'),
        ('(principal, action, resource) when { context.regoin == "x" }',
         f'2:53: x: the context has no regoin; {CONTEXT}; did you mean "region"?'),
        ("(principal, action, resource) when { context has regoin }",
         f'2:57: x: the context has no regoin; {CONTEXT}; did you mean "region"?'),
        ('(principal, action, resource) when { principal.tenant.plna == "x" }',
         '2:62: x: a Tenant has no plna; it has plan; did you mean "plan"?'),
        ('(principal, action, resource) when { principal.rolse.contains("x") }',
         '2:55: x: a Principal has no rolse; it has issuer, kind, name, roles and tenant; did you mean "roles"?'),
        ('(principal, action, resource)\nwhen { resource.name == "x" }',
         "3:17: x: a Model has no name; it has no attributes"),
        ('(principal, action, resource) when { context.source.isInRange(ip("10.0.0.0/8")) }',
         "2:53: x: context.source may be absent; write context has source && before what asks for it"),
        ("(principal, action, resource) when { contxt.hour > 1 }",
         ('2:45: not Cedar: invalid member access `contxt.hour`, `contxt` has no fields or methods; '
          'did you mean "context"?')),
        ('(principal, action, resource) when { context.region.contians("x") }',
         '2:60: not Cedar: `contians` is not a valid method; did you mean "contains"?'),
        ('(principal, action, resource) when { ipp("1.2.3.4").isLoopback() }',
         '2:45: not Cedar: `ipp` is not a valid function; did you mean "ip"?'),
    ],
)  # fmt: skip
def test_what_a_policy_may_not_say_is_told_with_what_it_may(policy: str, problem: str) -> None:
    found = told({"access/a.cedar": f'@id("x")\nforbid {policy};\n'})
    assert [each.removeprefix("access/a.cedar:") for each in found][:1] == [problem]
    assert len(found) == 1, found


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ('(principal, action == Action::"infer", resource)',
         "2:30: x: no action is called infer; there are output and prompt"),
        ('(principal in Group::"llm", action, resource)',
         "2:22: x: no principal is in a Group; it is in a Tenant"),
        ("(principal, action, resource) when { context.langth > 1 }",
         ("2:53: x: the context has no langth; it has classes, data_classes, length, max_tokens, prompt_tokens, "
          'sequences, streaming, temperature and top_p; did you mean "length"?')),
    ],
)  # fmt: skip
def test_rules_on_content_are_told_alike(policy: str, problem: str) -> None:
    found = told({"guards/r.cedar": f'@id("x")\nforbid {policy};\n'})
    assert [each.removeprefix("guards/r.cedar:") for each in found] == [problem]


def asks(words: Words, principal: str, action: str, resource: str, condition: str = "true") -> bool:
    scope = f'principal is {principal}, action == Action::"{action}", resource is {resource}'
    policy = f"forbid({scope}) when {{ {condition} }};"
    return bool(cedarpy.validate_policies(policy, words.schema).validation_passed)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_words_are_the_schema_s(schema: str) -> None:
    """Cedar itself knows each name that was read, and refuses one that wasn't."""
    words = words_of(schema)
    text = files("policies").joinpath(schema).read_text("utf-8")
    assert text.count("\nentity ") == len(words.attributes)
    for action, (principals, resources) in words.asked.items():
        for principal in principals:
            for resource in resources:
                assert asks(words, principal, action, resource)
                for name in words.context:
                    assert asks(
                        words, principal, action, resource, f"context has {name} && context.{name} == context.{name}"
                    )
                for name in words.attributes[principal]:
                    assert asks(words, principal, action, resource, f"principal.{name} == principal.{name}")
                for above in words.above[resource]:
                    assert asks(words, principal, action, resource, f'resource in {above}::"x"')
                assert not asks(words, principal, action, resource, "context.other == 1")
                for other in set(words.attributes) - set(resources):
                    assert not asks(words, principal, action, other)

"""policies.demands: a tenant has what its plan demands of content, and what it adds; never less."""

from __future__ import annotations

from itertools import product

import pytest

from policies.guards import Guards
from policies.watching import Hold
from sidecar.core.model import InferenceFacts, Redaction
from tests.unit.policies.test_bundle import GOOD, TENANT, good, told

FIRST = GOOD[TENANT].count("\n") + 1
PLAN = """\
  guards:
    - {id: no-cards, on: prompt, classes: [card], then: deny}
    - {id: codename, on: output, patterns: [project x], then: deny, replaceable: true}
  hold_back: {bytes: 512, within: 200ms}
  redact:
    - email
    - {class: iban, by: hash}
    - {class: badge, pattern: 'E-[0-9]{6}'}
    - {class: phone, regions: [DE]}
    - {class: ip, by: drop, replaceable: true}
"""


def both(tenant: str = "", redact: str = "") -> dict[str, str | None]:
    """The good bundle with that plan; what its tenant adds."""
    own = GOOD[TENANT].replace("400d}", f"400d, redact: [{redact}]}}") if redact else GOOD[TENANT]
    return {"plans.yaml": GOOD["plans.yaml"] + PLAN, TENANT: own + tenant}


def guards(changes: dict[str, str | None]) -> Guards:
    found = good(changes).tenants["acme"].guards
    assert found is not None
    return found


def test_a_tenant_that_says_nothing_has_its_plan_s() -> None:
    acme = good(both()).tenants["acme"]
    assert acme.guards is not None
    assert [guard.name for guard in acme.guards.guards] == ["no-cards", "codename"]
    assert acme.hold == acme.guards.hold == Hold(512, 200_000_000)
    assert acme.audit.redact == (
        Redaction("email"), Redaction("iban", "hash"), Redaction("badge", "replace", "E-[0-9]{6}"),
        Redaction("phone", "replace", "", ("DE",)), Redaction("ip", "drop"),
    )  # fmt: skip
    assert [each.guard for each in acme.guards.prompt(InferenceFacts(prompts=(b"4111 1111 1111 1111",)))] == [
        "no-cards"
    ]


def test_a_tenant_adds_to_them() -> None:
    added = "guards:\n  - {id: huge, on: prompt, longer_than: 5, then: flag}\nhold_back: {bytes: 600, within: 1s}\n"
    acme = good(both(added, "card, {class: email, by: drop}, {class: phone, regions: [FR]}")).tenants["acme"]
    assert acme.guards is not None
    assert [guard.name for guard in acme.guards.guards] == ["no-cards", "codename", "huge"]
    assert acme.hold == Hold(600, 1_000_000_000)
    redact = {each.kind: each for each in acme.audit.redact}
    assert set(redact) == {"email", "iban", "badge", "phone", "ip", "card"}
    assert (redact["email"].by, redact["phone"].regions) == ("drop", ("DE", "FR"))


def test_what_a_plan_calls_replaceable_gives_way() -> None:
    added = "guards:\n  - {id: codename, on: output, patterns: [project y], then: deny, shadow: true}\n"
    changes = both(added, "{class: ip, by: hash}")
    assert [(guard.name, guard.patterns, guard.shadow) for guard in guards(changes).guards] == [
        ("no-cards", (), False),
        ("codename", ("project y",), True),
    ]
    assert Redaction("ip", "hash") in good(changes).tenants["acme"].audit.redact


@pytest.mark.parametrize(
    ("tenant", "problem"),
    [
        ("guards:\n  - {id: no-cards, on: prompt, classes: [card], then: flag}\n",
         (f"{FIRST + 1}:10: guards[0].id: its plan has a guard no-cards that isn't replaceable; "
          "give this one another id")),
        ("guards:\n  - {id: other, on: prompt, classes: [card], then: flag, replaceable: true}\n",
         f"{FIRST + 1}:5: guards[0]: replaceable is for a plan's guards"),
        ("hold_back: {bytes: 511, within: 200ms}\n",
         f"{FIRST}:1: hold_back: holds back less than its plan (512 bytes, 0.2s)"),
        ("hold_back: {bytes: 512, within: 100ms}\n",
         f"{FIRST}:1: hold_back: holds back less than its plan (512 bytes, 0.2s)"),
    ],
)  # fmt: skip
def test_less_than_the_plan_s_is_refused(tenant: str, problem: str) -> None:
    assert told(both(tenant)) == [f"{TENANT}:{problem}"]


@pytest.mark.parametrize(
    ("redact", "problem"),
    [
        ("{class: email, by: hash}", "audit.redact[0]: hash leaves more of email than its plan's replace"),
        ("{class: badge, pattern: 'E-[0-9]{7}'}", "audit.redact[0]: its plan redacts badge by another pattern"),
        ("{class: card, replaceable: true}", "audit.redact[0]: replaceable is for a plan's redactions"),
    ],
)
def test_a_weaker_redaction_is_refused(redact: str, problem: str) -> None:
    assert told(both(redact=redact)) == [f"{TENANT}:11:50: {problem}"]


def test_of_every_pair_only_the_stricter_stands() -> None:
    """Whatever a plan and its tenant say of a class, what is kept of an identifier is no more than the plan lets."""
    ways = ("hash", "replace", "drop")
    for plan, own in product(ways, ways):
        changes = both(redact=f"{{class: card, by: {own}}}")
        changes["plans.yaml"] = GOOD["plans.yaml"] + f"  redact: [{{class: card, by: {plan}}}]\n"
        if ways.index(own) < ways.index(plan):
            assert told(changes)
        else:
            assert good(changes).tenants["acme"].audit.redact == (Redaction("card", own),)


def test_a_plan_s_own_mistake_is_told_in_the_plan() -> None:
    plan = GOOD["plans.yaml"] + "  guards:\n    - {id: a, on: prompt, classes: [emial], then: deny}\n"
    (problem,) = told({"plans.yaml": plan})
    assert problem.startswith("plans.yaml:8:7: gold.guards[0]")
    assert "no class 'emial'" in problem


def test_tenants_of_one_plan_share_what_it_compiles_to() -> None:
    birch = GOOD[TENANT].replace("tenant: acme", "tenant: birch")
    bundle = good({**both(), "tenants/birch.yaml": birch})
    assert bundle.tenants["acme"].guards is bundle.tenants["birch"].guards

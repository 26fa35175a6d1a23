"""Terms that differ between bundles: each by its name, with its dates, and none that doesn't."""

from __future__ import annotations

import pytest
from msgspec.structs import fields

from policies.bundle import Bundle, compile_bundle
from policies.differences import Difference, differences
from policies.tenant import Tenant
from tests.support.policy import demo_bundle

AT = 1_796_000_000.0  # 2026-11-30


def edited(*edits: tuple[str, str, str]) -> Bundle:
    files = dict(demo_bundle().files)
    for name, old, new in edits:
        assert old.encode() in files[name], old
        files[name] = files[name].replace(old.encode(), new.encode())
    found = compile_bundle(files)
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


def told(new: Bundle) -> set[tuple[str, str, str, str]]:
    found = list(differences(demo_bundle(), new, AT))
    back = list(differences(new, demo_bundle(), AT))
    assert sorted((each.subject, each.name, each.new, each.old) for each in back) == sorted(
        (each.subject, each.name, each.old, each.new) for each in found
    ), "and back"
    return {(each.subject, each.name, each.old, each.new) for each in found}


ACME, BIRCH = "tenants/acme.yaml", "tenants/birch.yaml"


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("plans.yaml", "rate: 2/s", "rate: 3/s", [("requests", "2/s, burst 5", "3/s, burst 5")]),
        ("plans.yaml", "per_minute: 20000", "per_minute: 30000", [("tokens.per_minute", "20000", "30000")]),
        ("plans.yaml", "concurrency: 4", "concurrency: unlimited", [("concurrency", "4", "unlimited")]),
        ("plans.yaml", "kv_memory: 32MiB", "kv_memory: 64MiB", [("kv_memory", "33554432", "67108864")]),
        ("plans.yaml", "concurrency: 4", "concurrency: 4\n  on_limit: queue 1s",
         [("on_limit queue (ns)", "0", "1000000000")]),
        ("plans.yaml", "concurrency: 4", "concurrency: 4\n  per_model: {'v*': {concurrency: 2}}",
         [("per_model.v*", "", "there"), ("per_model.v*.concurrency", "unlimited", "2")]),
        ("plans.yaml", "concurrency: 4", "concurrency: 4\n  aliases: {eye: vision}", [("aliases.eye", "", "vision")]),
        (BIRCH, "retention: 200d", "retention: unlimited", [("audit.retention (days)", "200", "")]),
        (BIRCH, "level: full", "level: prompt", [("audit.level", "full", "prompt")]),
        (BIRCH, "- email\n", "- {class: email, by: hash}\n", [("audit.redact.email", "replace", "hash")]),
        (BIRCH, "    - email\n", "", [("audit.redact.email", "replace", "")]),
        (BIRCH, "then: flag}", "then: deny}",
         [("guards.mail-in-answers", "on output: classes email: flag", "on output: classes email: deny")]),
        (BIRCH, "then: deny, shadow: true}", "then: deny}",
         [("guards.canary-word", "on output: patterns (?i)harbour lights: deny in shadow",
           "on output: patterns (?i)harbour lights: deny")]),
        (BIRCH, "bytes: 256", "bytes: 512", [("hold_back.bytes", "256", "512")]),
        (BIRCH, "status: active", "status: active\nfrom: 2027-01-01", [("from", "", "2027-01-01T00:00:00+00:00")]),
        (BIRCH, "models: [chat,", "models: [{model: chat, until: 2027-01-01},",
         [("models.chat", "for good", "until 2027-01-01T00:00:00+00:00")]),
        (BIRCH, "models: [chat, vision]", "models: [vision, chat]", []),  # in whatever order
        (BIRCH, "storage: [EU]", "storage: [EU, US]", [("residency.storage", "EU", "EU, US")]),
        (BIRCH, "storage: [EU]", "storage: [EU]\n  records: [EU]", [("residency.records", "", "EU")]),
        (BIRCH, "telemetry: [EU]", "telemetry: withheld", [("residency.telemetry", "EU", "withheld")]),
        (ACME, "phi: [eu-west-1]", "phi: [EU]", [("residency.classes.phi.processing", "eu-west-1", "EU")]),
        (ACME, "level: full", "level: full\n  classes: {phi: {durability: strict}}",
         [("audit.classes.phi.durability", "", "strict")]),
        (ACME, "plan: gold", "plan: gold\nloras: [a, b]", [("loras", "", "a, b")]),
    ],
)  # fmt: skip
def test_a_term_is_told_by_its_name(file: str, old: str, new: str, expected: list[tuple[str, str, str]]) -> None:
    found = told(edited((file, old, new)))
    subjects = ["tenant acme"] if file == ACME else ["tenant birch"]
    if file == "plans.yaml":
        subjects.append("plan bronze")
    assert found == {(subject, *each) for subject in subjects for each in expected}


def test_rules_models_and_regions() -> None:
    assert told(edited(("models.yaml", "max_tokens: 1024", "max_tokens: 512"))) == {
        ("model rag", "max_tokens", "1024", "512")
    }
    moved = edited(("models.yaml", "percent: 10", "percent: 20"))
    assert {(subject, name) for subject, name, *_ in told(moved)} == {("model embed", "canary.share")}
    flagged = edited(("guards/content.cedar", '@flag("health data should come without who it is about")\n', ""))
    assert {(subject, name) for subject, name, *_ in told(flagged)} == {("bundle", "guards phi-without-names")}
    shadow = edited(("access/health-data.cedar", "forbid (", '@shadow("trial") forbid ('))
    assert {(subject, name) for subject, name, *_ in told(shadow)} == {("bundle", "access phi-not-in-rag")}
    again = edited(("access/health-data.cedar", "forbid (", "forbid\n  // as before\n ("))
    assert told(again) == set(), "another layout is no change"


def test_what_is_only_for_a_time_has_its_dates() -> None:
    new = edited(
        (
            BIRCH,
            "2026-02-01, until: 2026-03-01T12:00+01:00, concurrency: 8",
            "2027-02-01, until: 2027-03-01, concurrency: 8",
        )
    )
    (found,) = differences(demo_bundle(), new, AT)
    assert found == Difference("tenant birch", "concurrency", "4", "8", 1_801_440_000.0, 1_803_859_200.0)
    over = edited((BIRCH, "concurrency: 8", "concurrency: 9"))
    assert list(differences(demo_bundle(), over, AT)) == [], "it was over before"


def test_keys_and_tenants_that_come_and_go() -> None:
    assert told(edited((ACME, "concurrency: 4", "concurrency: 5"))) == {
        ("tenant acme, key nightly", "concurrency", "4", "5")
    }
    assert told(edited((ACME, "    until: 2030-01-01\n", ""))) == {
        ("tenant acme, key nightly", "until", "2030-01-01T00:00:00+00:00", "")
    }
    assert told(edited((ACME, "nightly:", "weekly:"))) >= {
        ("tenant acme, key nightly", "", "there", ""), ("tenant acme, key weekly", "", "", "there"),
    }  # fmt: skip
    files = dict(demo_bundle().files)
    del files["tenants/dormant.yaml"]
    files["tests/demo.yaml"] = b"[]"
    fewer = compile_bundle(files)
    assert isinstance(fewer, Bundle)
    assert told(fewer) == {("tenant dormant", "", "there", "")}


def test_no_field_of_a_tenant_is_forgotten() -> None:
    """Whoever adds a field must say here how it is told."""
    known = {
        "name", "document", "plan", "active", "grants", "limits", "residency", "audit", "period", "later", "overrides",
        "loras", "keys", "guards", "hold", "audit_classes", "aliases",
    }  # fmt: skip
    assert {field.name for field in fields(Tenant)} == known

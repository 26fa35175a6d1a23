"""Content put to a bundle: which guards find something, what is done about it, and what a record is stored without."""

from __future__ import annotations

import pytest

from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from policies.compare import compare
from policies.content import Content, facts_of
from policies.coverage import rules, untouched
from policies.explain import Asked, Explanation, explain
from sidecar.core.model import ModelProfile, Verdict
from sidecar.triton.contracts import estimate_tokens
from tests.support.policy import demo_bundle, demo_policy

CARD = "my card is 4111 1111 1111 1111"
BIRCH = "tenants/birch.yaml"


def with_files(**changes: tuple[str, str]) -> Bundle:
    files = dict(demo_bundle().files)
    for name, (old, new) in changes.items():
        path = {"birch": BIRCH, "plans": "plans.yaml"}[name]
        assert old.encode() in files[path]
        files[path] = files[path].replace(old.encode(), new.encode())
    found = compile_bundle(files)
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


CUTS = with_files(birch=("then: deny, shadow: true}", "then: deny}"))


def explained(content: Content, bundle: Bundle | None = None, **more: str) -> Explanation:
    asked = Asked(**{"tenant": "birch", "model": "chat", "region": "eu-west-1", **more}, content=content)  # type: ignore[arg-type]
    found = explain(bundle or demo_bundle(), asked)
    assert isinstance(found, Explanation)
    return found


def test_a_prompt_that_a_guard_denies() -> None:
    found = explained(Content(CARD))
    assert (found.answer, found.verdict.rule, found.allowed) == ("POLICY_FORBIDS", "guards.no-cards", False)
    assert [(step.step, step.outcome) for step in found.steps[-2:]] == [("prompt", "deny"), ("redaction", "pass")]
    told = found.json()
    assert told["findings"] == [{"guard": "no-cards", "on": "prompt", "verdict": "deny", "enforced": "deny"}]
    assert told["redacted"] == {"card": 1}


def test_an_output_is_cut_flagged_or_looked_at_in_shadow() -> None:
    output = "see the harbour lights, ask jo@example.com"
    cut = explained(Content("go", output), CUTS)
    assert (cut.answer, cut.verdict.rule, cut.json()["verdict"]) == ("cut", "guards.canary-word", "cut")
    shadow = explained(Content("go", output))
    assert (shadow.answer, shadow.steps[-2].outcome) == ("allow", "shadow")
    assert {each.guard for each in shadow.judged.findings} == {"canary-word", "mail-in-answers"} if shadow.judged else 0
    assert explained(Content("go", "good morning")).steps[-2].detail == "no guard finds anything"


def test_a_denied_prompt_has_no_output_and_an_output_can_be_asked_about_alone() -> None:
    both = explained(Content(CARD, "the harbour lights"), CUTS)
    assert [each.guard for each in both.judged.findings] == ["no-cards"] if both.judged else 0
    assert explained(Content(output="the harbour lights"), CUTS).answer == "cut"


def test_who_may_not_call_is_refused_before_the_content_is_looked_at() -> None:
    found = explained(Content(CARD), model="rag")
    assert (found.answer, found.judged) == ("MODEL_NOT_FOUND", None)


def test_a_generic_model_s_tensors_are_not_read() -> None:
    found = explained(Content(CARD), model="vision")
    assert (found.answer, found.steps[-1].step, found.steps[-1].outcome) == ("allow", "content", "skip")


def test_what_a_level_does_not_keep_is_not_redacted() -> None:
    prompts = with_files(birch=("level: full", "level: prompt"))
    assert explained(Content("jo@example.com", "al@example.com"), prompts).json()["redacted"] == {"email": 1}
    nothing = with_files(birch=("level: full", "level: metadata"))
    assert explained(Content("jo@example.com", "al@example.com"), nothing).json()["redacted"] == {}


def test_prompt_tokens_are_estimated_as_by_a_sidecar() -> None:
    verdict = Verdict("r", "d", ModelProfile("chat"), demo_policy().limits("birch", "chat", "", 0.0)[0], None)  # type: ignore[index,arg-type]
    for text in ("", "a", "four", "five5", "ünïcödé" * 100):
        assert facts_of(Content(text), verdict).prompt_tokens == estimate_tokens(text.encode())
    assert facts_of(Content("x", prompt_tokens=7, max_tokens=9), verdict).requested_tokens == 9


CASE = "tenant: birch, model: chat, region: eu-west-1"


def results(*cases: str) -> list[str]:
    text = "".join(f"- {{{CASE}, {case}}}\n" for case in cases)
    bundle = compile_bundle({**CUTS.files, "tests/demo.yaml": text.encode()})
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    return [result.failure for result in run_cases(bundle)]


def test_cases_say_what_must_be_found() -> None:
    assert results(
        f"prompt: {CARD}, expect: POLICY_FORBIDS, rule: guards.no-cards, finds: {{no-cards: deny}}",
        f"prompt: {CARD}, expect: POLICY_FORBIDS, redacts: {{card: 1}}",
        "output: harbour lights, expect: cut, rule: guards.canary-word, finds: {canary-word: cut}",
        "prompt: hello, expect: allow, finds: {}, redacts: {}",
    ) == ["", "", "", ""]
    assert results(
        "prompt: hello, expect: POLICY_FORBIDS",
        f"prompt: {CARD}, expect: allow",
        "output: harbour lights, expect: cut, finds: {mail-in-answers: flag}",
        "prompt: jo@example.com, expect: allow, redacts: {email: 2}",
    ) == [
        "expected POLICY_FORBIDS, got allow by tenants/birch.yaml:models[0]",
        "expected allow, got POLICY_FORBIDS by guards.no-cards",
        "expected mail-in-answers: flag to find something, got canary-word: cut",
        "expected email: 2 to be redacted, got email: 1",
    ]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("finds: {x: deny}, expect: allow", "finds means nothing without a prompt or an output"),
        ("prompt: x, expect: cut", "only an output can be cut; write one"),
        ("prompt: x, action: metadata, expect: allow", "only an infer has a prompt or an output"),
        ("prompt: x, expect: allow, finds: {x: refuse}", "should be 'deny', 'cut', 'flag' or 'shadow'"),
    ],
)
def test_a_case_that_means_nothing_is_told(case: str, message: str) -> None:
    found = compile_bundle({**demo_bundle().files, "tests/demo.yaml": f"- {{{CASE}, {case}}}".encode()})
    assert isinstance(found, list)
    assert message in found[0].message
    assert found[0].file == "tests/demo.yaml"


def test_guards_rules_and_redaction_are_covered_by_what_finds_them() -> None:
    def left(*cases: str) -> set[str]:
        text = "".join(f"- {{{case}}}\n" for case in cases)
        bundle = compile_bundle({**demo_bundle().files, "tests/demo.yaml": text.encode()})
        assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
        mine = {rule for rule in rules(bundle) if "guards." in rule or "redact" in rule}
        return mine & set(untouched(bundle, run_cases(bundle)))

    every = {f"{BIRCH}:guards.{name}" for name in ("no-cards", "mail-in-answers", "canary-word")}
    every |= {f"{BIRCH}:audit.redact.{name}" for name in ("email", "iban", "card")} | {"guards.phi-without-names"}
    assert left(f"{CASE}, prompt: hello, expect: allow") == every
    touched = {f"{BIRCH}:guards.no-cards", f"{BIRCH}:audit.redact.card"}
    assert left(f"{CASE}, prompt: {CARD}, expect: POLICY_FORBIDS") == every - touched
    phi = "tenant: acme, model: chat, region: eu-west-1, data_class: phi, prompt: jo@example.com, expect: allow"
    assert left(phi) == every - {"guards.phi-without-names"}


def test_a_change_of_what_a_case_s_content_meets_is_named() -> None:
    new = with_files(birch=("classes: [card], then: deny", "classes: [card], then: flag"))
    found = {change.case: change for change in compare(demo_bundle(), new, 0.0).changes() if change.case}
    (change,) = found.values()
    assert (change.old.verdict, change.new.verdict) == ("POLICY_FORBIDS", "allow")
    assert change.new.found == ("guards.no-cards flag (flag)", "redacted 1 card")
    less = with_files(birch=("    - email\n", ""))
    (change,) = [change for change in compare(demo_bundle(), less, 0.0).changes() if change.case]
    assert (change.old.verdict, change.new.verdict) == ("allow", "allow"), "only what its record is stored without"
    assert set(change.old.found) - set(change.new.found) == {"redacted 1 email"}

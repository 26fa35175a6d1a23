"""``warden policy``: what goes to stdout, what to stderr, and the exit codes of DESIGN §6."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sidecar.cli.policy import app
from tests.support.policy import DEMO_BUNDLE, demo_bundle

EXPLAIN = ["explain", str(DEMO_BUNDLE), "--region", "eu-west-1"]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    directory = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))
    path = directory / "tenants" / "acme.yaml"
    path.write_text(path.read_text().replace("plan: gold", "plna: gold"))
    return directory


def test_check_passes_the_demo_s_bundle() -> None:
    code, out, err = run("check", str(DEMO_BUNDLE))
    assert (code, err) == (0, "")
    counts = f"4 tenants, 5 models, 1 policies, 1 rules on content, {len(demo_bundle().cases)} cases"
    assert out.endswith(f"good ({counts})\n{demo_bundle().digest}\n")
    code, out, _ = run("check", str(DEMO_BUNDLE), "--json")
    assert (code, json.loads(out)) == (0, {"ok": True, "bundle": demo_bundle().digest, "problems": []})


def test_check_tells_every_problem(broken: Path) -> None:
    code, out, _ = run("check", str(broken))
    assert code == 1
    assert 'tenants/acme.yaml:2:1: plna: unknown key; did you mean "plan"?\n' in out
    assert out.endswith("2 problems\n")
    code, out, _ = run("check", str(broken), "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["bundle"]) == (1, False, None)
    assert told["problems"][0] == {
        "file": "tenants/acme.yaml",
        "line": 1,
        "column": 1,
        "path": "plan",
        "message": "required, and missing",
    }


def test_digest() -> None:
    digest = demo_bundle().digest
    assert run("digest", str(DEMO_BUNDLE)) == (0, f"{digest}\n", "")
    code, out, _ = run("digest", str(DEMO_BUNDLE), "--json")
    assert (code, json.loads(out)) == (0, {"bundle": digest})


def test_explain_answers_yes_and_no() -> None:
    code, out, _ = run(*EXPLAIN, "--tenant", "acme", "--model", "chat")
    assert code == 0
    assert "allow  by tenants/acme.yaml:models[0]\n" in out
    code, out, _ = run(*EXPLAIN, "--tenant", "acme", "--model", "rag", "--data-class", "phi", "--json")
    told = json.loads(out)
    assert (code, told["verdict"], told["reason"], told["rule"]) == (1, "deny", "POLICY_FORBIDS", "phi-not-in-rag")


def test_cases() -> None:
    code, out, _ = run("test", str(DEMO_BUNDLE))
    assert code == 0
    assert f"{len(demo_bundle().cases)} cases, 0 failed; " in out
    assert "note no case touches tenants/dormant.yaml:models[0]\n" in out
    code, out, _ = run("test", str(DEMO_BUNDLE), "--json")
    assert code == 0
    assert json.loads(out)["ok"] is True


def test_failing_cases_and_no_cases_are_a_no(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))
    (directory / "tests" / "demo.yaml").write_text("- {tenant: x, model: y, region: eu-west-1, expect: allow}\n")
    code, out, _ = run("test", str(directory))
    assert code == 1
    assert "FAIL tests/demo.yaml:1 x y eu-west-1: expected allow, got TENANT_UNKNOWN by tenants\n" in out
    code, out, _ = run("test", str(directory), "--json")
    assert code == 1
    assert json.loads(out)["cases"][0]["ok"] is False
    (directory / "tests" / "demo.yaml").unlink()
    assert run("test", str(directory))[0] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "/nowhere/at/all"], "no such directory"),
        (["digest", "/nowhere/at/all"], "no such directory"),
        ([*EXPLAIN, "--tenant", "acme"], "--model"),
        ([*EXPLAIN, "--tenant", "acme", "--model", "chat", "--action", "eat"], "should be infer, metadata or manage"),
        ([*EXPLAIN, "--tenant", "acme", "--model", "chat", "--storage", "UE"], "jurisdiction UE is not in the bundle"),
    ],
)
def test_wrong_use_is_told_on_stderr(arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("command", ["digest", "test", "explain"])
def test_a_bad_bundle_decides_nothing(broken: Path, command: str) -> None:
    more = ["--tenant", "acme", "--model", "chat", "--region", "eu-west-1"] if command == "explain" else []
    code, out, err = run(command, str(broken), *more, "--json")
    assert (code, out) == (2, "")
    assert 'tenants/acme.yaml:2:1: plna: unknown key; did you mean "plan"?' in err


def test_diff_tells_whose_calls_change_and_exits_1(tmp_path: Path) -> None:
    new = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "new"))
    code, out, _ = run("diff", str(DEMO_BUNDLE), str(new))
    assert (code, out.splitlines()[-1].partition(" of ")[0]) == (0, "0")
    tenant = new / "tenants" / "birch.yaml"
    tenant.write_text(tenant.read_text().replace("models: [chat, vision]", "models: [chat, vision, rag]"))
    code, out, _ = run("diff", str(DEMO_BUNDLE), str(new))
    assert code == 1
    assert "birch infer rag eu-west-1" in out
    assert "MODEL_NOT_FOUND → allow  by tenants/birch.yaml:models[2]" in out
    code, out, _ = run("diff", str(DEMO_BUNDLE), str(new), "--json")
    told = json.loads(out)
    assert {change["asked"]["tenant"] for change in told["changes"]} == {"birch"}
    assert {change["asked"]["model"] for change in told["changes"]} == {"rag"}


def test_diff_tells_the_same_change_of_several_moments_and_classes_on_one_line(tmp_path: Path) -> None:
    new = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "new"))
    tenant = new / "tenants" / "acme.yaml"
    tenant.write_text(tenant.read_text().replace("vision, rag, counter, embed]", "vision]"))
    code, out, _ = run("diff", str(DEMO_BUNDLE), str(new))
    whose = [line for line in out.splitlines() if line.startswith("acme metadata counter eu-west-1 ")]
    assert (code, len(whose)) == (1, 2)
    assert " [no class | phi | public] " in whose[0]
    assert " moments): allow → MODEL_NOT_FOUND" in whose[0]
    assert " [(another)] " in whose[1]
    assert " moments): RESIDENCY_PROCESSING → MODEL_NOT_FOUND" in whose[1]
    assert "tenant acme: models.counter for good → none\n" in out


def test_diff_tells_terms_and_verdicts_by_name(tmp_path: Path) -> None:
    new = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "new"))
    plans = new / "plans.yaml"
    plans.write_text(plans.read_text().replace("rate: 200/s", "rate: 100/s"))
    code, out, _ = run("diff", str(DEMO_BUNDLE), str(new))
    assert code == 1
    whose = "plan gold; tenant acme; tenant cobalt; tenant dormant"
    assert f"{whose}: requests 200/s, burst 400 → 100/s, burst 400\n" in out
    assert out.splitlines()[-1].endswith("questions answered otherwise; 4 other terms changed")
    code, out, _ = run("diff", str(DEMO_BUNDLE), str(new), "--json")
    told = json.loads(out)
    assert told["changes"] == []
    assert told["terms"][0] == {
        "subject": "plan gold", "name": "requests", "old": "200/s, burst 400", "new": "100/s, burst 400",
        "from": None, "until": None,
    }  # fmt: skip


def test_explain_puts_a_prompt_and_an_output_to_the_guards(tmp_path: Path) -> None:
    prompt, output = tmp_path / "prompt", tmp_path / "output"
    prompt.write_text("my card is 4111 1111 1111 1111")
    output.write_text("write to jo@example.com")
    ask = [*EXPLAIN, "--tenant", "birch", "--model", "chat"]
    code, out, _ = run(*ask, "--prompt-file", str(prompt))
    assert code == 1
    assert "✗ prompt     guards.no-cards  guards.no-cards denies it\n" in out
    assert "deny POLICY_FORBIDS  by guards.no-cards\n" in out
    code, out, _ = run(*ask, "--output-file", str(output), "--json")
    told = json.loads(out)
    assert (code, told["verdict"], told["redacted"]) == (0, "allow", {"email": 1})
    assert told["findings"] == [{"guard": "mail-in-answers", "on": "output", "verdict": "flag", "enforced": "flag"}]
    code, _, err = run(*ask, "--prompt-file", str(tmp_path / "none"))
    assert (code, "No such file or directory" in err) == (2, True)
    code, _, err = run(*ask, "--action", "metadata", "--prompt-file", str(prompt))
    assert (code, "only infer has a prompt" in err) == (2, True)


def test_explain_at_a_date_and_for_a_key() -> None:
    ask = [*EXPLAIN, "--tenant", "acme", "--model", "vision", "--key", "nightly"]
    assert run(*ask, "--at", "2026-06-01")[0] == 0
    code, out, _ = run(*ask, "--at", "2030-01-01")
    assert (code, "keys.nightly" in out) == (1, True)
    assert run(*ask, "--at", "yesterday")[0] == 2
    assert run("explain", "--tenant", "acme")[0] == 2

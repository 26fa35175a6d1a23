"""The `warden` command: its table is whole, and only what is asked for is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sidecar.cli.common import Exit, emit, fail
from sidecar.cli.main import COMMANDS, GROUPS, build, main


@pytest.mark.parametrize("name", [*GROUPS, *COMMANDS])
def test_every_command_of_the_table_explains_itself(name: str) -> None:
    result = CliRunner().invoke(build(name), [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_without_a_command_all_of_them_are_listed() -> None:
    result = CliRunner().invoke(build(None), ["--help"])
    assert result.exit_code == 0
    for name in (*GROUPS, *COMMANDS):
        assert f" {name} " in result.output


def test_it_says_which_version_it_is() -> None:
    result = CliRunner().invoke(build(None), ["--version"])
    assert (result.exit_code, result.output) == (0, f"warden {version('triton-warden')}\n")


def test_the_configuration_may_be_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["keys", "list"], ["audit", "search"], ["config", "check"], ["db", "status"]):
        for named, told in ({"WARDEN_CONFIG": "elsewhere.yaml"}, "elsewhere.yaml"), ({}, "warden.yaml"):
            result = CliRunner().invoke(build(arguments[0]), arguments, env=named)
            assert result.exit_code in {Exit.NO, Exit.USAGE}
            assert f"{told}: no such file" in result.stderr.replace("No such", "no such")


def test_an_unknown_command_is_wrong_use() -> None:
    result = CliRunner().invoke(build("sreve"), ["sreve"])
    assert result.exit_code == Exit.USAGE


@pytest.mark.parametrize("words", [["keys", "revoke"], ["keys"], ["audit", "show"], ["audit", "search", "--text"]])
def test_a_whole_key_among_the_arguments_is_refused_unread(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["warden", *words, "wdn_live_0123456789ab_" + "s" * 49])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the 12 characters in its middle" in captured.err
    assert "sss" not in captured.err


@pytest.mark.parametrize("command", [["keys", "issue"], ["token", "mint"]])
def test_the_roles_are_named_in_the_help(command: list[str]) -> None:
    told = CliRunner().invoke(build(command[0]), [*command, "--help"], env={"COLUMNS": "200"}).output
    assert "tenant, operator, admin" in told


def test_only_what_is_asked_for_is_imported() -> None:
    program = (
        "import sys\n"
        "from sidecar.cli import main\n"
        "main.build('serve')\n"
        "print(sorted(name for name in sys.modules if name.startswith('sidecar.cli.')))\n"
        "print(sorted({'grpc', 'sqlalchemy', 'alembic', 'opentelemetry', 'tritonclient'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules, heavy = done.stdout.splitlines()
    assert modules == "['sidecar.cli.common', 'sidecar.cli.main', 'sidecar.cli.serve']"
    assert heavy == "[]"


def test_the_installed_command_is_this_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sidecar.cli.main", "serve", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "--config" in done.stdout


# --- what commands share ------------------------------------------------------------------------------------------


def test_exit_codes_are_the_contracts() -> None:
    assert {code.name: int(code) for code in Exit} == {"DONE": 0, "NO": 1, "USAGE": 2, "DEPENDENCY": 3}


def test_json_is_one_line_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "Zoë\n", "list": [1, None]}
    emit(value)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == value
    assert "Zoë" in out


@pytest.mark.parametrize("code", [Exit.NO, Exit.USAGE, Exit.DEPENDENCY])
def test_failing_tells_on_stderr_and_leaves_with_its_code(capsys: pytest.CaptureFixture[str], code: Exit) -> None:
    with pytest.raises(typer.Exit) as left:
        fail(code, "what and where")
    assert left.value.exit_code == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "warden: what and where\n")

"""What the demo prints as a command is one: typed where the user stands, it does what the tour did."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from sidecar.cli.demo import command
from sidecar.cli.demo.stack import Stack
from sidecar.cli.demo.tour import StepFailed, Tour

pytestmark = pytest.mark.integration


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A demo that was never started, in a directory that needs quoting."""
    monkeypatch.chdir(tmp_path)
    made = object.__new__(Stack)
    made.directory = tmp_path / "a demo"
    made.config, made.bundle = made.directory / "warden.yaml", made.directory / "bundle"
    made.info = {"tenants": {"acme": {"api_key": "KEY"}}, "grpc": "127.0.0.1:8011", "admin": "127.0.0.1:8012"}
    return made


def run(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)


def test_a_shown_command_is_the_one_that_ran(stack: Stack) -> None:
    console = Console(file=io.StringIO(), width=40)
    tour = object.__new__(Tour)
    tour._stack, tour._console = stack, console
    with pytest.raises(StepFailed) as failed:  # there is no configuration
        tour._show("search", "--since", "10m", "--reason", "demo tour")
    said = cast("io.StringIO", console.file).getvalue()
    assert said.startswith("$ ")
    typed = run(said.removeprefix("$ "))
    assert typed.returncode == 2
    assert typed.stderr == "warden: a demo/warden.yaml: no such file; name one with --config, or in WARDEN_CONFIG\n"
    assert str(failed.value) == typed.stderr.strip().replace("a demo/", f"{stack.directory}/")


def test_the_closing_hints_work_as_printed(stack: Stack) -> None:
    console = Console(file=io.StringIO(), width=40)
    command._where_next(console, stack)
    lines = cast("io.StringIO", console.file).getvalue().splitlines()
    search = next(line for line in lines if "search the audit log" in line).partition("audit log")[2]
    assert "a demo/warden.yaml: no such file" in run(search).stderr
    explain = next(line for line in lines if "why is a call allowed" in line).partition("allowed")[2]
    assert "a demo/bundle: no such directory" in run(explain).stderr

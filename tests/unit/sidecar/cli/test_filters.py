"""What narrows a search or an export is explained, and a slip in it is refused: it must not look like no records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sidecar.cli.common import Exit
from sidecar.cli.main import build

APP = build("audit")


@pytest.mark.parametrize("command", ["search", "export", "show", "erase", "retain", "verify"])
def test_every_option_is_explained(command: str) -> None:
    told = CliRunner().invoke(APP, ["audit", command, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}).output
    options = re.findall(r"^│ *\*? *(--[a-z-]+)(?: +-\w)? +(?:\[?[<A-Z][^ ]*)? *(.*?) *│$", told, re.MULTILINE)
    assert {name for name, _ in options} >= {"--config", "--json", "--help"}
    assert [name for name, text in options if not text] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--outcome", "fine"], "none of completed, refused"),
        (["--key", "0123456789abc"], "the 12 characters in the middle of the key"),
        (["--since", "2026-11-30"], "needs its zone: 2026-11-30Z"),
        (["--until", "tomorrow"], "--until 'tomorrow' is no time"),
    ],
)
@pytest.mark.parametrize("command", [["search"], ["export", "-o", "never"]])
def test_a_slip_is_refused_before_anything_is_asked(
    command: list[str], arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(APP, ["audit", *command, *arguments])
    assert (done.exit_code, done.stdout) == (Exit.USAGE, "")
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []

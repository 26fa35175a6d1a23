"""What can be typed: the commands and paths that other commands print work where the user stands."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.cli.common import absent, here, program


def install(directory: Path) -> Path:
    """A `warden` beside a `python`, as in a virtual environment."""
    directory.mkdir(parents=True)
    for name in ("python", "warden"):
        (directory / name).write_text(f'#!/bin/sh\necho this {name} "$@"\n')
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    installed = install(tmp_path / "a b" / ".venv" / "bin")
    monkeypatch.setattr(sys, "executable", str(installed / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path / "a b")
    return installed


def typed() -> str:
    return subprocess.run(
        ["/bin/sh", "-c", f"{program()} db status"], capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip


def test_its_path_where_it_is_not_on_path(venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (program(), typed()) == (".venv/bin/warden", "this warden db status")
    monkeypatch.chdir(venv)
    assert (program(), typed()) == ("./warden", "this warden db status")
    monkeypatch.chdir(tmp_path)
    assert (program(), typed()) == ("'a b/.venv/bin/warden'", "this warden db status")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert (program(), typed()) == (shlex.quote(str(venv / "warden")), "this warden db status")


def test_its_name_where_path_finds_the_same_one(venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "warden").symlink_to(venv / "warden")
    monkeypatch.setenv("PATH", f"{links}:/usr/bin:/bin")
    assert program() == "warden"
    other = install(tmp_path / "other")
    monkeypatch.setenv("PATH", f"{other}:/usr/bin:/bin")
    assert program() == ".venv/bin/warden"  # another installation's is not this one


def test_the_module_where_there_is_no_script(venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (venv / "warden").unlink()
    assert (program(), typed()) == (
        ".venv/bin/python -m sidecar.cli.main",
        "this python -m sidecar.cli.main db status",
    )
    monkeypatch.setenv("PATH", str(install(tmp_path / "other")))
    assert program() == "warden"


def test_paths_are_relative_inside_and_quoted(venv: Path, tmp_path: Path) -> None:
    assert here(tmp_path / "a b" / ".demo" / "warden.yaml") == ".demo/warden.yaml"
    assert here(tmp_path / "c d") == f"'{tmp_path}/c d'"


def test_absent_is_only_what_is_not_there(tmp_path: Path) -> None:
    assert [absent(tmp_path / "x"), absent(tmp_path), absent(Path(__file__))] == [True, True, False]

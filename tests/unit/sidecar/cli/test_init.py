"""`warden init` without a Triton: what it refuses before it asks, and what it says when nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sidecar.cli.drafting import Server
from sidecar.cli.init import init
from sidecar.cli.survey import DEADLINE_S, Silent, survey

NEEDED = "warden: --region and --jurisdiction are needed, such as --region eu-west-1 --jurisdiction EU: "
PLACE = ("--region", "eu-west-1", "--jurisdiction", "EU")
APP = typer.Typer()
APP.command()(init)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(APP, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--triton", "8001"], "--triton '8001': '8001' is not an address; write HOST:PORT"),
        (["--triton", "h:8001", "--region", "eu-1"], NEEDED),
        (["--triton", "h:8001", "--jurisdiction", "EU"], NEEDED),
        (["--triton", "h:8001"], NEEDED),
        (["--triton", "h:8001", "--region", "EU", "--jurisdiction", "EU"], "are the same"),
        (["--triton", "h:8001", "--region", "eu 1", "--jurisdiction", "EU"], "--region 'eu 1': "),
        (["--triton", "h:8001", "--tenant", "ACME"], "--tenant 'ACME': "),
        (["--triton", "h:8001", "--tenant", "../x"], "--tenant '../x': "),
    ],
)
def test_wrong_options_are_told_before_anything_is_asked(tmp_path: Path, arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments, "--dir", str(tmp_path))
    assert (code, out) == (2, "")
    assert words in err
    assert not list(tmp_path.iterdir())


def test_all_wrong_options_are_told_at_once(tmp_path: Path) -> None:
    _, _, err = run("--triton", "8001", "--region", "eu", "--tenant", "A", "--dir", str(tmp_path))
    assert [word in err for word in ("--triton", "are needed", "--tenant 'A'")] == [True, True, True]


@pytest.mark.parametrize("name", ["warden.yaml", "bundle", "keys", "journal"])
def test_what_is_there_is_not_overwritten(tmp_path: Path, closed: str, name: str) -> None:
    (tmp_path / name).write_text("mine")
    code, _, err = run("--triton", closed, "--dir", str(tmp_path), *PLACE)
    assert code == 2
    assert f"already there, and not overwritten: {tmp_path / name};" in err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_dangling_link_is_in_the_way_too(tmp_path: Path, closed: str) -> None:
    (tmp_path / "bundle").symlink_to(tmp_path / "nowhere")
    code, _, err = run("--triton", closed, "--dir", str(tmp_path), *PLACE)
    assert (code, "already there" in err) == (2, True)


@pytest.mark.parametrize(
    ("option", "secret", "words"),
    [
        ("warden", "", "write KEY=FILE"),
        ("=FILE", "s" * 20, "KEY: "),
        ("Warden Key=FILE", "s" * 20, "KEY: "),
        ("warden=FILE", "short", "must hold 16 to 1024"),
        ("warden=NOWHERE", "", "No such file"),
    ],
)
def test_a_secret_that_cannot_be_used_is_told_before_anything_is_asked(
    tmp_path: Path, option: str, secret: str, words: str
) -> None:
    (tmp_path / "secret").write_text(secret)
    option = option.replace("FILE", str(tmp_path / "secret"))
    code, out, err = run("--triton", "127.0.0.1:1", "--dir", str(tmp_path / "new"), "--restricted", option, *PLACE)
    assert (code, out) == (2, "")
    assert words in err
    assert not secret or secret not in err


def test_nobody_there(tmp_path: Path, closed: str) -> None:
    code, out, err = run("--triton", closed, "--dir", str(tmp_path / "new"), "--json", *PLACE)
    assert (code, out) == (3, "")
    assert f"Triton at {closed} cannot be asked" in err
    assert "is this its gRPC port (8001)" in err
    assert not (tmp_path / "new").exists()


def test_somebody_who_never_answers_is_waited_for_no_longer_than_the_deadline(mute: str) -> None:
    assert DEADLINE_S == 5
    found = survey(mute, deadline_s=0.3)
    assert isinstance(found, Silent)
    assert "within 0.3 s" in found.detail


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.cli.init.survey", lambda *_: Server("2.51.0", ()))
    monkeypatch.setattr("sidecar.cli.init.draft", lambda *_: {"bundle/a.yaml": "", "bundle/missing/b/c.yaml": ""})
    code, _, err = run("--triton", "127.0.0.1:1", "--dir", str(tmp_path), *PLACE)
    assert code == 2
    assert "No such file or directory; nothing was written" in err
    assert not list(tmp_path.iterdir())

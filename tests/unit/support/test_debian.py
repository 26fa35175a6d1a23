"""What isn't installed and can't be is skipped by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import debian


@pytest.fixture(autouse=True)
def fresh() -> None:
    debian.ensure.cache_clear()


def test_what_is_there_is_found_without_installing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_run", lambda command: pytest.fail(f"ran {command}"))
    found = debian.ensure("dash", "sh")
    assert found is not None
    assert found.name == "sh"


def test_without_apt_it_is_none_and_the_skip_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert debian.ensure("prometheus", "promtool") is None
    with pytest.raises(pytest.skip.Exception, match=r"promtool of Debian's package 'prometheus'"):
        debian.require("prometheus", "promtool")


def test_what_is_missing_is_installed_once_with_the_lists_refreshed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for apt-get, so that this test leaves the machine alone; it knows the package after ``update``."""
    apt = tmp_path / "apt-get"
    tool = tmp_path / "tool"
    apt.write_text(
        f'#!/bin/sh\n[ "$1" = update ] && touch {tmp_path}/lists && exit 0\n'
        f"[ -e {tmp_path}/lists ] || exit 100\nprintf '%s' \"$*\" > {tool}; chmod +x {tool}\n"
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(debian.os, "geteuid", lambda: 0)
    assert debian.ensure("a-package", "tool") == tool
    assert tool.read_text() == "install -y -q --no-install-recommends a-package"

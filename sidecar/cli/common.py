"""What every command shares: exit codes, where output goes, how a fault is told (DESIGN §6)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Never

import typer

CONFIG_VARIABLE = "WARDEN_CONFIG"
ConfigOption = Annotated[Path, typer.Option("--config", envvar=CONFIG_VARIABLE, help="The sidecar's configuration.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout, and nothing else there.")]
JurisdictionOption = Annotated[
    str | None, typer.Option("--jurisdiction", help="Whose database, where the configuration has several.")
]
DEFAULT_CONFIG = Path("warden.yaml")


class Exit(IntEnum):
    DONE = 0
    NO = 1  # the answer is no, or a check failed
    USAGE = 2  # wrong use or bad input
    DEPENDENCY = 3  # a dependency is unavailable


def absent(path: Path) -> bool:
    """Whether there is no such file; one that can't be looked at counts as there, and fails where it is read."""
    try:
        return not path.is_file()
    except OSError:
        return False


def need(config: Path) -> None:
    """Leave with exit 2 where the configuration is not there, which most often is one that wasn't named."""
    if absent(config):
        fail(Exit.USAGE, f"{config}: no such file; name one with --config, or in {CONFIG_VARIABLE}")


def program() -> str:
    """What to type for this very `warden` here and now: the bare name only where PATH finds the same one."""
    python = Path(sys.executable)
    own, found = python.with_name("warden"), shutil.which("warden")
    if not os.access(own, os.X_OK):
        return "warden" if found else f"{here(python)} -m sidecar.cli.main"
    if found is not None and own.samefile(found):
        return "warden"
    shown = here(own)
    return shown if "/" in shown else f"./{shown}"


def here(path: Path) -> str:
    """A path as it can be pasted into a shell in this directory."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def emit(value: Any) -> None:
    """One JSON value, on one line, on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def fail(code: Exit, message: str) -> Never:
    """Say on stderr what was wrong and where, and leave with ``code``."""
    sys.stderr.write(f"warden: {message}\n")
    raise typer.Exit(int(code))

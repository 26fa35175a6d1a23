"""What every command shares: exit codes, where output goes, how a fault is told (DESIGN §6)."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Never

import typer

ConfigOption = Annotated[Path, typer.Option("--config", help="The sidecar's configuration.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout, and nothing else there.")]
DEFAULT_CONFIG = Path("warden.yaml")


class Exit(IntEnum):
    DONE = 0
    NO = 1  # the answer is no, or a check failed
    USAGE = 2  # wrong use or bad input
    DEPENDENCY = 3  # a dependency is unavailable


def emit(value: Any) -> None:
    """One JSON value, on one line, on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def fail(code: Exit, message: str) -> Never:
    """Say on stderr what was wrong and where, and leave with ``code``."""
    sys.stderr.write(f"warden: {message}\n")
    raise typer.Exit(int(code))

"""What commands about bundles have in common: reading one, and the moment that is meant."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from policies.bundle import Bundle, load
from policies.units import parse_duration, parse_moment
from policies.yamlfile import Problem
from sidecar.cli.common import Exit, fail

__all__ = ["BundleArgument", "good", "moment", "read", "since_when"]

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle's directory.")]


def read(bundle: Path) -> Bundle | list[Problem]:
    if not bundle.is_dir():
        fail(Exit.USAGE, f"{bundle}: no such directory")
    return load(bundle)


def good(bundle: Path) -> Bundle:
    """The bundle, or leave: a bad one is bad input to anything but ``check``."""
    found = read(bundle)
    if isinstance(found, list):
        for problem in found:
            sys.stderr.write(f"{problem}\n")
        fail(Exit.USAGE, f"{bundle}: {len(found)} problems; nothing was decided")
    return found


def moment(written: str | None) -> float:
    """In seconds since the UNIX epoch; None is now."""
    if written is None:
        return time.time()
    try:
        return parse_moment(written)
    except ValueError as fault:
        fail(Exit.USAGE, f"--at {written!r} {fault}")


def since_when(written: str) -> datetime:
    """An age, a day, or a time with its zone."""
    now = time.time()
    try:
        return datetime.fromtimestamp(now - parse_duration(written), UTC)
    except ValueError:
        pass
    try:
        return datetime.fromtimestamp(parse_moment(written), UTC)
    except ValueError:
        fail(Exit.USAGE, f"--since {written!r}: write an age (24h, 7d), a day (2026-12-01), or a time with its zone")

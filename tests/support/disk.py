"""A disk that is really small, and so can be really full: a tmpfs, where one may be mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(place: Path, size: str) -> Iterator[Path]:
    """A new directory ``place`` of ``size`` (as mount says it: ``2m``); skips the test where none can be mounted."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        # Lazily: a test that failed may still hold a file there, and a mount left behind breaks later runs.
        subprocess.run(["umount", "-l", str(place)], check=True)

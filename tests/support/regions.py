"""The shared memory of Triton's Python models, of which several Tritons of one machine have some at once."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

__all__ = ["held", "regions"]


def regions() -> set[str]:
    """All that there are, by path."""
    return {str(path) for path in Path("/dev/shm").glob("triton_python_backend_*")}


def held(group: int | None = None) -> set[str]:
    """Those that a living process has mapped; only of a process group, where it is given."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if group is None or os.getpgid(int(process.name)) == group:
                found |= set(re.findall(r"/dev/shm/triton_python_backend_\S+", (process / "maps").read_text()))
    return found

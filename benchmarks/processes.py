"""What processes cost: CPU and memory by /proc, a process and its children told apart by what they run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICK_US: Final = 1e6 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def cpu_us(pid: int) -> float:
    """User and system time of all of a process's threads, in steps of a clock tick (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_US  # utime and stime: proc(5), 14 and 15


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def child(pid: int, word: str) -> int | None:
    """The child of ``pid`` that has ``word`` on its command line."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for number in (task / "children").read_text().split():
            if word in Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0"):
                return int(number)
    return None

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


def children(pid: int) -> list[int]:
    """Of all of its threads; none where it has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(number) for task in tasks for number in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


def family_cpu_us(pid: int) -> float:
    """Of a process and of all that descend from it."""
    return cpu_us(pid) + sum(family_cpu_us(each) for each in children(pid))


def ended_cpu_us(pid: int) -> float:
    """Of a process and of all that descend or descended from it: a server's, whose processes come and go."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) * _TICK_US  # cutime and cstime too: proc(5), 16 and 17
    return own + sum(ended_cpu_us(each) for each in children(pid))


def running(program: str) -> int | None:
    """The child of this process that is ``program``."""
    for number in children(os.getpid()):
        if Path(f"/proc/{number}/exe").resolve().name == program:
            return number
    return None


def child(pid: int, word: str) -> int | None:
    """The child of ``pid`` that has ``word`` on its command line."""
    for number in children(pid):
        if word in Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0"):
            return number
    return None

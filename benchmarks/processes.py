"""What processes cost: CPU and memory by /proc, a process and its children told apart by what they run."""

from __future__ import annotations

import os
from contextlib import suppress
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


def ended_cpu_us(pid: int) -> float:
    """Of a process and of all that descend or descended from it: a server's, whose processes come and go.

    By looks at the whole of /proc: ``children`` may leave some out while others end (proc(5)). A look in which one
    of the family may have ended is not believed, but for the last of many: it may have that one's time twice, or not
    at all.
    """
    (_, before), (ticks, family) = _look(pid), _look(pid)
    for _ in range(100):
        later, after = _look(pid)
        if before <= family <= after:
            break
        before, ticks, family = family, later, after
    return ticks * _TICK_US


def _look(pid: int) -> tuple[int, set[int]]:
    """The ticks of a family, with those of its members that were waited for, and who of it runs."""
    ticks: dict[int, int] = {}
    below: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended; its parent's own fields have it now
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                ticks[int(each.name)] = sum(map(int, fields[11:15]))  # with cutime and cstime: proc(5), 14 to 17
                below.setdefault(int(fields[1]), []).append(int(each.name))
    family, waiting = set[int](), [pid]
    while waiting:
        family.add(one := waiting.pop())
        waiting += below.get(one, [])
    return sum(ticks.get(one, 0) for one in family), family


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

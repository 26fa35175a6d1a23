"""The history of measurements: one JSON line a run, with the machine it ran on and how busy that was."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

HISTORY: Final = Path(__file__).parent / "history.jsonl"
_ROOT: Final = Path(__file__).resolve().parents[1]


def now() -> dict[str, Any]:
    """When, of what commit, on what machine; neither its name nor its paths."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "-uno") else ""),
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "python": platform.python_version(),
            "pyvoy": version("pyvoy"),
            "speed_us": speed_us(),
        },
        "load_average": load_average(),
    }


def speed_us() -> float:
    """CPU µs of a fixed piece of Python, the least of many: to compare runs on machines of different speed."""
    best = float("inf")
    for _ in range(20):
        began = time.process_time_ns()
        table: dict[str, int] = {}
        for number in range(1000):
            table[str(number)] = number * 3 % 7
        best = min(best, (time.process_time_ns() - began) / 1000)
    return round(best, 1)


def load_average() -> float:
    """Of the last minute: over the number of cores, others were measured too."""
    return round(os.getloadavg()[0], 2)


def append(numbers: dict[str, Any]) -> None:
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps(numbers, ensure_ascii=False) + "\n")


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

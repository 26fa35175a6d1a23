"""What this process has open and has started, to be compared before and after: a whole run has much of both."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

__all__ = ["children", "descriptors"]


def descriptors() -> set[tuple[str, str]]:
    """Each open descriptor with what it is of; not the one that lists them."""
    found: set[tuple[str, str]] = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 — a Path's listing stays open beside its entries
        with contextlib.suppress(FileNotFoundError):
            found.add((number, str(Path(f"/proc/self/fd/{number}").readlink())))
    return found


def children() -> set[int]:
    """The processes that this thread has started and that are not reaped, by pid."""
    return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))

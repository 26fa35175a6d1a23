"""What one journal entry costs the call that waits for it: appended (mode batch), and fsynced (mode strict)."""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from audit.journal import Bounds, Journal, Origin
from sidecar.core.model import Secret

ENTRY: Final = 1500  # bytes: ADMITTED of a call with a prompt of 1 KB
_TIMES: Final = {"batch": 50_000, "strict": 1_000}


def measure(*, quick: bool) -> dict[str, dict[str, float]]:
    """By mode: µs of wall clock, in one thread, on the disk of the temporary directory."""
    with tempfile.TemporaryDirectory(prefix="warden-bench-journal-") as directory:
        return {mode: _one(Path(directory) / mode, mode, n // 5 if quick else n) for mode, n in _TIMES.items()}


def _one(directory: Path, mode: str, times: int) -> dict[str, float]:
    journal = Journal.open(
        directory, Secret(b"b" * 32), Origin("pod-1", "eu-west-1", "EU"), Bounds(min_free=2**26),
        random=secrets.token_bytes, wall_ns=time.time_ns, monotonic=time.monotonic,
    )  # fmt: skip
    assert isinstance(journal, Journal), journal
    entry, took = random.Random(1).randbytes(ENTRY), []
    try:
        step = _synced(journal, entry) if mode == "strict" else _appended(journal, entry)
        for _ in range(times):
            began = time.perf_counter_ns()
            step()
            took.append(time.perf_counter_ns() - began)
    finally:
        journal.close()
    took.sort()
    return {"p50": took[times // 2] / 1000, "p99": took[times * 99 // 100] / 1000, "bare_fsync_p50": _bare(directory)}


def _appended(journal: Journal, entry: bytes) -> Callable[[], None]:
    def step() -> None:
        assert isinstance(journal.append(entry), int)

    return step


def _synced(journal: Journal, entry: bytes) -> Callable[[], None]:
    def step() -> None:
        assert isinstance(journal.append(entry), int)
        assert journal.synced().result() is None

    return step


def _bare(directory: Path) -> float:
    """µs that this disk takes to write as much and fsync it, without a journal."""
    took, data = [], bytes(ENTRY)
    descriptor = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for n in range(200):
            began = time.perf_counter_ns()
            os.pwrite(descriptor, data, n * ENTRY)
            os.fsync(descriptor)
            took.append(time.perf_counter_ns() - began)
    finally:
        os.close(descriptor)
    return sorted(took)[100] / 1000

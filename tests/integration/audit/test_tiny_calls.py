"""A few thousand tiny calls, from a journal to a verified export; tests/long has a million."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny import run

CALLS = 3000


def test_tiny_calls_are_all_stored_verified_and_exported(dsn: str, tmp_path: Path) -> None:
    found = run(tmp_path, dsn, CALLS)
    assert found["stored"] == (CALLS, CALLS, CALLS)
    assert (found["verified"]["ok"], found["verified"]["faults"]) == (True, [])
    assert found["verified"]["records"] >= CALLS
    assert (found["offline"]["ok"], found["offline"]["records"], found["exported"]) == (True, CALLS, CALLS)

"""A million tiny calls, from a journal to a verified export; prints what it took."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import run

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
CALLS = 1_000_000


def test_tiny_calls_are_all_stored_verified_and_exported(dsn: str, tmp_path: Path) -> None:
    found = run(tmp_path, dsn, CALLS)
    print(found)
    assert found["stored"] == (CALLS, CALLS, CALLS)
    assert (found["verified"]["ok"], found["verified"]["faults"]) == (True, [])
    assert found["verified"]["records"] >= CALLS
    assert (found["offline"]["ok"], found["offline"]["records"], found["exported"]) == (True, CALLS, CALLS)
    assert max(found["rss_mb"].values()) < 1024  # a wide bound: none of them holds the records

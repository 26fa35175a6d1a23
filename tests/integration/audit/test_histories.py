"""Honest histories raise no alarm: a few here, a hundred in tests/long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.histories import History
from tests.support.postgres import Server


@pytest.mark.parametrize("seed", range(4))
def test_an_honest_history_raises_no_alarm(postgres: Server, dsn: str, tmp_path: Path, seed: int) -> None:
    history = History(seed, postgres, dsn, tmp_path)
    report = history.run(6)
    assert report.faults == [], (history.steps, [fault.shape() for fault in report.faults])
    assert report.anchored

"""A hundred honest histories with crashes, failovers, erasures and retention in them: zero false alarms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.histories import History
from tests.support.postgres import Server

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", range(1000, 1100))
def test_an_honest_history_raises_no_alarm(postgres: Server, dsn: str, tmp_path: Path, seed: int) -> None:
    history = History(seed, postgres, dsn, tmp_path)
    report = history.run(8)
    assert report.faults == [], (history.steps, [fault.shape() for fault in report.faults])

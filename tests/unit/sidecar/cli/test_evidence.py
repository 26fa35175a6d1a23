"""What `audit verify` prints: logs are counted where a database was looked at, and not of an export."""

from __future__ import annotations

import pytest

from audit.verify import Report
from sidecar.cli.evidence import _print


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        ({}, "4 records, 1 signed heads that fit"),
        ({"pod-1": {}}, "4 records in 1 logs, 1 signed heads that fit"),
    ],
)
def test_logs_are_counted_where_there_are_any(
    logs: dict[str, dict[str, int]], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print(Report(records=4, checkpoints=1, anchored=True, logs=logs))
    assert capsys.readouterr().out.splitlines()[0] == said

"""Every section of ``make bench`` comes to its end: ``pytest -m long tests/long/test_bench.py``, a few minutes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.__main__ import SECTIONS

pytestmark = [pytest.mark.long, pytest.mark.timeout(1300)]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_comes_to_its_end(section: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", section]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]

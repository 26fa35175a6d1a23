"""Speaks one contract: see tests/support/speaker."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "speaker"))

from speaker import TritonPythonModel

__all__ = ["TritonPythonModel"]

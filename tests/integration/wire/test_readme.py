"""The README's client runs as it stands, against a sidecar in place of the demo's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sidecar import Sidecar

pytestmark = pytest.mark.integration
README = Path(__file__).parents[3] / "README.md"


def test_the_client_of_the_readme(sidecar: Sidecar, tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    demo = {
        "grpc": sidecar.grpc,
        "tenants": {"acme": {"api_key": sidecar.headers()["authorization"].removeprefix("Bearer ")}},
    }
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo/demo.json").write_text(json.dumps(demo))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    shape, _, streamed = done.stdout.partition("\n")
    assert shape == "(1, 64)"
    assert len(streamed.split()) > 3
    sidecar.settles()

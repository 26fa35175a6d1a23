"""kill -9 of sidecar, shipper and Postgres at random points under load: the short form of tests/long/crash.py."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.postgres import THROW_AWAY, start_postgres
from sidecar.cli.demo.stack import Parts
from tests.support.bundle import write_bundle
from tests.support.crashes import Crashes
from tests.support.sidecar import launch
from tests.support.stack import Triton

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
CYCLES = 6


def test_answered_calls_are_recorded_once_and_the_rest_aborted(otlp: OtlpReceiver, triton: Triton) -> None:
    with tempfile.TemporaryDirectory(prefix="warden-crash-") as name:  # as root, Postgres can't reach tmp_path
        directory = Path(name)
        directory.chmod(0o755)
        postgres = start_postgres(directory / "postgres", settings=THROW_AWAY)
        try:
            parts = Parts(otlp, triton.running.addresses, postgres.dsn)
            sidecar = launch(directory / "stack", "grpc", parts, write_bundle(directory))
            sidecar.stack.stop_warden()
            try:
                tally = Crashes(sidecar, postgres, triton, directory, seed=4).run(CYCLES, block=CYCLES, progress=print)
            finally:
                sidecar.close()
            assert tally.failed == []
            assert set(tally.kills) == {"serve", "ship", "postgres"}
            assert tally.outcomes["aborted"] >= 1
            assert tally.answered > 50
            command = [sys.executable, "-m", "sidecar.cli.main", "audit", "verify"]
            subprocess.run([*command, "--config", str(sidecar.stack.config)], check=True, capture_output=True)
        finally:
            postgres.stop()

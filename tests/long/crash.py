"""`python -m tests.long.crash --cycles 1000`: kill -9 of sidecar, shipper and Postgres under load; prints its tally.

Each answered call must be recorded exactly once, each that was cut off `aborted` with at least what its client had
received (up to 100 ms, DESIGN rule 6), and the whole log verify. About 2 s a cycle. Exit 0 only where all of it held.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from sidecar.cli.demo.otlp import start_otlp
from sidecar.cli.demo.postgres import THROW_AWAY, start_postgres
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import start_triton
from tests.support.bundle import write_bundle
from tests.support.crashes import Crashes
from tests.support.sidecar import launch
from tests.support.stack import REPOSITORIES, Triton


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--cycles", type=int, default=1000)
    asked.add_argument("--block", type=int, default=25, help="cycles between two comparisons")
    asked.add_argument("--seed", type=int, default=20261130)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="warden-crash-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # as root, Postgres runs as its own user
        return run(directory, options.cycles, options.block, options.seed)


def run(directory: Path, cycles: int, block: int, seed: int) -> int:
    otlp = start_otlp(directory / "spans.jsonl")
    postgres = start_postgres(directory / "postgres", settings=THROW_AWAY)
    (directory / "triton").mkdir()
    (directory / "report").touch()
    running = start_triton(
        directory / "triton", REPOSITORIES, otlp_url=otlp.http_url,
        environment={"TEST_MODEL_REPORT": str(directory / "report")},
    )  # fmt: skip
    triton = Triton(running=running, report=directory / "report", otlp=otlp)
    try:
        sidecar = launch(
            directory / "stack", "grpc", Parts(otlp, running.addresses, postgres.dsn), write_bundle(directory)
        )
        sidecar.stack.stop_warden()
        crashes = Crashes(sidecar, postgres, triton, directory, seed=seed)
        try:
            crashes.run(cycles, block=block, progress=lambda line: print(line, flush=True))
        finally:
            sidecar.close()
        command = [sys.executable, "-m", "sidecar.cli.main", "audit", "verify"]
        done = subprocess.run(
            [*command, "--config", str(sidecar.stack.config), "--json"], capture_output=True, text=True, check=False
        )
        print(done.stdout[-2000:], done.stderr[-2000:], flush=True)
        return done.returncode
    finally:
        triton.running.stop()
        postgres.stop()
        otlp.stop()


if __name__ == "__main__":
    sys.exit(main())

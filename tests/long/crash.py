"""`python -m tests.long.crash --cycles 1000`: kill -9 of sidecar, shipper and Postgres under load; prints its tally.

Each answered call must be recorded exactly once, each that was cut off `aborted` with at least what its client had
received (up to 100 ms, DESIGN rule 6), and the whole log verify. About 1 s a cycle; with `--wire`, where each start is
an interpreter's, some 5 s. Where something does not hold, or a part doesn't start, that is told and the run goes on.
Exit 0 only where all of it held.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.cli.demo.otlp import start_otlp
from sidecar.cli.demo.postgres import THROW_AWAY, start_postgres
from sidecar.cli.demo.process import StartError
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import start_triton
from tests.support.bundle import write_bundle
from tests.support.crashes import Crashes, Tally
from tests.support.sidecar import WIRES, launch
from tests.support.stack import REPOSITORIES, Triton
from tests.support.victims import Commands

STACKS: Final = 5  # started at most, each after the one before failed


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--cycles", type=int, default=1000)
    asked.add_argument("--block", type=int, default=25, help="cycles between two comparisons")
    asked.add_argument("--seed", type=int, default=20261130)
    asked.add_argument("--wire", choices=WIRES, help="a real `warden serve` on this wire; slower than forked processes")
    asked.add_argument("--tally", type=Path, help="kept here after each block; a run that was broken off goes on")
    options = asked.parse_args()
    tally = Tally.of(options.tally.read_text()) if options.tally is not None and options.tally.exists() else Tally()

    def progress(line: str) -> None:
        print(line, flush=True)
        if options.tally is not None:
            options.tally.write_text(line)

    for _ in range(STACKS):
        with tempfile.TemporaryDirectory(prefix="warden-crash-") as name:
            directory = Path(name)
            directory.chmod(0o755)  # as root, Postgres runs as its own user
            try:
                run(directory, options, tally, progress)
            except (AssertionError, StartError) as fault:
                traceback.print_exc()
                tally.failed.append(f"at cycle {tally.cycles}, and all was started anew: {fault}")
                progress(tally.told())
        if tally.cycles >= options.cycles:
            break
    return 0 if tally.cycles >= options.cycles and not tally.failed else 1


def run(directory: Path, options: argparse.Namespace, tally: Tally, progress: Callable[[str], None]) -> None:
    """What is left of the cycles, with parts of their own."""
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
            directory / "stack",
            options.wire or "grpc",
            Parts(otlp, running.addresses, postgres.dsn),
            write_bundle(directory),
        )
        sidecar.stack.stop_warden()
        config = sidecar.stack.config
        crashes = Crashes(
            sidecar, postgres, triton, directory, seed=options.seed + tally.cycles, tally=tally,
            victims=Commands(sidecar.stack) if options.wire else None,
        )  # fmt: skip
        try:
            crashes.run(
                options.cycles - tally.cycles, block=options.block, progress=progress, verify=lambda: verified(config)
            )
        finally:
            sidecar.close()
    finally:
        triton.running.stop()
        postgres.stop()
        otlp.stop()


def verified(config: Path) -> int:
    """How many records `warden audit verify` found in order."""
    command = [sys.executable, "-m", "sidecar.cli.main", "audit", "verify", "--config", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout)["records"])


if __name__ == "__main__":
    sys.exit(main())

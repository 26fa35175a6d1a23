"""What must hold over any outage of the database: calls go on, memory is bounded, and all is there afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.support.postgres import query
from tests.support.sidecar import Sidecar, echo
from tests.support.stack import eventually

SHIPPED_S = 90.0  # from the end of an outage, on a machine that others use too
MEMORY = 64 * 2**20  # bytes that a sidecar may grow by


def outlive(sidecar: Sidecar, outage: AbstractContextManager[None], *, seconds: float, every: float = 0.0) -> int:
    """Call all the time (a call ``every`` so many seconds) over ``seconds`` of an outage; how many calls that were."""
    headers, answered = sidecar.headers(), set()
    with sidecar.bare() as bare:
        answered.add(bare.unary(echo(), headers).call_id)
        before = sidecar.rss()
        with outage:
            until = time.monotonic() + seconds
            while time.monotonic() < until or not sidecar.metric("warden_ship_lag_records"):
                answer = bare.unary(echo(b"x" * 1000), headers)
                assert answer.code == "OK", answer
                answered.add(answer.call_id)
                time.sleep(every)
            assert sidecar.stack.readyz()["ready"]
            assert sidecar.rss() - before < MEMORY
        assert bare.unary(echo(), headers).code == "OK"
    eventually(lambda: answered <= _stored(sidecar), what="every call in the database", within_s=SHIPPED_S)
    eventually(lambda: sidecar.metric("warden_ship_lag_records") == 0, what="all shipped", within_s=SHIPPED_S)
    command = [sys.executable, "-m", "sidecar.cli.main", "audit", "verify", "--config", str(sidecar.stack.config)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    return len(answered)


def _stored(sidecar: Sidecar) -> set[str]:
    return {call_id for (call_id,) in query(sidecar.parts.postgres_dsn, "SELECT call_id FROM warden.audit_calls")}


@contextmanager
def small_disk(nbytes: int) -> Iterator[Path]:
    """A file system of its own that every user can reach; the test is skipped where none can be mounted."""
    directory = Path(mkdtemp(prefix="warden-disk-", dir="/tmp"))  # pytest's own directories are root's alone
    directory.chmod(0o755)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={nbytes},mode=755", "tmpfs", str(directory)],
        capture_output=True, check=False,
    )  # fmt: skip
    try:
        if done.returncode:
            pytest.skip(f"a tmpfs can't be mounted here: {done.stderr.decode().strip()}")
        yield directory
    finally:
        if not done.returncode:
            subprocess.run(["umount", "-l", str(directory)], check=True)
        directory.rmdir()


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Not a byte is left on ``disk``."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    try:
        yield
    finally:
        ballast.unlink()

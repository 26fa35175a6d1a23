"""A pod lost with its disk: every strict call that was answered is found again, and no store makes a call hang."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import Server
from tests.support.s3 import BUCKET, S3Server
from tests.support.sidecar import Launch, Sidecar, echo
from tests.support.stack import eventually

pytestmark = pytest.mark.integration
CALLS = 60


def copied(own: Launch, s3: S3Server, tmp_path: Path, mode: str = "strict", **more: str) -> Sidecar:
    where = {
        "bucket": BUCKET,
        "prefix": tmp_path.name,
        "endpoint": s3.endpoint,
        "credentials_file": str(s3.credentials),
    }
    copy = {"s3": where, "jurisdiction": "EU", "deadline": "10s"} | more
    return own(overrides={"audit": {"journal": {"mode": mode, "copy": {"outside": copy}}}})


def shipper(sidecar: Sidecar) -> int:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == sidecar.pid and b"ship" in words:
            return int(path.parent.name)
    raise AssertionError("no shipper")


@contextmanager
def unshipped(sidecar: Sidecar) -> Iterator[int]:
    """Nothing reaches the database meanwhile."""
    pid = shipper(sidecar)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def run(sidecar: Sidecar, *command: str) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "sidecar.cli.main", *command, "--config", str(sidecar.stack.config), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_answered_call_of_a_pod_lost_with_its_disk_is_found_once(
    own: Launch, s3: S3Server, tmp_path: Path
) -> None:
    sidecar = copied(own, s3, tmp_path)
    answered: list[str] = []
    enough = threading.Event()

    def call() -> None:
        with sidecar.bare() as bare:
            while True:
                answer = bare.unary(echo(b"kept"), sidecar.headers())
                if answer.code != "OK":
                    return
                answered.append(answer.call_id)
                if len(answered) >= CALLS:
                    enough.set()

    with unshipped(sidecar):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert enough.wait(120)
        process = sidecar.stack.process
        assert process is not None
        process.kill()
        process.wait()
    for thread in threads:
        thread.join(60)
    shutil.rmtree(sidecar.stack.directory / "journal")

    (told,) = run(sidecar, "journal", "import", "--lost")
    assert (told["state"], told["faults"]) == ("stored", [])
    found = [record["call_id"] for record in sidecar.search(limit=1000)]
    assert len(set(found)) == len(found)
    assert set(answered) <= set(found)
    outcomes = {record["call_id"]: record["outcome"] for record in sidecar.search(limit=1000)}
    assert {outcomes[call_id] for call_id in answered} == {"completed"}
    assert set(outcomes.values()) <= {"completed", "aborted"}
    (again,) = run(sidecar, "journal", "import", "--lost")
    assert again["records"] == 0
    (report,) = run(sidecar, "audit", "verify", "--jobs", "1")
    assert report["ok"] is True
    sidecar.stack.start_warden()  # a new journal, beside the old one's copies
    with sidecar.bare() as bare:
        answer = bare.unary(echo(b"after"), sidecar.headers())
    assert answer.code == "OK"
    assert sidecar.record(answer.call_id)["outcome"] == "completed"


def test_a_store_that_hangs_refuses_strict_calls_and_is_used_again_when_it_is_back(
    own: Launch, s3: S3Server, tmp_path: Path
) -> None:
    sidecar = copied(own, s3, tmp_path)
    with sidecar.bare() as bare:
        assert bare.unary(echo(b"well"), sidecar.headers()).code == "OK"
        s3.hang()
        try:
            first = bare.unary(echo(b"waits"), sidecar.headers())  # ends within its deadline, or the suite's
            assert (first.code, first.told().reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
            assert bare.unary(echo(b"at once"), sidecar.headers()).told().reason == "AUDIT_UNAVAILABLE"
            assert sidecar.metric("warden_journal_copy_lag_seconds") > 0
        finally:
            s3.go_on()
        eventually(
            lambda: bare.unary(echo(b"again"), sidecar.headers()).code == "OK", what="calls to be taken", within_s=90
        )
    assert sidecar.record(first.call_id)["outcome"] in {"refused", "failed"}


def test_sigterm_copies_what_is_neither_shipped_nor_copied_and_says_where_it_could_not(
    own: Launch, s3: S3Server, tmp_path: Path, postgres: Server, wire: str
) -> None:
    """One store takes it all, however long the others are gone or hang; the process ends all the same."""
    if wire == "envoy":
        pytest.skip("what copies is the same on both wires")
    for name in ("kept", "gone"):
        (tmp_path / name).mkdir()
    batched = {"jurisdiction": "EU", "deadline": "10s", "every": "600s"}
    where = {"bucket": BUCKET, "prefix": tmp_path.name, "endpoint": s3.endpoint}
    stores: dict[str, Any] = {
        "hangs": batched | {"s3": where | {"credentials_file": str(s3.credentials)}},
        "gone": batched | {"directory": str(tmp_path / "gone"), "same_volume": True},
        "kept": batched | {"directory": str(tmp_path / "kept"), "same_volume": True},
    }
    sidecar = own(overrides={"audit": {"journal": {"mode": "batch", "copy": stores}}})
    with postgres.closed(sidecar.parts.postgres_dsn):
        with sidecar.bare() as bare:
            answered = [bare.unary(echo(b"kept"), sidecar.headers()).call_id for _ in range(20)]
        process = sidecar.stack.process
        assert process is not None
        shutil.move(tmp_path / "gone", tmp_path / "away")
        s3.hang()
        try:
            process.terminate()
            assert process.wait(60) == 0
        finally:
            s3.go_on()
    lines = sidecar.stack.log.read_text().splitlines()
    (unsynced,) = [line for line in lines if "journal.unsynced" in line]
    assert unsynced.count("entries were not copied") == 2
    assert all(words in unsynced for words in (f"{tmp_path}/gone", f"s3://{BUCKET}/{tmp_path.name}"))
    assert f"{tmp_path}/kept" not in unsynced
    shutil.rmtree(sidecar.stack.directory / "journal")
    shutil.move(tmp_path / "away", tmp_path / "gone")
    (told,) = run(sidecar, "journal", "import", "--lost")
    assert (told["state"], told["aborted"]) == ("stored", 0)
    assert set(answered) <= {record["call_id"] for record in sidecar.search(limit=1000)}

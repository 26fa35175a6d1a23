"""`warden ship` as a process: the real journal, Postgres and a collector; its signals, its report, its exit codes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from audit.journal import Bounds, Journal
from audit.record import Admitted, Entry, Output, encode
from audit.rootkeys import NewRootKey, RootKeys, new_root_key
from audit.segments import Origin, segments_in
from sidecar.cli.demo.otlp import start_otlp
from sidecar.runtime.rootkeys import root_keys, sealed_in
from sidecar.runtime.settings import load
from tests.support.journal import put
from tests.support.postgres import query
from tests.support.store import ROOT, completed, facts, refused, settled, ship_for_real, wait_until

SMALL = Bounds(segment_bytes=64 * 1024)


def write_config(directory: Path, dsn: str, *, jurisdiction: str = "EU", otlp: str = "", journal: str = "") -> Path:
    key = directory / "journal.key"
    if not key.exists():
        key.write_bytes(ROOT)
        key.chmod(0o600)
    path = directory / "warden.yaml"
    path.write_text(
        f"""
sidecar: {{name: pod-1, region: eu-west-1}}
policy: {{bundle: bundle}}
identity: {{}}
audit:
  journal: {{directory: journal, key_file: journal.key{journal}}}
  database: {{dsn: "{dsn}", jurisdiction: {jurisdiction}}}
{otlp}
"""
    )
    return path


@contextmanager
def opened(directory: Path, bounds: Bounds = SMALL) -> Iterator[Journal]:
    root = root_keys(load(directory / "warden.yaml").audit.journal)
    assert isinstance(root, RootKeys)
    journal = Journal.open(
        directory / "journal",
        root,
        Origin("pod-1", "eu-west-1", "EU"),
        bounds,
        random=secrets.token_bytes,
        wall_ns=time.time_ns,
        monotonic=None,
    )
    assert isinstance(journal, Journal), journal
    try:
        yield journal
    finally:
        journal.close()


def write(journal: Journal, entries: list[Entry]) -> None:
    for entry in entries:
        put(journal, entry)


@contextmanager
def shipping(config: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "sidecar.cli.main", "ship", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def count(dsn: str) -> int:
    ((rows,),) = query(dsn, "SELECT count(*) FROM warden.audit_calls")
    return int(rows)


def report(directory: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((directory / "journal" / "ship.json").read_bytes())
    except FileNotFoundError:
        return {}
    return told


def shown(directory: Path) -> dict[str, Any]:
    """What is reported of the one database."""
    found: dict[str, Any] = report(directory).get("databases", {}).get("EU", {})
    return found


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_records_reach_postgres_and_spans_the_collector(dsn: str, tmp_path: Path, protocol: str) -> None:
    collector = start_otlp(tmp_path / "spans.jsonl")
    try:
        endpoint = f"http://{collector.grpc}" if protocol == "grpc" else collector.http_url
        otlp = f"telemetry: {{otlp: {{endpoint: '{endpoint}', jurisdiction: EU, protocol: {protocol}}}}}"
        config = write_config(tmp_path, dsn, otlp=otlp)
        traced = facts(trace_id="ab" * 16, span_id="cd" * 8, parent_id="ef" * 8, sampled=True)
        with opened(tmp_path) as journal, shipping(config) as process:
            write(journal, [Admitted(traced), settled(traced, b"secret output"), *completed(), refused()])
            wait_until(lambda: count(dsn) == 3)
            wait_until(lambda: report(tmp_path).get("spans_exported") == 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        (span,) = collector.spans()
        assert (span["trace_id"], span["span_id"], span["parent_span_id"]) == ("ab" * 16, "cd" * 8, "ef" * 8)
        assert span["attributes"]["warden.call_id"] == traced.call_id
        assert "secret output" not in json.dumps(span)
    finally:
        collector.stop()
    told = shown(tmp_path)
    assert (told["rows"], told["position"], told["lag_records"], told["database_up"]) == (3, 3, 0, True)


def test_a_new_root_key_needs_no_restart_and_one_that_is_missing_is_waited_for_and_nothing_is_skipped(
    dsn: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, dsn, journal=", keys_directory: roots")
    tiny, roots = Bounds(segment_bytes=4096), tmp_path / "roots"
    with opened(tmp_path, tiny) as journal:
        with shipping(config) as process:
            write(journal, completed())
            wait_until(lambda: count(dsn) == 1)
            old = new_root_key(roots, secrets.token_bytes)
            assert isinstance(old, NewRootKey)
            for _ in range(20):
                write(journal, completed())
            wait_until(lambda: count(dsn) == 21)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        for _ in range(2):
            for _ in range(20):
                write(journal, completed())
            assert isinstance(new_root_key(roots, secrets.token_bytes), NewRootKey)
        assert len({each.root for each in sealed_in(tmp_path / "journal")}) == 3
        old.path.rename(tmp_path / "aside")
        with shipping(config):
            wait_until(lambda: f"root key {old.identity.hex()}" in str(shown(tmp_path).get("last_error")))
            assert count(dsn) == 21
            (tmp_path / "aside").rename(old.path)
            wait_until(lambda: count(dsn) == 61)
    assert query(dsn, "SELECT 1 FROM warden.audit_events WHERE kind = 'journal_gap'") == []


def test_segments_are_followed_across_rotation_and_told_shipped(dsn: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, dsn)
    with opened(tmp_path) as journal, shipping(config):
        for _ in range(400):
            write(journal, completed())
        wait_until(lambda: count(dsn) == 400, seconds=60)
        wait_until(lambda: shown(tmp_path).get("shipped_sequence") == 1199)
        assert len(list((tmp_path / "journal").glob("*.seg"))) > 3
    positions = query(dsn, "SELECT count(DISTINCT position), min(position), max(position) FROM warden.audit_calls")
    assert positions == [(400, 0, 399)]


def test_killed_at_random_points_while_the_journal_is_written_rotated_and_released(dsn: str, tmp_path: Path) -> None:
    """20 times kill -9; calls stay open over kills; what is shipped is released; everything is stored exactly once."""
    config, chance = write_config(tmp_path, dsn), random.Random(7)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.store"])
    written, open_calls = [], []
    with opened(tmp_path, Bounds(segment_bytes=16 * 1024, keep_s=0.0)) as journal:
        for _ in range(20):
            child = context.Process(target=ship_for_real, args=(str(config),))
            child.start()
            for _ in range(30):
                call = facts()
                append(journal, Admitted(call), opens=call.call_id)
                append(journal, Output(call.call_id, call.started_ns, 0, [b"some "]))
                open_calls.append(call)
                if len(open_calls) > 5:
                    ended = open_calls.pop(chance.randrange(len(open_calls)))
                    append(journal, settled(ended, b"output", before=b"some "), closes=ended.call_id)
                    written.append(ended.call_id)
            before = count(dsn)
            target = chance.randint(before + 1, len(written))
            wait_until(lambda target=target: count(dsn) >= target, seconds=60)
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join(10)
            journal.tick(time.monotonic() + 1000)
        assert segments_in(tmp_path / "journal")[0][0] > 0  # the first ones were released
        with shipping(config):
            for call in open_calls:
                append(journal, settled(call, b"output", before=b"some "), closes=call.call_id)
                written.append(call.call_id)
            wait_until(lambda: count(dsn) == len(written), seconds=60)
    assert sorted(call for (call,) in query(dsn, "SELECT call_id FROM warden.audit_calls")) == sorted(written)
    assert query(
        dsn,
        "SELECT min(position), max(position), count(DISTINCT position), bool_or(output_truncated),"
        " min(output_bytes) FROM warden.audit_calls",
    ) == [(0, len(written) - 1, len(written), False, 11)]
    assert query(dsn, "SELECT kind FROM warden.audit_events") == []


def append(journal: Journal, entry: Entry, **marks: str) -> None:
    assert isinstance(journal.append(encode(entry), **marks), int)  # type: ignore[arg-type]  # opens or closes


def test_a_wrong_jurisdiction_ends_it_with_1(dsn: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, dsn, jurisdiction="US")
    with opened(tmp_path), shipping(config) as process:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "'EU'" in told
        assert "'US'" in told


def test_it_waits_for_a_database_and_says_so(tmp_path: Path) -> None:
    config = write_config(tmp_path, "postgresql://nobody:hunter2@127.0.0.1:1/none")
    with opened(tmp_path) as journal, shipping(config) as process:
        write(journal, [refused()])
        wait_until(lambda: shown(tmp_path).get("last_error"), seconds=60)
        told = shown(tmp_path)
        assert told["database_up"] is False
        assert "hunter2" not in json.dumps(told)
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "ship.waiting" in logged
        assert "hunter2" not in logged


def test_it_ends_with_its_parent(dsn: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, dsn)
    starter = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    command = [sys.executable, "-m", "sidecar.cli.main", "ship", "--config", str(config)]
    with opened(tmp_path):
        parent = subprocess.Popen([sys.executable, "-c", starter, *command], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: shown(tmp_path).get("database_up"), seconds=60)
        parent.kill()
        parent.wait(10)
        parent.stdout.close()
        wait_until(lambda: not running(child))


def running(pid: int) -> bool:
    """A zombie has ended: whoever adopts it collects it when they like."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_another_key_waits_instead_of_skipping(dsn: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, dsn)
    with opened(tmp_path) as journal:
        for _ in range(200):
            write(journal, completed())
        (tmp_path / "journal.key").write_bytes(b"x" * 32)
        with shipping(config):
            wait_until(lambda: "root key" in str(shown(tmp_path).get("last_error")), seconds=60)
            assert shown(tmp_path)["database_up"] is True
    assert count(dsn) == 0
    assert not (tmp_path / "journal" / "shipped").exists()

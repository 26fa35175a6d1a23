"""Very many very small calls through the real journal, shipper, Postgres, `audit verify` and `audit export`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from audit.journal import Bounds, Journal
from audit.record import Admitted, Entry
from audit.segments import Origin
from sidecar.core.model import Secret
from tests.support.journal import put
from tests.support.postgres import query
from tests.support.store import ROOT, content, facts, refused, settled, wait_until

SUBJECTS = 100
_COUNT = "SELECT count(*), count(DISTINCT call_id), count(DISTINCT position) FROM warden.audit_calls"


def run(directory: Path, dsn: str, calls: int) -> dict[str, Any]:
    """What was stored, verified and exported of ``calls`` calls, and how fast; memory in MB, at most."""
    config = _config(directory, dsn)
    fill(directory / "journal", calls)
    journaled = sum(path.stat().st_size for path in (directory / "journal").glob("*.seg"))
    began = time.perf_counter()
    shipper = subprocess.Popen(_warden("ship", "--config", str(config)), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _shown(directory).get("rows", 0) >= calls, seconds=120 + calls / 200)
        shipped = time.perf_counter() - began
        wait_until(lambda: _signed(dsn) >= calls, seconds=120)
    finally:
        shipper.terminate()
        shipper.wait(60)
    (stored,) = query(dsn, _COUNT)
    took, verified, told = _measured("audit", "verify", "--config", str(config), "--json")
    out = directory / "export"
    export_took, exported, _ = _measured("audit", "export", "--config", str(config), "--since", "2d", "-o", str(out))
    _, checked, offline = _measured("audit", "verify", str(out), "--config", str(config), "--json")
    with (out / "records.ndjson").open("rb") as lines:
        records = sum(1 for _ in lines)
    return {
        "stored": stored, "verified": told, "offline": offline, "exported": records,
        "journal_bytes_a_call": round(journaled / calls), "stored_bytes_a_call": _stored_bytes(dsn) // calls,
        "shipped_per_s": round(calls / shipped), "verified_per_s": round(calls / took),
        "exported_per_s": round(calls / export_took),
        "rss_mb": {"verify": verified, "export": exported, "verify of the export": checked},
    }  # fmt: skip


def fill(directory: Path, calls: int) -> None:
    """Of ten calls nine end well with one byte of prompt and output; one is refused."""
    bounds = Bounds(segment_bytes=2**26, max_bytes=2**34, min_free=2**26, keep_s=86400.0)
    journal = Journal.open(
        directory, Secret(ROOT), Origin("pod-1", "eu-west-1", "EU"), bounds,
        random=secrets.token_bytes, wall_ns=time.time_ns, monotonic=None,
    )  # fmt: skip
    assert isinstance(journal, Journal), journal
    tiny = content(b"?")
    for number in range(calls):
        told: dict[str, Any] = {"subject": f"subject {number % SUBJECTS}", "prompt": tiny}
        entries: list[Entry]
        if number % 10 == 9:
            entries = [refused(**told)]
        else:
            call = facts(**told)
            entries = [Admitted(call), settled(call, b"!")]
        for entry in entries:
            put(journal, entry)
    journal.close()


def _measured(*arguments: str) -> tuple[float, int, Any]:
    """Seconds, peak resident MB, and the last line of stdout where it is JSON; it must end with 0."""
    began = time.perf_counter()
    process = subprocess.Popen(_warden(*arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    told = process.stdout.read().splitlines()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (arguments, told[-3:])
    last = told[-1] if told else b""
    return time.perf_counter() - began, usage.ru_maxrss // 1024, json.loads(last) if last.startswith(b"{") else None


def _warden(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sidecar.cli.main", *arguments]


def _config(directory: Path, dsn: str) -> Path:
    (directory / "journal.key").write_bytes(ROOT)
    (directory / "journal.key").chmod(0o600)
    path = directory / "warden.yaml"
    path.write_text(
        "sidecar: {name: pod-1, region: eu-west-1}\npolicy: {bundle: bundle}\nidentity: {}\naudit:\n"
        "  journal: {directory: journal, key_file: journal.key}\n"
        f'  database: {{dsn: "{dsn}", jurisdiction: EU}}\n'
    )
    return path


def _shown(directory: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((directory / "journal" / "ship.json").read_bytes())
    except FileNotFoundError:
        return {}
    databases: dict[str, dict[str, Any]] = told["databases"]
    return databases["EU"]


def _signed(dsn: str) -> int:
    ((size,),) = query(dsn, "SELECT coalesce(max(size), 0) FROM warden.audit_checkpoints WHERE log <> 'fleet'")
    return int(size)


def _stored_bytes(dsn: str) -> int:
    """Rows, their indexes and leaves."""
    ((size,),) = query(
        dsn,
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'warden' AND c.relkind = 'r' AND c.relname ~ 'audit_(calls|leaves)'",
    )
    return int(size)

"""A day of 200,000 recorded calls replayed: in the memory that a tenth of them takes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from audit.filekeys import FileKeys
from benchmarks.search_rows import load
from sidecar.runtime.masterkeys import key_store
from sidecar.runtime.settings import load as load_settings
from tests.integration.audit.test_search import write_config
from tests.support.policy import DEMO_BUNDLE
from tests.support.postgres import Server, prepare

pytestmark = pytest.mark.long

MORE_MB = 32  # that ten times the calls may take


def replayed(directory: Path, server: Server, rows: int) -> tuple[int, int, float]:
    """How many were told, peak resident MB and seconds, of ``rows`` calls of tenants that the bundle doesn't have."""
    directory.mkdir()
    dsn = server.create_database()
    prepare(dsn)
    config = write_config(directory, dsn)
    keys = key_store(load_settings(config))  # type: ignore[arg-type]
    assert isinstance(keys, FileKeys)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    load(dsn, keys, secrets.token_bytes, rows=rows, days=1, last=yesterday.date())
    out, began = directory / "out.json", time.perf_counter()
    arguments = ("policy", "replay", str(DEMO_BUNDLE), "--since", "3d", "--json", "--config", str(config))
    with out.open("wb") as stdout:
        process = subprocess.Popen([sys.executable, "-m", "sidecar.cli.main", *arguments], stdout=stdout)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 1, "some would change"
    told = json.loads(out.read_bytes())
    assert len(told["changed"]) == told["counts"]["changed"] > rows * 0.9
    assert sum(told["counts"].values()) == rows
    return len(told["changed"]), usage.ru_maxrss // 1024, time.perf_counter() - began


@pytest.mark.timeout(1800)
def test_a_long_day_takes_no_more_memory_than_a_short_one(postgres: Server, tmp_path: Path) -> None:
    few = replayed(tmp_path / "few", postgres, 20_000)
    many = replayed(tmp_path / "many", postgres, 200_000)
    print(f"told, MB, s: {few} and {many}")
    assert many[1] < few[1] + MORE_MB

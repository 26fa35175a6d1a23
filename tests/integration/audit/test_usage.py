"""`warden usage` on a real Postgres: sums of what was forwarded, by hour, tenant, model and key, to the number."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sidecar.cli.main import build
from tests.integration.audit.test_search import write_config
from tests.support.postgres import query
from tests.support.store import FakeJournal, Shipping, completed, refused, wait_until

HOUR = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.fixture
def config(dsn: str, tmp_path: Path) -> Path:
    """Two hours of acme's, one of birch's; a refusal, which used nothing."""
    journal = FakeJournal()
    for number, minutes in enumerate((1, 59)):
        journal.append(*completed(HOUR + timedelta(minutes=minutes), call_id=f"a{number}", key_id="K1"))
    journal.append(
        *completed(HOUR + timedelta(minutes=60), call_id="a2", key_id="K1"),
        *completed(HOUR + timedelta(minutes=5), call_id="b0", tenant="birch", model="=cmd()"),
        refused(HOUR + timedelta(minutes=6), call_id="r0"),
    )
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 5)
    return write_config(tmp_path, dsn)


def run(config: Path, *arguments: str) -> Result:
    command = ["usage", "--config", str(config), "--since", "2026-11-30T12:00Z", "--until", "2026-11-30T14:00Z"]
    return CliRunner().invoke(build("usage"), [*command, *arguments])


def test_sums_by_hour_tenant_model_and_key(config: Path) -> None:
    done = run(config, "--json")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["hour"], row["tenant"], row["key_id"], row["calls"]) for row in rows] == [
        ("2026-11-30T12:00Z", "acme", "K1", 2),
        ("2026-11-30T12:00Z", "birch", rows[1]["key_id"], 1),
        ("2026-11-30T13:00Z", "acme", "K1", 1),
    ]
    assert (rows[0]["input_tokens"], rows[0]["output_tokens"], rows[0]["estimated_calls"]) == (10, 6, 2)
    assert rows[0]["call_seconds"] == 0.01


def test_csv_is_harmless_to_a_spreadsheet(config: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(config, "--csv", "--tenant", "birch").stdout)))
    assert [(row["tenant"], row["model"], row["calls"]) for row in rows] == [("birch", "'=cmd()", "1")]


def test_that_it_was_read_is_recorded(config: Path, dsn: str) -> None:
    assert "acme" in run(config, "--tenant", "acme").stdout
    found = query(dsn, "SELECT detail->>'tenant' FROM warden.audit_events WHERE kind = 'usage_read'")
    assert [tuple(row) for row in found] == [("acme",)]


def test_a_window_that_ends_before_it_begins_is_wrong_use(config: Path) -> None:
    done = run(config, "--since", "2026-11-30T15:00Z")
    assert done.exit_code == 2
    assert "--since is not before --until" in done.stderr

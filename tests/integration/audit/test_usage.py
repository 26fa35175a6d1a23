"""`warden usage` on a real Postgres: sums of what was forwarded, by hour, tenant, model and key, to the number."""

from __future__ import annotations

import csv
import io
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from audit.derived import check_usage
from audit.record import Admitted
from audit.rollup import SUMS
from audit.usage import MEASURES
from migrations.versions import m0012_usage
from sidecar.cli.main import build
from tests.integration.audit.test_search import write_config
from tests.support.postgres import query
from tests.support.store import FakeJournal, Shipping, completed, facts, refused, settled, wait_until

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


def test_sums_that_no_number_holds_stop_at_the_largest(dsn: str, tmp_path: Path) -> None:
    """What one backend counts keeps nobody's records from being stored; in one transaction, and in the next."""
    journal = FakeJournal()

    def counted(call_id: str) -> None:
        call = facts(HOUR, call_id=call_id, key_id="K1")
        journal.append(Admitted(call), settled(call, b"", output_tokens=2**63 - 1, output_exact=True))

    counted("a0"), counted("a1")
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 2)
        counted("a2")
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 3)
        assert shipping.fault is None
    ((calls, output, exact),) = query(dsn, "SELECT calls, output_tokens, exact_output_tokens FROM warden.usage_hours")
    assert (calls, output, exact) == (3, 2**63 - 1, 2**63 - 1)
    engine = sa.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert list(check_usage(connection)) == []
    engine.dispose()


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


def test_by_whatever_is_asked_for_the_sums_are_the_same(config: Path) -> None:
    whole = json.loads(run(config, "--json", "--by", "").stdout)
    assert whole["calls"] == 4
    for by, lines in (("day", 1), ("tenant", 2), ("model,tenant", 2), ("hour", 2), ("key", 2)):
        rows = [json.loads(line) for line in run(config, "--json", "--by", by).stdout.splitlines()]
        assert len(rows) == lines, by
        for name in MEASURES:
            assert sum(row[name] for row in rows) == pytest.approx(whole[name]), (by, name)
    wrong = run(config, "--by", "subject")
    assert wrong.exit_code == 2
    assert "subject" in wrong.stderr


ALL = """SELECT count(*), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),
    coalesce(sum(input_tokens) FILTER (WHERE input_exact), 0),
    coalesce(sum(output_tokens) FILTER (WHERE output_exact), 0),
    count(*) FILTER (WHERE NOT (input_exact AND output_exact)), coalesce(sum(request_bytes), 0),
    coalesce(sum(response_bytes), 0), coalesce(sum(duration_ns), 0),
    coalesce(sum(duration_ns) FILTER (WHERE input_tokens = 0 AND output_tokens = 0), 0), coalesce(sum(kv_byte_ms), 0)
    FROM warden.audit_calls WHERE outcome <> 'refused' AND model <> ''"""
KEPT = f"SELECT {', '.join(f'coalesce(sum({name}), 0)' for name in SUMS)} FROM warden.usage_hours"


@pytest.mark.parametrize("seed", range(3))
def test_the_sums_kept_are_those_of_the_records_however_they_came(dsn: str, tmp_path: Path, seed: int) -> None:
    """Invariant: what usage_hours holds is the sum over audit_calls, for any calls, in any batches."""
    chance = random.Random(seed)
    journal, count = FakeJournal(), 60
    for number in range(count):
        journal.append(*_call(chance, number))
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == count)
        assert not shipping.fault
    assert query(dsn, KEPT) == query(dsn, ALL)
    by_hour = "GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
    records = query(
        dsn,
        "SELECT date_trunc('hour', started_at, 'UTC'), tenant, model, key_id, count(*), sum(kv_byte_ms) FROM"
        f" warden.audit_calls WHERE outcome <> 'refused' AND model <> '' {by_hour}",
    )
    kept = query(
        dsn, f"SELECT hour, tenant, model, key_id, sum(calls), sum(kv_byte_ms) FROM warden.usage_hours {by_hour}"
    )
    assert [tuple(row) for row in kept] == [tuple(row) for row in records]
    with Shipping(journal, dsn, tmp_path) as again:  # its cursor is behind nothing: it has all of it
        wait_until(lambda: again.fault or again.shipper.status.database_up)
    assert query(dsn, KEPT) == query(dsn, ALL)


def _call(chance: random.Random, number: int) -> list[Any]:
    """One call's entries: refused, or ended anyhow with numbers of any size, at any minute of three hours."""
    at = HOUR + timedelta(minutes=chance.randrange(180), seconds=chance.randrange(60))
    named = {"call_id": f"c{number}", "key_id": chance.choice(["K1", "K2", ""]), "model": chance.choice(["m1", "m2"])}
    named["tenant"] = chance.choice(["acme", "birch"])
    if chance.random() < 0.2:
        return [refused(at, **named)]
    *before, end = completed(at, **named)
    tokens = chance.random() < 0.7
    changed = msgspec.structs.replace(
        end,
        outcome=chance.choice(["completed", "failed", "cancelled", "aborted"]),
        input_tokens=chance.randrange(10_000) if tokens else 0,
        output_tokens=chance.randrange(10_000) if tokens else 0,
        input_exact=chance.random() < 0.5,
        output_exact=chance.random() < 0.5,
        duration_ns=chance.choice([0, 1, 10**9, 2**62]),
        kv_byte_ms=chance.choice([0, 7, 2**62]),
    )
    return [*before, changed]


def test_sums_outlive_the_records_and_name_nobody(config: Path, dsn: str) -> None:
    before = query(dsn, KEPT)
    query(dsn, "DROP TABLE warden.audit_calls_20261130")  # as retention does
    assert query(dsn, KEPT) == before
    assert len(run(config, "--json").stdout.splitlines()) == 3
    columns = {row[0] for row in query(
        dsn, "SELECT column_name FROM information_schema.columns WHERE table_name = 'usage_hours'"
    )}  # fmt: skip
    assert columns == {"hour", "tenant", "model", "key_id", "log", *SUMS}


def test_records_from_before_the_sums_are_summed_by_the_migration(config: Path, dsn: str) -> None:
    assert config.exists()
    before = query(dsn, KEPT)
    fill = m0012_usage._FILL  # what upgrade runs
    query(dsn, f"DELETE FROM warden.usage_hours; {fill} RETURNING 1")
    assert query(dsn, KEPT) == before

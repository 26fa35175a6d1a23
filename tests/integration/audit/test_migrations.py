"""migrations: the migrated schema is the tables' metadata; upgrading is repeatable and alone."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from alembic import command

from audit import store
from migrations import versions
from sidecar.runtime import migrate
from tests.support.postgres import Server, prepare, query
from tests.support.store import FakeJournal, Shipping, completed, wait_until

TODAY = date(2026, 11, 30)
HEAD = max(path.name[1:5] for path in Path(versions.__file__).parent.glob("m*.py"))


def test_schema_is_metadata(dsn: str) -> None:
    engine = store.connect(dsn, application="test")
    with engine.connect() as connection:
        command.check(migrate.alembic_config(connection))  # raises where autogenerate would add or drop anything
    engine.dispose()


def test_autogenerate_sees_a_missing_column(dsn: str) -> None:
    query(dsn, "ALTER TABLE warden.audit_events DROP COLUMN reason")
    engine = store.connect(dsn, application="test")
    with engine.connect() as connection, pytest.raises(Exception, match="reason"):
        command.check(migrate.alembic_config(connection))
    engine.dispose()


def test_status_before_and_after(postgres: Server) -> None:
    engine = store.connect(postgres.create_database(), application="test")
    assert migrate.status(engine, today=TODAY) == migrate.Status(None, HEAD, None, 0)
    before, after = migrate.upgrade(engine, jurisdiction="CH", today=TODAY)
    assert before.revision is None
    assert after == migrate.Status(HEAD, HEAD, "CH", store.AHEAD_DAYS)
    assert migrate.upgrade(engine, jurisdiction="CH", today=TODAY) == (after, after)
    engine.dispose()


def test_another_jurisdiction_is_refused(dsn: str) -> None:
    with pytest.raises(store.WrongJurisdictionError, match=r"'EU'.*'US'"):
        prepare(dsn, jurisdiction="US")


def test_a_database_of_a_later_release_is_left_alone(dsn: str) -> None:
    query(dsn, "UPDATE warden.alembic_version SET version_num = '9999'")
    with pytest.raises(store.MismatchError, match="9999"):
        prepare(dsn)


def test_two_upgrades_at_once(postgres: Server) -> None:
    made = postgres.create_database()
    faults: list[BaseException] = []

    def upgrade() -> None:
        try:
            prepare(made)
        except BaseException as fault:  # noqa: BLE001 — handed to the test's thread
            faults.append(fault)

    threads = [threading.Thread(target=upgrade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []


def test_upgrade_waits_for_another_and_gives_up(dsn: str) -> None:
    engine = store.connect(dsn, application="test")
    waited: list[float] = []
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT pg_advisory_lock(hashtextextended('warden.upgrade', 0))")
        with pytest.raises(migrate.BusyError):
            migrate.upgrade(engine, jurisdiction="EU", today=TODAY, wait=waited.append)
    assert sum(waited) == pytest.approx(migrate.LOCK_WAIT)
    engine.dispose()


def test_partitions_are_made_ahead_and_none_is_default(dsn: str) -> None:
    engine = store.connect(dsn, application="test")
    today = datetime.now(UTC).date()
    with store.transaction(engine) as connection:
        assert store.partitions(connection) >= {store.partition_name(today + timedelta(days=n)) for n in range(8)}
        store.ensure_partitions(connection, [date(1999, 12, 31), date(2031, 1, 1), date(1999, 12, 31)])
        store.ensure_partitions(connection, [date(1999, 12, 31)])
        assert store.partition_name(date(1999, 12, 31)) in store.partitions(connection)
    assert query(
        dsn, "SELECT partdefid FROM pg_partitioned_table WHERE partrelid = 'warden.audit_calls'::regclass"
    ) == [(0,)]
    engine.dispose()


EVIDENCE = ("audit_events", "audit_leaves", "audit_checkpoints", "fleet_entries", "bundles")


@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize("table", ["audit_calls", f"audit_calls_{datetime.now(UTC):%Y%m%d}", *EVIDENCE])
def test_the_evidence_is_append_only(dsn: str, tmp_path: Path, table: str, role: str) -> None:
    """Even in replica mode, which skips ordinary triggers, and on a partition, which the parent's don't guard."""
    journal = FakeJournal()
    journal.append(*completed())
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.signed_size == 1)
    query(dsn, "INSERT INTO warden.audit_events (id, at, kind) VALUES ('e', now(), 'k')")
    changes = (
        f"TRUNCATE warden.{table}",
        f"DELETE FROM warden.{table}",
        f"UPDATE warden.{table} SET {SET[table[:11]]}",
    )
    for statement in changes:
        with psycopg.connect(dsn) as connection:
            connection.execute(f"SET session_replication_role = {role}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
                connection.execute(statement)


SET = {
    "audit_calls": "outcome = 'x'",
    "audit_event": "kind = 'x'",
    "audit_leave": "first = 9",
    "audit_check": "note = 'x'",
    "fleet_entri": "body = 'x'",
    "bundles": "digest = 'x'",
}


def test_a_key_change_notifies(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN warden_api_keys")
        query(
            dsn,
            "INSERT INTO warden.api_keys (id, tenant, name, environment, secret_mac, created_at, created_by)"
            " VALUES ('k', 'acme', 'n', 'live', decode(repeat('00', 32), 'hex'), now(), 'me')",
        )
        assert [notice.channel for notice in listener.notifies(timeout=5, stop_after=1)] == ["warden_api_keys"]

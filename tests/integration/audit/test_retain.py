"""audit.retain: what was kept long enough ends, by key at once and by day on record; the log verifies without it."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from audit import erasing, store
from audit.erasing import Officer
from audit.opening import Opener
from audit.retain import Retained, retain
from audit.upkeep import Upkeep, look
from tests.integration.audit.test_erasing import Desk
from tests.integration.audit.test_verify import check
from tests.support.evidence import tamper
from tests.support.postgres import query
from tests.support.store import completed, keys_in

_ids = (f"keep-{n}" for n in itertools.count())
NOW = datetime.now(UTC)


def run(desk: Desk, at: datetime = NOW) -> Retained:
    engine = store.connect(desk.dsn, application="test")
    try:
        officer = Officer("cli:ada", at, _ids, "retention")
        return retain(engine, Opener(keys_in(desk.directory)), officer, copies=timedelta(hours=24))
    finally:
        engine.dispose()


@pytest.fixture
def desk(dsn: str, tmp_path: Path) -> Desk:
    """Ten days ago: two calls kept for 5 days. Eight days ago: one kept for 5, one for 30."""
    made = Desk(dsn, tmp_path)
    for name, age, days in (("o1", 10, 5), ("o2", 10, 5), ("m1", 8, 5), ("m2", 8, 30), ("n1", 0, None)):
        made.journal.append(*completed(NOW - timedelta(days=age), call_id=name, retention_days=days, subject=name))
    made.ship(5)
    return made


def days(desk: Desk) -> set[str]:
    return {call for (call,) in query(desk.dsn, "SELECT call_id FROM warden.audit_calls")}


def test_keys_end_at_once_and_days_after_a_signed_record(desk: Desk) -> None:
    first = run(desk)
    old = (NOW - timedelta(days=10)).date()
    assert (first.keys, first.recorded, first.dropped) == (3, [str(old)], [])
    assert desk.opened() == {"o1": "erased", "o2": "erased", "m1": "erased", "m2": "m2", "n1": "n1"}
    assert run(desk).dropped == []  # nothing signed holds the record yet
    desk.ship(0)
    second = run(desk)
    assert (second.dropped, second.recorded, second.keys) == ([str(old)], [], 0)
    assert days(desk) == {"m1", "m2", "n1"}
    assert check(desk.dsn, desk.directory / "anchor").faults == []
    assert run(desk).shape() == Retained().shape()


def test_what_came_late_is_put_on_record_before_it_goes(desk: Desk) -> None:
    run(desk)
    late = completed(NOW - timedelta(days=10), call_id="late", retention_days=5)
    desk.journal.append(*late)
    desk.ship(1)  # from a sidecar that was away; the record of the drop is signed meanwhile
    again = run(desk)
    assert (again.dropped, again.recorded) == ([], [str((NOW - timedelta(days=10)).date())])
    assert "late" in days(desk)
    desk.ship(0)
    assert len(run(desk).dropped) == 1
    assert "late" not in days(desk)
    assert check(desk.dsn, desk.directory / "anchor").faults == []


def test_what_was_not_on_record_is_a_deletion(desk: Desk) -> None:
    run(desk)
    desk.ship(0)
    tamper(desk.dsn, "DELETE FROM warden.audit_calls WHERE call_id = 'm1'")
    assert [fault.kind for fault in check(desk.dsn, desk.directory / "anchor").faults] == ["deletion"]


def test_a_hold_keeps_keys_and_days(desk: Desk) -> None:
    def place(connection: sa.Connection, opener: Opener, name: str, subject: Any) -> None:
        erasing.place_hold(connection, opener.provider, Officer("cli:ada", NOW, _ids, "court"), name, "acme", subject)

    desk.act(place, name="h1", subject="o1")
    done = run(desk)
    assert (done.keys, done.recorded) == (2, [])
    assert "acme" in done.held
    assert desk.opened()["o1"] == "o1"
    desk.act(lambda connection, _: erasing.release_hold(connection, Officer("cli:ada", NOW, _ids), "h1"))
    assert run(desk).keys == 1
    assert desk.opened()["o1"] == "erased"


def looked(desk: Desk) -> Upkeep:
    engine = store.connect(desk.dsn, application="test")
    try:
        with store.transaction(engine) as connection:
            return look(connection, NOW)
    finally:
        engine.dispose()


def midnight(days: int) -> float:
    return datetime.combine(NOW.date() + timedelta(days=days), datetime.min.time(), UTC).timestamp()


def test_a_run_to_its_end_is_told_and_one_that_broke_off_is_not(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError("broke off")

    assert looked(desk).retained_at == midnight(-10)  # never yet: as long ago as there are records
    with monkeypatch.context() as breaks:
        breaks.setattr("audit.retain._record_drops", broken)
        with pytest.raises(OSError, match="broke off"):
            run(desk)
    assert looked(desk).retained_at == midnight(-10)
    run(desk)
    assert looked(desk).retained_at == NOW.timestamp()
    run(desk, NOW + timedelta(hours=25))
    assert looked(desk).retained_at == (NOW + timedelta(hours=25)).timestamp()


def test_room_ends_where_a_day_lacks_a_partition_of_either_table(desk: Desk) -> None:
    assert looked(desk).room_until == midnight(8)
    query(desk.dsn, f"DROP TABLE warden.{store.partition_name((NOW + timedelta(days=3)).date(), 'audit_terms')}")
    assert looked(desk).room_until == midnight(3)
    query(desk.dsn, f"DROP TABLE warden.{store.partition_name(NOW.date())}")
    assert looked(desk).room_until == NOW.timestamp()


def test_old_master_keys_go_when_copies_have(desk: Desk) -> None:
    run(desk)
    assert keys_in(desk.directory).versions("acme") == [1, 2]
    run(desk, NOW + timedelta(hours=25))
    assert keys_in(desk.directory).versions("acme") == [2]
    assert desk.opened()["m2"] == "m2"

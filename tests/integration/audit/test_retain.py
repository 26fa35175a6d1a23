"""audit.retain: what was kept long enough ends, by key at once and by day on record; the log verifies without it."""

from __future__ import annotations

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from audit import erasing, store
from audit import retain as retaining
from audit.erasing import Officer
from audit.holds import held_tenants
from audit.keyring import Keyring, held_in
from audit.keys import KeyFaultError
from audit.opening import Opener
from audit.retain import Retained, retain
from audit.roles import RoleKind
from audit.upkeep import Upkeep, look
from sidecar.cli import keeping
from tests.integration.audit.test_erasing import Desk
from tests.integration.audit.test_search import write_config
from tests.integration.audit.test_verify import check
from tests.support.evidence import tamper
from tests.support.postgres import own_dsn, query, waits_for_lock
from tests.support.store import completed, keys_in, signer_of

_ids = (f"keep-{n}" for n in itertools.count())
NOW = datetime.now(UTC)
OLD = (NOW - timedelta(days=10)).date()


def recorded(desk: Desk) -> None:
    """The old day's drop is on record, and signed: the next run may drop it."""
    assert run(desk).recorded
    desk.ship(0)


def run(desk: Desk, at: datetime = NOW) -> Retained:
    engine = store.connect(desk.dsn, application="test")
    try:
        officer = Officer("cli:ada", at, _ids, "retention")
        return retain(engine, Opener(keys_in(desk.directory)), officer, copies=timedelta(hours=24), signer_of=signer_of)
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


def failing(desk: Desk) -> str:
    """What a run says of the keys; it does all else."""
    engine = store.connect(desk.dsn, application="test")
    opener = Opener(Keyring(keys_in(desk.directory), held_in(engine)))
    officer = Officer("cli:ada", NOW, _ids, "retention")
    try:
        retain(engine, opener, officer, copies=timedelta(hours=24), signer_of=signer_of)
    except KeyFaultError as fault:
        return f"{type(fault).__name__}: {fault}"
    finally:
        engine.dispose()
    raise AssertionError("it did all")


def lose(desk: Desk, *tenants: str) -> None:
    for tenant in tenants:
        shutil.rmtree(desk.directory / "tenant-keys" / f"t-{tenant}")


def test_tenants_whose_master_keys_are_lost_keep_no_other_from_ending_and_each_is_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("birch", "cobalt"):
        desk.journal.append(*completed(NOW - timedelta(days=9), call_id=f"{tenant}1", tenant=tenant, retention_days=5))
    desk.ship(2)
    lose(desk, "acme", "cobalt")
    said = failing(desk)
    assert said.startswith("KeyMissingError: ")
    assert [words in said for words in ("'acme' lacks version 1", "'cobalt' lacks version 1")] == [True, True]
    ended = "SELECT tenant FROM warden.data_keys WHERE wrapped IS NULL"
    assert query(desk.dsn, ended) == [("birch",)]
    monkeypatch.setattr(retaining, "TOLD", 1)
    assert failing(desk).endswith("; and 1 more")


def test_days_go_while_the_master_keys_cannot_be_reached_but_those_of_a_tenant_that_is_held(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = completed(NOW - timedelta(days=9), call_id="b1", tenant="birch", retention_days=5, subject="someone")
    desk.journal.append(*late)
    desk.ship(1)
    desk.act(lambda connection, opener: _hold(connection, opener, "birch", "someone"))
    run(desk)
    desk.ship(0)
    before = query(desk.dsn, "SELECT value FROM warden.database_facts WHERE key = 'retained_at'")
    tamper(desk.dsn, "UPDATE warden.legal_holds SET subject_wrapped = '\\x00'")  # an altered row holds all the same
    keys = desk.directory / "tenant-keys"
    keys.rename(desk.directory / "aside")
    keys.write_text("no directory")
    swept: list[datetime] = []
    monkeypatch.setattr(keeping, "_swept", lambda _, at: swept.append(at))
    done = CliRunner().invoke(keeping.app, ["retain", "--config", str(write_config(desk.directory, desk.dsn))])
    assert (done.exit_code, "the tenants' master keys: " in done.stderr, len(swept)) == (3, True, 1)
    assert days(desk) == {"b1", "m1", "m2", "n1"}
    assert query(desk.dsn, "SELECT value FROM warden.database_facts WHERE key = 'retained_at'") == before


def test_a_hold_whose_row_is_lost_holds_its_tenant_without_its_keys(desk: Desk) -> None:
    desk.act(place, name="h1", subject="o1")
    tamper(desk.dsn, "DELETE FROM warden.legal_holds")
    assert desk.act(lambda connection, _: held_tenants(connection)) == {"acme"}
    desk.act(place, name="h2")
    tamper(desk.dsn, "UPDATE warden.legal_holds SET tenant = 'birch', released_at = now()")
    assert desk.act(lambda connection, _: held_tenants(connection)) == {"acme", "birch"}
    for name in ("h1", "h2"):
        desk.act(lambda connection, _, name=name: erasing.release_hold(connection, Officer("cli:ada", NOW, _ids), name))
    assert desk.act(lambda connection, _: held_tenants(connection)) == set()


def _hold(connection: sa.Connection, opener: Opener, tenant: str, subject: str) -> None:
    erasing.place_hold(connection, opener.provider, Officer("cli:ada", NOW, _ids, "court"), "h1", tenant, subject)


def test_what_was_not_on_record_is_a_deletion(desk: Desk) -> None:
    run(desk)
    desk.ship(0)
    tamper(desk.dsn, "DELETE FROM warden.audit_calls WHERE call_id = 'm1'")
    assert [fault.kind for fault in check(desk.dsn, desk.directory / "anchor").faults] == ["deletion"]


def test_a_hold_keeps_keys_and_days(desk: Desk) -> None:
    desk.act(place, name="h1", subject="o1")
    done = run(desk)
    assert (done.keys, done.recorded) == (2, [])
    assert "acme" in done.held
    assert desk.opened()["o1"] == "o1"
    desk.act(lambda connection, _: erasing.release_hold(connection, Officer("cli:ada", NOW, _ids), "h1"))
    assert run(desk).keys == 1
    assert desk.opened()["o1"] == "erased"


def place(connection: sa.Connection, opener: Opener, name: str = "h1", subject: Any = None) -> None:
    erasing.place_hold(connection, opener.provider, Officer("cli:ada", NOW, _ids, "court"), name, "acme", subject)


def release(connection: sa.Connection, _: Opener) -> None:
    assert erasing.release_hold(connection, Officer("cli:ada", NOW, _ids), "h1")


def kinds(desk: Desk) -> list[str]:
    return [fault.kind for fault in check(desk.dsn, desk.directory / "anchor").faults]


def test_a_hold_between_the_record_of_a_drop_and_the_drop_keeps_the_day(desk: Desk) -> None:
    recorded(desk)
    desk.act(place)
    held = run(desk)
    assert (held.dropped, held.held) == ([], ["acme", "acme"])
    assert days(desk) == {"o1", "o2", "m1", "m2", "n1"}
    desk.ship(0)
    assert kinds(desk) == []
    tamper(desk.dsn, "DELETE FROM warden.audit_calls WHERE call_id = 'o1'")  # what was on record is excused no more
    assert kinds(desk) == ["deletion"]


def test_a_released_day_goes_after_a_new_record(desk: Desk) -> None:
    recorded(desk)
    desk.act(place)
    assert run(desk).dropped == []
    desk.act(release)
    desk.ship(0)
    assert (len(run(desk).recorded), days(desk)) == (1, {"o1", "o2", "m1", "m2", "n1"})
    desk.ship(0)
    assert len(run(desk).dropped) == 1
    assert days(desk) == {"m1", "m2", "n1"}
    assert kinds(desk) == []


@pytest.mark.parametrize("dies", [False, True])
def test_a_hold_while_a_day_is_being_dropped_keeps_it(desk: Desk, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """Between its being detached and its end; also where the run died there and the next one goes on."""
    recorded(desk)
    detach = retaining._detach

    def detached(engine: sa.Engine, day: Any) -> None:
        detach(engine, day)
        desk.act(place)
        if dies:
            raise OSError("died")

    with monkeypatch.context() as between:
        between.setattr(retaining, "_detach", detached)
        if dies:
            with pytest.raises(OSError, match="died"):
                run(desk)
            assert days(desk) == {"m1", "m2", "n1"}  # away, not gone
        else:
            assert run(desk).dropped == []
    assert run(desk).dropped == []
    assert days(desk) == {"o1", "o2", "m1", "m2", "n1"}
    desk.ship(0)
    assert kinds(desk) == []


def test_a_day_whose_drop_broke_off_goes_in_the_next_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(desk)
    with monkeypatch.context() as between:
        between.setattr(retaining, "_end_day", lambda *_: (_ for _ in ()).throw(OSError("died")))
        with pytest.raises(OSError, match="died"):
            run(desk)
    assert len(run(desk).dropped) == 1
    assert not query(desk.dsn, "SELECT 1 FROM pg_class WHERE relname = %s", retaining.store.partition_name(OLD))
    assert kinds(desk) == []


def test_a_hold_waits_for_a_drop_that_is_under_way_and_comes_after_it(desk: Desk) -> None:
    recorded(desk)
    engine = store.connect(desk.dsn, application="test")
    with store.transaction(engine) as connection, ThreadPoolExecutor(1) as pool:
        retaining.lock_keys(connection, ["acme"])  # as the drop does it
        placing = pool.submit(desk.act, place)
        waits_for_lock(desk.dsn)
        assert not placing.done()
        connection.commit()
        placing.result(30)
    engine.dispose()


def test_what_is_kept_longer_and_came_late_keeps_its_day(desk: Desk) -> None:
    """A day on record of which not everything is over any more."""
    recorded(desk)
    desk.journal.append(*completed(NOW - timedelta(days=10), call_id="late", retention_days=400))
    desk.ship(1)
    assert run(desk).dropped == []
    assert "late" in days(desk)
    desk.ship(0)
    assert kinds(desk) == []
    tamper(desk.dsn, "DELETE FROM warden.audit_calls WHERE call_id = 'o1'")
    assert kinds(desk) == ["deletion"]


def test_two_runs_at_once_are_one(desk: Desk) -> None:
    engine = store.connect(desk.dsn, application="test")
    with store.transaction(engine) as connection:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended('warden.retain', 0))")
        with pytest.raises(retaining.BusyError):
            run(desk)
    engine.dispose()
    assert run(desk).recorded


def test_a_record_of_a_drop_that_nobody_signed_drops_and_excuses_nothing(desk: Desk) -> None:
    """Whoever may record acts, or write the fleet's log, can write one: an officer, a reader, a sidecar's login."""
    told = {
        "day": str(OLD),
        "rows": 2,
        "logs": {query(desk.dsn, "SELECT max(log) FROM warden.audit_calls")[0][0]: [[0, 9]]},
    }
    act = "INSERT INTO warden.audit_events (id, at, kind, detail) VALUES ('x', now(), 'partition_dropped', %s)"
    query(desk.dsn, act, json.dumps(told))
    desk.ship(0)  # an honest sidecar takes it up, and signs
    assert run(desk).dropped == []
    assert days(desk) == {"o1", "o2", "m1", "m2", "n1"}
    assert kinds(desk) == ["insertion"]
    tamper(desk.dsn, "DELETE FROM warden.audit_calls WHERE call_id = 'm2'")
    assert sorted(kinds(desk)) == ["deletion", "insertion"]


def test_a_sidecars_login_cannot_make_retention_drop_a_day(desk: Desk) -> None:
    """It writes the fleet's log: an entry, a head that nobody signed, and the act as if it were restored."""
    login = own_dsn(desk.dsn, RoleKind.SIDECAR, "pod-1")
    log = query(desk.dsn, "SELECT max(log) FROM warden.audit_calls")[0][0]
    values = {"id": "x", "at": NOW.isoformat(), "kind": "partition_dropped", "actor": "", "reason": "",
              "detail": {"day": str(OLD), "rows": 9, "logs": {log: [[0, 99]]}}, "sanitised": False}  # fmt: skip
    body = json.dumps({"kind": "event", "id": "x", "leaf": "", "values": values})
    (size,) = query(desk.dsn, "SELECT max(position) + 1 FROM warden.fleet_entries")[0]
    query(login, "INSERT INTO warden.fleet_entries VALUES (%s, %s, 'x')", size, body)
    query(login, "SELECT warden.restore_events(%s)", size)
    query(login, "INSERT INTO warden.audit_checkpoints VALUES ('fleet', 1000000, 'no head', now())")
    assert run(desk).dropped == []
    assert days(desk) == {"o1", "o2", "m1", "m2", "n1"}
    assert {"insertion", "replaced_checkpoint"} <= set(kinds(desk))


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

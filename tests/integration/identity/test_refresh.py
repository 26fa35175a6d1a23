"""The refresher against a real Postgres: changes arrive at once, outages keep what was known and say so."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from audit import store as audit_store
from sidecar.core.model import Denial, Principal, Secret
from sidecar.core.reasons import Reason
from sidecar.identity import keys, load, refresh, store
from sidecar.identity.denials import Age, DenyBook
from sidecar.identity.keys import KeyRing
from sidecar.identity.persist import SnapshotFile
from sidecar.identity.refresh import KeyRefresher
from sidecar.identity.store import Issued, NewKey, Office
from tests.support.postgres import Server, query
from tests.support.store import wait_until

pytestmark = pytest.mark.integration

PEPPER = Secret(b"p" * 32)
OFFICE = Office(PEPPER, "live", secrets.token_bytes, lambda *_: None, "cli:olga")


@contextmanager
def refreshing(
    dsn: str, *, refresh: float, restored: bool = False, **options: Any
) -> Iterator[tuple[KeyRing, KeyRefresher]]:
    """A refresher at work; ``restored``: begun with what its ``file`` holds."""
    ring = KeyRing(PEPPER, "live", max_age=3600)
    refresher = KeyRefresher(dsn, ring, refresh=refresh, clock=time.time, monotonic=time.monotonic, **options)
    if restored:
        assert refresher.restore() is None
    refresher.start()
    try:
        yield ring, refresher
    finally:
        refresher.stop()
        assert not refresher._thread.is_alive()


def step(dsn: str, act: Callable[[sa.Connection], object]) -> object:
    engine = audit_store.connect(dsn, application="warden-test")
    try:
        with engine.begin() as connection:
            return act(connection)
    finally:
        engine.dispose()


def issue(dsn: str, **changes: object) -> Issued:
    new = NewKey("acme", "laptop", **changes)  # type: ignore[arg-type] — forwarded as they are
    made = step(dsn, lambda connection: store.issue(connection, OFFICE, new, datetime.now(UTC)))
    assert isinstance(made, Issued)
    return made


def outcome(ring: KeyRing, key: bytes) -> str:
    found = ring.identify(key, time.time())
    return found.reason if isinstance(found, Denial) else "ok"


def test_keys_arrive_by_notification_long_before_the_next_poll(dsn: str) -> None:
    """With a minute between polls only the notification can be what brings each change within the test's patience."""
    with refreshing(dsn.replace("postgresql://", "postgresql+psycopg://", 1), refresh=60) as (ring, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        made = issue(dsn)
        wait_until(lambda: outcome(ring, made.key.reveal()) == "ok", seconds=30)
        found = ring.identify(made.key.reveal(), time.time())
        assert isinstance(found, Principal)
        assert (found.tenant, found.name, found.key_id) == ("acme", "laptop", made.info.id)
        began = time.monotonic()
        step(dsn, lambda c: store.revoke(c, OFFICE, made.info.id, datetime.now(UTC)))
        wait_until(lambda: outcome(ring, made.key.reveal()) == Reason.KEY_REVOKED, seconds=30)
        assert time.monotonic() - began < 20  # and not the minute to the next poll


def test_polling_finds_what_no_notification_told(dsn: str) -> None:
    query(dsn, "DROP TRIGGER api_keys_changed ON warden.api_keys")
    with refreshing(dsn, refresh=0.05) as (ring, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        made = issue(dsn, expires_at=datetime.now(UTC) + timedelta(hours=1), models=("chat",))
        wait_until(lambda: outcome(ring, made.key.reveal()) == "ok")
        found = ring.identify(made.key.reveal(), time.time())
        assert isinstance(found, Principal)
        assert found.models == ("chat",)


def test_rotation_works_with_both_secrets(dsn: str) -> None:
    made = issue(dsn)
    rotated = step(dsn, lambda c: store.rotate(c, OFFICE, made.info.id, timedelta(hours=1), datetime.now(UTC)))
    assert isinstance(rotated, Issued)
    with refreshing(dsn, refresh=0.1) as (ring, _):
        wait_until(lambda: outcome(ring, rotated.key.reveal()) == "ok")
        assert outcome(ring, made.key.reveal()) == "ok"


def test_unchanged_keys_are_confirmed_and_not_loaded_again(dsn: str) -> None:
    issue(dsn)
    with refreshing(dsn, refresh=0.02) as (ring, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        snapshot, since = ring.state.snapshot, ring.state.confirmed.confirmed_at
        # Counting a use is not a change that decides anything.
        query(dsn, "UPDATE warden.api_keys SET last_used_at = now()")
        wait_until(lambda: ring.state.confirmed.confirmed_at > since + 0.2)
        assert ring.state.snapshot is snapshot
        assert refresher.status.loads == 1
        assert refresher.status.keys == 1


@contextmanager
def outage(postgres: Server, dsn: str) -> Iterator[None]:
    """This one database cuts every connection and takes no new one, while the session's server serves other tests."""
    name = query(dsn, "SELECT current_database()")[0][0]
    query(postgres.dsn(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        query(postgres.dsn(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
        yield
    finally:
        query(postgres.dsn(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def test_an_outage_keeps_known_keys_and_says_unavailable_for_the_rest(dsn: str, postgres: Server) -> None:
    known = issue(dsn)
    unknown = keys.generate("live", secrets.token_bytes).text().encode()
    with refreshing(dsn, refresh=0.1) as (ring, refresher):
        wait_until(lambda: outcome(ring, known.key.reveal()) == "ok")
        assert outcome(ring, unknown) == Reason.KEY_UNKNOWN
        with outage(postgres, dsn):
            wait_until(lambda: ring.state.away and refresher.status.fault == "OperationalError")
            assert outcome(ring, known.key.reveal()) == "ok"
            assert outcome(ring, unknown) == Reason.KEYS_UNAVAILABLE
        late = issue(dsn)
        wait_until(lambda: outcome(ring, late.key.reveal()) == "ok")
        assert outcome(ring, unknown) == Reason.KEY_UNKNOWN
        assert refresher.status.fault == ""


def test_a_database_that_is_not_prepared_is_a_database_that_is_away(postgres: Server) -> None:
    with refreshing(postgres.create_database(), refresh=0.1) as (ring, refresher):
        wait_until(lambda: "UndefinedTable" in refresher.status.fault)
        assert outcome(ring, keys.generate("live", secrets.token_bytes).text().encode()) == Reason.KEYS_UNAVAILABLE


def test_one_connection_and_it_is_closed_at_the_end(dsn: str) -> None:
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'warden-keys' AND datname = current_database()"
    )
    with refreshing(dsn, refresh=0.02) as (_, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        assert query(dsn, count) == [(1,)]
    wait_until(lambda: query(dsn, count) == [(0,)])


def test_a_refresher_that_never_started_stops() -> None:
    ring = KeyRing(PEPPER, "live", max_age=1)
    KeyRefresher("host=/nowhere", ring, refresh=1, clock=time.time, monotonic=time.monotonic).stop()
    assert ring.state.away


# --- only what changed --------------------------------------------------------------------------------------------


def test_one_changed_key_is_read_alone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged key stays the same object, and no full load follows the first."""
    still, moved = issue(dsn), issue(dsn)
    with refreshing(dsn, refresh=0.05) as (ring, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        assert ring.state.snapshot is not None
        before = ring.state.snapshot.rows
        monkeypatch.setattr(load, "every_key", lambda *_: pytest.fail("everything was read again"))
        step(dsn, lambda c: store.revoke(c, OFFICE, moved.info.id, datetime.now(UTC)))
        wait_until(lambda: outcome(ring, moved.key.reveal()) == Reason.KEY_REVOKED)
        after = ring.state.snapshot.rows
        assert after[still.info.id] is before[still.info.id]
        assert refresher.status.loads == 2


def test_a_change_that_commits_late_is_not_missed(dsn: str) -> None:
    """A transaction that began before another committed, and commits after it: the rows of both arrive."""
    early, late = issue(dsn), issue(dsn)
    with refreshing(dsn, refresh=0.05) as (ring, refresher), audit_engine(dsn) as engine:
        wait_until(lambda: refresher.status.loads == 1)
        with engine.connect() as slow:
            store.revoke(slow, OFFICE, late.info.id, datetime.now(UTC))
            step(dsn, lambda c: store.revoke(c, OFFICE, early.info.id, datetime.now(UTC)))
            wait_until(lambda: outcome(ring, early.key.reveal()) == Reason.KEY_REVOKED)
            assert outcome(ring, late.key.reveal()) == "ok"
            slow.commit()
        wait_until(lambda: outcome(ring, late.key.reveal()) == Reason.KEY_REVOKED)


@contextmanager
def audit_engine(dsn: str) -> Iterator[sa.Engine]:
    engine = audit_store.connect(dsn, application="warden-test")
    yield engine
    engine.dispose()


def test_a_deleted_key_is_gone_and_a_restored_database_is_read_anew(dsn: str) -> None:
    kept, deleted = issue(dsn), issue(dsn)
    with refreshing(dsn, refresh=0.05) as (ring, refresher):
        wait_until(lambda: outcome(ring, deleted.key.reveal()) == "ok")
        query(dsn, "DELETE FROM warden.api_keys WHERE id = %s", deleted.info.id)
        wait_until(lambda: outcome(ring, deleted.key.reveal()) == Reason.KEY_UNKNOWN)
        assert outcome(ring, kept.key.reveal()) == "ok"
        query(dsn, "TRUNCATE warden.api_keys")
        wait_until(lambda: refresher.status.keys == 0)
        assert outcome(ring, kept.key.reveal()) == Reason.KEY_UNKNOWN


def test_rows_that_replication_writes_are_found_although_no_trigger_told(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many keys as before, and none stamped as changed: only reading everything now and then can find it."""
    monkeypatch.setattr(refresh, "ALL_EVERY", 0.2)
    made = issue(dsn)
    with refreshing(dsn, refresh=0.05) as (ring, _):
        wait_until(lambda: outcome(ring, made.key.reveal()) == "ok")
        silently = "SET session_replication_role = replica; UPDATE warden.api_keys SET revoked_at = now()"
        query(dsn, silently)
        wait_until(lambda: outcome(ring, made.key.reveal()) == Reason.KEY_REVOKED)


# --- last uses ----------------------------------------------------------------------------------------------------


def test_last_uses_are_written_in_batches_to_the_minute(dsn: str) -> None:
    used, unused = issue(dsn), issue(dsn)
    last_used = "SELECT extract(epoch FROM last_used_at)::float8 FROM warden.api_keys WHERE id = %s"
    with refreshing(dsn, refresh=0.05, used_every=0.1) as (ring, refresher):
        wait_until(lambda: outcome(ring, used.key.reveal()) == "ok")
        wait_until(lambda: query(dsn, last_used, used.info.id) != [(None,)])
        ((at,),) = query(dsn, last_used, used.info.id)
        assert at % 60 == 0
        assert 0 <= time.time() - at < 120
        assert query(dsn, last_used, unused.info.id) == [(None,)]
        loads = refresher.status.loads
        query(dsn, "UPDATE warden.api_keys SET last_used_at = NULL")
        outcome(ring, used.key.reveal())
    assert query(dsn, last_used, used.info.id) != [(None,)]  # what was left is written on the way out
    assert refresher.status.loads == loads  # counting a use is not a change that decides anything


# --- the deny-list ------------------------------------------------------------------------------------------------


def test_revoked_tokens_arrive_like_keys(dsn: str) -> None:
    book, changes = DenyBook(max_age=60), []
    with refreshing(dsn, refresh=60, book=book, changed=lambda: changes.append(1)) as (_, refresher):
        wait_until(lambda: refresher.status.loads == 1 and bool(changes))
        known = len(changes)
        assert book.refuses("i", "j", "acme", 1000, time.time()) is None
        assert step(dsn, lambda c: store.deny_token(c, OFFICE, "i", "j", datetime.now(UTC)))
        assert not step(dsn, lambda c: store.deny_token(c, OFFICE, "i", "j", datetime.now(UTC)))
        wait_until(lambda: book.refuses("i", "j", "acme", 1000, time.time()) is not None)
        assert len(changes) == known + 1
        assert book.refuses("i", "k", "acme", 1000, time.time()) is None
        moment = datetime.fromtimestamp(2000, UTC)
        assert step(dsn, lambda c: store.deny_tenant(c, OFFICE, "acme", moment, datetime.now(UTC)))
        wait_until(lambda: book.refuses("i", "k", "acme", 1999, time.time()) is not None)
        assert book.refuses("i", "k", "acme", 2000, time.time()) is None
        # A later moment replaces an earlier one; an earlier one changes nothing.
        earlier = datetime.fromtimestamp(1000, UTC)
        assert not step(dsn, lambda c: store.deny_tenant(c, OFFICE, "acme", earlier, datetime.now(UTC)))
        assert refresher.status.denied == 2


def test_denials_that_no_living_token_can_meet_are_forgotten(dsn: str) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=400)
    step(dsn, lambda c: store.deny_token(c, OFFICE, "i", "j", long_ago))
    book = DenyBook(max_age=60)
    with refreshing(dsn, refresh=60, book=book) as (_, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        assert refresher.status.denied == 0
    assert step(dsn, lambda c: store.forget_denials(c, datetime.now(UTC))) == 1


# --- a start without the database ---------------------------------------------------------------------------------


def kept_in(directory: Path) -> SnapshotFile:
    return SnapshotFile(directory / "identity.snapshot", Secret(b"r" * 32), "EU live", secrets.token_bytes)


def test_what_was_kept_serves_a_pod_that_starts_while_the_database_is_away(
    dsn: str, postgres: Server, tmp_path: Path
) -> None:
    known = issue(dsn)
    step(dsn, lambda c: store.deny_token(c, OFFICE, "i", "j", datetime.now(UTC)))
    book = DenyBook(max_age=3600)
    with refreshing(dsn, refresh=0.05, book=book, file=kept_in(tmp_path)) as (ring, _):
        wait_until(lambda: outcome(ring, known.key.reveal()) == "ok")
        wait_until((tmp_path / "identity.snapshot").exists)
    with outage(postgres, dsn):
        ring, book = KeyRing(PEPPER, "live", max_age=3600), DenyBook(max_age=3600)
        options: dict[str, Any] = {"refresh": 0.05, "clock": time.time, "monotonic": time.monotonic}
        refresher = KeyRefresher(dsn, ring, book, file=kept_in(tmp_path), **options)
        assert refresher.restore() is None
        refresher.start()
        try:
            assert outcome(ring, known.key.reveal()) == "ok"
            unknown = keys.generate("live", secrets.token_bytes).text().encode()
            assert outcome(ring, unknown) == Reason.KEYS_UNAVAILABLE
            assert book.refuses("i", "j", "acme", 0, time.time()) is not None
            assert book.refuses("i", "k", "acme", 0, time.time()) is None
        finally:
            refresher.stop()


def test_its_age_is_by_the_databases_clock(dsn: str, tmp_path: Path) -> None:
    """A pod whose clock is an hour behind takes a snapshot of now for one of now, and grows older at its own pace."""
    known = issue(dsn)
    ring = KeyRing(PEPPER, "live", max_age=60)
    behind = lambda: time.time() - 3600  # noqa: E731 — a clock
    refresher = KeyRefresher(dsn, ring, refresh=0.05, clock=behind, monotonic=time.monotonic, file=kept_in(tmp_path))
    refresher.start()
    wait_until(lambda: not ring.state.away)
    wait_until((tmp_path / "identity.snapshot").exists)
    refresher.stop()
    age = ring.age(behind())
    assert age is not None
    assert age < 10
    kept = kept_in(tmp_path).load()
    assert not isinstance(kept, str | None)
    assert abs(kept.age.confirmed_at - time.time()) < 10
    assert abs(kept.age.ahead - 3600) < 10
    restored = KeyRing(PEPPER, "live", max_age=60)
    KeyRefresher(
        dsn, restored, refresh=1, clock=behind, monotonic=time.monotonic, file=kept_in(tmp_path)
    ).restore()  # fmt: skip
    assert isinstance(restored.identify(known.key.reveal(), behind()), Principal)
    found = restored.identify(known.key.reveal(), behind() + 80)
    assert isinstance(found, Denial)
    assert found.reason is Reason.KEYS_UNAVAILABLE
    assert restored.state.confirmed != Age(0.0)


# --- bad data -----------------------------------------------------------------------------------------------------


def test_a_row_that_makes_no_sense_spoils_no_other(dsn: str) -> None:
    """Written by hand: a time that no calendar has, a network that is none, a denial of all that ever was issued."""
    known, strange, nowhere = issue(dsn), issue(dsn), issue(dsn, networks=("10.0.0.0/8",))
    ended, revoked = issue(dsn), issue(dsn)
    for column, value, key in (
        ("expires_at", "infinity", strange), ("expires_at", "-infinity", ended), ("revoked_at", "infinity", revoked),
    ):  # fmt: skip
        query(dsn, f"UPDATE warden.api_keys SET {column} = '{value}' WHERE id = %s", key.info.id)
    query(dsn, "UPDATE warden.api_keys SET networks = '{everywhere,10.0.0.0/33}' WHERE id = %s", nowhere.info.id)
    query(
        dsn,
        "INSERT INTO warden.token_denials (tenant, issued_before, until, created_at, created_by) "
        "VALUES ('birch', 'infinity', 'infinity', now(), 'by hand')",
    )
    book = DenyBook(max_age=60)
    with refreshing(dsn, refresh=60, book=book) as (ring, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        assert refresher.status.fault == ""
        assert outcome(ring, known.key.reveal()) == outcome(ring, strange.key.reveal()) == "ok"
        assert outcome(ring, ended.key.reveal()) == Reason.KEY_EXPIRED
        assert outcome(ring, revoked.key.reveal()) == Reason.KEY_REVOKED
        found = ring.identify(nowhere.key.reveal(), time.time())
        assert isinstance(found, Principal)
        assert found.networks == ()  # from nowhere
        assert book.refuses("i", "j", "birch", time.time() + 10**9, time.time()) is not None
        assert book.refuses("i", "j", "acme", 0, time.time()) is None

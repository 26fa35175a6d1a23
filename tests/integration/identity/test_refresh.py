"""The refresher against a real Postgres: changes arrive at once, outages keep what was known and say so."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from audit import store as audit_store
from sidecar.core.model import Denial, Principal, Secret
from sidecar.core.reasons import Reason
from sidecar.identity import keys, store
from sidecar.identity.keys import KeyRing
from sidecar.identity.refresh import KeyRefresher
from sidecar.identity.store import Issued, NewKey, Office
from tests.support.postgres import Server, query
from tests.support.store import wait_until

pytestmark = pytest.mark.integration

PEPPER = Secret(b"p" * 32)
OFFICE = Office(PEPPER, "live", secrets.token_bytes, lambda *_: None, "cli:olga")


@contextmanager
def refreshing(dsn: str, *, refresh: float) -> Iterator[tuple[KeyRing, KeyRefresher]]:
    ring = KeyRing(PEPPER, "live", max_age=3600)
    refresher = KeyRefresher(dsn, ring, refresh=refresh, clock=time.time, monotonic=time.monotonic)
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
        wait_until(lambda: outcome(ring, made.key.reveal()) == "ok", seconds=5)
        found = ring.identify(made.key.reveal(), time.time())
        assert isinstance(found, Principal)
        assert (found.tenant, found.name, found.key_id) == ("acme", "laptop", made.info.id)
        began = time.monotonic()
        step(dsn, lambda c: store.revoke(c, OFFICE, made.info.id, datetime.now(UTC)))
        wait_until(lambda: outcome(ring, made.key.reveal()) == Reason.KEY_REVOKED, seconds=5)
        assert time.monotonic() - began < 1.0  # DESIGN: visible everywhere within a second


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
        snapshot, since = ring.state.snapshot, ring.state.confirmed_at
        # Counting a use is not a change that decides anything.
        query(dsn, "UPDATE warden.api_keys SET last_used_at = now()")
        wait_until(lambda: ring.state.confirmed_at > since + 0.2)
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

"""A database that went back, or another in its place: what had ended stays ended, and what is new is found."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sidecar.core.reasons import Reason
from sidecar.identity import store
from sidecar.identity.denials import DenyBook
from sidecar.identity.keys import KeyRing
from sidecar.identity.refresh import KeyRefresher
from sidecar.identity.store import Issued
from tests.integration.identity.test_refresh import OFFICE, PEPPER, issue, kept_in, outcome, refreshing, step
from tests.support.postgres import Server, prepare, query
from tests.support.store import wait_until

pytestmark = pytest.mark.integration

COPIED = ("DROP TABLE IF EXISTS backup_{0}", "CREATE TABLE backup_{0} AS TABLE warden.{0}")
RESTORED = ("TRUNCATE warden.{0}", "INSERT INTO warden.{0} OVERRIDING SYSTEM VALUE TABLE backup_{0}")
TABLES = ("api_keys", "token_denials")


def each_table(dsn: str, statements: tuple[str, ...]) -> None:
    for table in TABLES:
        for statement in statements:
            query(dsn, statement.format(table))


class Ended:
    """Keys and tokens of which something ended after the tables were copied, and what each is told from then on."""

    def __init__(self, dsn: str) -> None:
        made = {name: issue(dsn) for name in ("good", "revoked", "expired", "rotated", "leaked")}
        each_table(dsn, COPIED)
        ids, now = {name: key.info.id for name, key in made.items()}, datetime.now(UTC)
        step(dsn, lambda c: store.revoke(c, OFFICE, ids["revoked"], now))
        step(dsn, lambda c: store.expire(c, OFFICE, ids["expired"], now, now))
        new = step(dsn, lambda c: store.rotate(c, OFFICE, ids["rotated"], timedelta(0), now))
        other = step(dsn, lambda c: store.rotate(c, OFFICE, ids["leaked"], timedelta(hours=1), now))
        step(dsn, lambda c: store.end_grace(c, OFFICE, ids["leaked"], now))
        step(dsn, lambda c: store.deny_token(c, OFFICE, "i", "j", now))
        step(dsn, lambda c: store.deny_tenant(c, OFFICE, "birch", now, now))
        assert isinstance(new, Issued)
        assert isinstance(other, Issued)
        self._keys = [each.key.reveal() for each in (*made.values(), new, other)]

    def stay_so(self, ring: KeyRing, book: DenyBook) -> bool:
        told = [outcome(ring, key) for key in self._keys]
        wanted = ["ok", Reason.KEY_REVOKED, Reason.KEY_EXPIRED, Reason.KEY_UNKNOWN, Reason.KEY_UNKNOWN, "ok", "ok"]
        at = time.time()
        denied = [book.refuses("i", "j", "acme", at, at), book.refuses("i", "k", "birch", 0, at)]
        return told == wanted and all(each is not None and each.reason == Reason.TOKEN_REVOKED for each in denied)


@pytest.mark.parametrize("seen_empty", [True, False])
def test_what_has_ended_does_not_come_back_with_a_restored_database(
    dsn: str, caplog: pytest.LogCaptureFixture, seen_empty: bool
) -> None:
    """Restored from a copy before they ended: a revoked key, an expired one, old secrets, revoked tokens."""
    ended, book = Ended(dsn), DenyBook(max_age=3600)
    with refreshing(dsn, refresh=0.05, book=book) as (ring, refresher):
        wait_until(lambda: ended.stay_so(ring, book))
        went_back(dsn, refresher, seen_empty=seen_empty)
        wait_until(lambda: refresher.status.forgotten == 6)
        assert ended.stay_so(ring, book)
        assert "keys.database_went_back" in caplog.text


@pytest.mark.parametrize("seen_empty", [True, False])
def test_nor_for_a_pod_that_was_restarted_meanwhile(dsn: str, tmp_path: Path, seen_empty: bool) -> None:
    ended, book = Ended(dsn), DenyBook(max_age=3600)
    with refreshing(dsn, refresh=0.05, book=book, file=kept_in(tmp_path)) as (ring, refresher):
        wait_until(lambda: ended.stay_so(ring, book))
        wait_until((tmp_path / "identity.snapshot").exists)
        if seen_empty:
            emptied(dsn, refresher)
            kept = (tmp_path / "identity.snapshot").stat().st_ino
            wait_until(lambda: (tmp_path / "identity.snapshot").stat().st_ino != kept)  # written anew, without a key
    each_table(dsn, RESTORED)
    book = DenyBook(max_age=3600)
    options: dict[str, Any] = {"refresh": 0.05, "book": book, "file": kept_in(tmp_path), "restored": True}
    with refreshing(dsn, **options) as (ring, refresher):
        wait_until(lambda: refresher.status.forgotten == 6)
        assert ended.stay_so(ring, book)


def went_back(dsn: str, refresher: KeyRefresher, *, seen_empty: bool) -> None:
    if seen_empty:  # a restore in two transactions
        emptied(dsn, refresher)
    each_table(dsn, RESTORED)


def emptied(dsn: str, refresher: KeyRefresher) -> None:
    for table in TABLES:
        query(dsn, f"TRUNCATE warden.{table}")
    wait_until(lambda: refresher.status.keys == refresher.status.denied == 0)


def test_what_is_decided_after_a_restore_counts(dsn: str) -> None:
    """Only an end is kept: the key that came back is narrowed, rotated and revoked as any other."""
    made = issue(dsn)
    each_table(dsn, COPIED)
    step(dsn, lambda c: store.rotate(c, OFFICE, made.info.id, timedelta(0), datetime.now(UTC)))
    with refreshing(dsn, refresh=0.05) as (ring, refresher):
        wait_until(lambda: outcome(ring, made.key.reveal()) == Reason.KEY_UNKNOWN)
        each_table(dsn, RESTORED)
        wait_until(lambda: refresher.status.forgotten == 1)
        again = step(dsn, lambda c: store.rotate(c, OFFICE, made.info.id, timedelta(0), datetime.now(UTC)))
        assert isinstance(again, Issued)
        wait_until(lambda: outcome(ring, again.key.reveal()) == "ok")
        assert outcome(ring, made.key.reveal()) == Reason.KEY_UNKNOWN
        step(dsn, lambda c: store.revoke(c, OFFICE, made.info.id, datetime.now(UTC)))
        wait_until(lambda: outcome(ring, again.key.reveal()) == Reason.KEY_REVOKED)


def test_another_database_behind_a_living_connection_is_read_anew(dsn: str, postgres: Server) -> None:
    """As a pooler may swap them: as many keys, none of them stamped later than what was seen last."""
    other = postgres.create_database()
    prepare(other)
    there, here = issue(other), issue(dsn)
    ring = KeyRing(PEPPER, "live", max_age=3600)
    refresher = KeyRefresher(dsn, ring, refresh=1, clock=time.time, monotonic=time.monotonic)
    for address, known, unknown in ((dsn, here, there), (other, there, here)):
        with psycopg.connect(address, autocommit=True) as connection:
            refresher._look(connection)
        assert outcome(ring, known.key.reveal()) == "ok"
        assert outcome(ring, unknown.key.reveal()) == Reason.KEY_UNKNOWN

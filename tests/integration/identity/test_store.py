"""The life of an API key in a real Postgres, with its audit events in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from audit import store as audit_store
from sidecar.core.model import Secret
from sidecar.identity import keys, store
from sidecar.identity.store import API_KEYS, Issued, KeyEvent, KeyInfo, NewKey, Office, Refusal
from tests.support.identity import seeded

pytestmark = pytest.mark.integration

NOW = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
PEPPER = Secret(b"p" * 32)


@pytest.fixture
def connection(dsn: str) -> Iterator[sa.Connection]:
    engine = audit_store.connect(dsn, application="warden-test")
    with engine.connect() as opened:
        yield opened
    engine.dispose()


class Book:
    """Keeps the events that a step records."""

    def __init__(self) -> None:
        self.events: list[KeyEvent] = []

    def __call__(self, connection: sa.Connection, event: KeyEvent) -> None:
        self.events.append(event)


def office(book: Book | None = None, seed: int = 1) -> Office:
    return Office(PEPPER, "live", seeded(seed), book or Book(), "cli:olga")


def issued(found: Issued | Refusal) -> Issued:
    assert isinstance(found, Issued), found
    return found


def macs(connection: sa.Connection, key_id: str) -> tuple[bytes, bytes | None]:
    row = connection.execute(sa.select(API_KEYS).where(API_KEYS.c.id == key_id)).one()
    return row.secret_mac, row.rotated_mac


def mac_of(made: Issued) -> bytes:
    parsed = keys.parse(made.key.reveal())
    assert parsed is not None
    return keys.mac(PEPPER, parsed.secret)


def test_a_key_is_issued_listed_and_shown_without_its_secret(connection: sa.Connection) -> None:
    book = Book()
    new = NewKey("acme", "laptop", NOW + HOUR, None, ("chat", "embed-*"), ("tenant", "operator"))
    made = issued(store.issue(connection, office(book), new, NOW))
    other = issued(store.issue(connection, office(seed=2), NewKey("birch", "ci"), NOW + HOUR))
    assert store.list_keys(connection) == [made.info, other.info]
    assert store.list_keys(connection, "birch") == [other.info]
    assert store.show(connection, made.info.id) == made.info
    assert store.show(connection, "nobody") is None
    assert made.info.models == ("chat", "embed-*")
    assert made.info.roles == ("tenant", "operator")
    assert other.info.models is None
    assert macs(connection, made.info.id) == (mac_of(made), None)
    assert [(each.kind, each.actor, each.detail["key"]) for each in book.events] == [
        ("key.issued", "cli:olga", made.info.id)
    ]


def test_the_secret_is_in_no_column_and_no_event(connection: sa.Connection) -> None:
    book = Book()
    made = issued(store.issue(connection, office(book), NewKey("acme", "canary"), NOW))
    issued(store.rotate(connection, office(book, 2), made.info.id, HOUR, NOW))
    secret = made.key.reveal()[-49:].decode()
    everything = repr(connection.execute(sa.select(API_KEYS)).all()) + repr(book.events)
    assert secret not in everything
    assert secret not in repr(made)


def test_a_key_that_is_expired_before_it_lives_is_refused(connection: sa.Connection) -> None:
    assert isinstance(store.issue(connection, office(), NewKey("acme", "x", expires_at=NOW), NOW), Refusal)
    assert store.list_keys(connection) == []


def test_revoking_is_idempotent_and_recorded_once(connection: sa.Connection) -> None:
    book = Book()
    made = issued(store.issue(connection, office(book), NewKey("acme", "laptop"), NOW))
    for when in (NOW, NOW + HOUR):
        revoked = store.revoke(connection, office(book), made.info.id, when)
        assert isinstance(revoked, KeyInfo)
        assert revoked.revoked_at == NOW
        assert revoked.state(when) == "revoked"
    assert [each.kind for each in book.events] == ["key.issued", "key.revoked"]
    assert isinstance(store.revoke(connection, office(), "nobody", NOW), Refusal)


def test_rotating_keeps_id_and_name_and_the_old_secret_for_its_grace(connection: sa.Connection) -> None:
    book = Book()
    first = issued(store.issue(connection, office(book), NewKey("acme", "laptop"), NOW))
    second = issued(store.rotate(connection, office(book, 2), first.info.id, HOUR, NOW))
    step = {"kind": "key.rotated", "at": NOW.isoformat(timespec="seconds"), "actor": "cli:olga"}
    assert second.info == replace(first.info, rotated_until=NOW + HOUR, history=(*first.info.history, step))
    assert second.key.reveal() != first.key.reveal()
    assert macs(connection, first.info.id) == (mac_of(second), mac_of(first))
    assert second.info.state(NOW) == "rotating"
    assert second.info.state(NOW + HOUR) == "active"
    assert [each.kind for each in book.events] == ["key.issued", "key.rotated"]


def test_rotating_again_within_the_grace_changes_nothing_unless_asked(connection: sa.Connection) -> None:
    book = Book()
    first = issued(store.issue(connection, office(), NewKey("acme", "laptop"), NOW))
    second = issued(store.rotate(connection, office(seed=2), first.info.id, HOUR, NOW))
    again = store.rotate(connection, office(book, 3), first.info.id, HOUR, NOW + HOUR / 2)
    assert isinstance(again, Refusal)
    assert "08:00" not in again.detail
    assert "09:00" in again.detail
    assert book.events == []
    assert macs(connection, first.info.id) == (mac_of(second), mac_of(first))
    third = issued(store.rotate(connection, office(book, 3), first.info.id, HOUR, NOW + HOUR / 2, replace=True))
    assert macs(connection, first.info.id) == (mac_of(third), mac_of(first))
    assert third.info.rotated_until == NOW + HOUR  # the secret in use keeps its end


def test_after_the_grace_a_key_rotates_anew(connection: sa.Connection) -> None:
    first = issued(store.issue(connection, office(), NewKey("acme", "laptop"), NOW))
    second = issued(store.rotate(connection, office(seed=2), first.info.id, HOUR, NOW))
    third = issued(store.rotate(connection, office(seed=3), first.info.id, HOUR, NOW + HOUR))
    assert macs(connection, first.info.id) == (mac_of(third), mac_of(second))


@pytest.mark.parametrize("end", ["revoked", "expired", "unknown"])
def test_a_key_that_has_ended_is_not_rotated(connection: sa.Connection, end: str) -> None:
    new = NewKey("acme", "laptop", expires_at=NOW + HOUR)
    made = issued(store.issue(connection, office(), new, NOW))
    if end == "revoked":
        store.revoke(connection, office(), made.info.id, NOW)
    key_id = "nobody" if end == "unknown" else made.info.id
    assert isinstance(store.rotate(connection, office(seed=2), key_id, HOUR, NOW + HOUR), Refusal)
    assert macs(connection, made.info.id) == (mac_of(made), None)


def test_a_step_that_cannot_be_recorded_is_not_done(connection: sa.Connection) -> None:
    def failing(connection: sa.Connection, event: KeyEvent) -> None:
        raise RuntimeError("no audit")

    with pytest.raises(RuntimeError), connection.begin():
        store.issue(connection, replace(office(), record=failing), NewKey("acme", "laptop"), NOW)
    assert store.list_keys(connection) == []


def test_states() -> None:
    info = KeyInfo("id", "acme", "laptop", "live", NOW, "cli:olga")
    assert info.state(NOW) == "active"
    assert replace(info, not_before=NOW + HOUR).state(NOW) == "pending"
    assert replace(info, expires_at=NOW).state(NOW) == "expired"
    assert replace(info, expires_at=NOW, revoked_at=NOW).state(NOW) == "revoked"

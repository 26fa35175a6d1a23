"""audit.erasing: what a certificate says is done can be read in no copy of the database; neighbours stay whole."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from audit import erasing, store
from audit.erasing import Erasure, ErasureError, HeldError, Officer, UnknownError
from audit.fleet import read_notes
from audit.keys import KeyFaultError
from audit.logbook import log_signer, origin_of
from audit.opening import Opener
from audit.retain import RestoredError, Retained, retain
from audit.roles import RoleKind
from audit.spool import spool_bundle
from audit.vault import commitment, lookup
from policies.bundle import Bundle
from sidecar.cli.bundles import good
from sidecar.cli.keeping import app
from sidecar.core.model import Secret
from tests.integration.audit.test_verify import check
from tests.support.postgres import Server, own_dsn, query, waits_for_lock
from tests.support.store import ROOT, FakeJournal, Shipping, completed, event, keys_in, signer_of, wait_until

_ids = (f"act-{os.getpid()}-{n}" for n in itertools.count())
AT = datetime.now(UTC)
COPIES = timedelta(hours=24)


def officer(actor: str = "cli:ada", at: datetime = AT) -> Officer:
    return Officer(actor, at, _ids, "GDPR 17")


class Desk:
    """What a test does to the records of one directory's keys."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn, self.directory = dsn, directory
        self.journal = FakeJournal()

    def ship(self, rows: int) -> None:
        with Shipping(self.journal, self.dsn, self.directory, anchor=self.directory / "anchor") as shipping:
            wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= rows)
        assert shipping.fault is None

    def act(self, act: Any, **options: Any) -> Any:
        """``act`` is one of erasing's functions that open."""
        engine = store.connect(self.dsn, application="test")
        try:
            with store.transaction(engine) as connection:
                return act(connection, Opener(keys_in(self.directory)), **options)
        finally:
            engine.dispose()

    def erase(
        self,
        subject: str,
        who: Officer | None = None,
        *,
        two_people: bool = False,
        name: str = "e1",
        unknown: bool = True,
    ) -> Erasure:
        found: Erasure = self.act(
            erasing.request, officer=who or officer(), erasure_id=name, tenant="acme", subject=subject,
            two_people=two_people, copies=COPIES, unknown=unknown,
        )  # fmt: skip
        return found

    def finish(self, at: datetime) -> list[Erasure]:
        def act(connection: sa.Connection, opener: Opener) -> list[Erasure]:
            return erasing.finish(connection, opener.provider, officer(at=at))

        found: list[Erasure] = self.act(act)
        return found

    def retain(self, at: datetime = AT) -> Retained:
        engine = store.connect(self.dsn, application="test")
        try:
            return retain(
                engine,
                Opener(keys_in(self.directory)),
                officer(at=at),
                copies=COPIES,
                signer_of=signer_of,
                anchor=read_notes(self.directory / "anchor")[-1:],
            )
        finally:
            engine.dispose()

    def opened(self) -> dict[str, str]:
        """Subject or reason by call, as whoever holds today's keys can read it."""

        def act(connection: sa.Connection, opener: Opener) -> dict[str, str]:
            rows = [dict(row) for row in connection.execute(sa.text("SELECT * FROM warden.audit_calls")).mappings()]
            opener.load(connection, [row["data_key"] for row in rows])
            told = {row["call_id"]: opener.open(row, content=True) for row in rows}
            return {
                name: one.identity.subject if one.identity and one.prompt else one.why for name, one in told.items()
            }

        found: dict[str, str] = self.act(act)
        return found


CALLS = (
    ("a1", "alice", "acme"),
    ("a2", "alice", "acme"),
    ("b1", "bob", "acme"),
    ("n1", "", "acme"),
    ("x1", "alice", "birch"),
)


@pytest.fixture
def desk(dsn: str, tmp_path: Path) -> Desk:
    """Two calls of alice, one of bob, one of nobody; and one of alice at another tenant."""
    made = Desk(dsn, tmp_path)
    for name, subject, tenant in CALLS:
        whose = {"call_id": name, "subject": subject, "tenant": tenant}
        made.journal.append(*completed(**whose, principal="app", principal_kind="api_key", conversation="k"))
    made.ship(5)
    return made


EVERYBODY = {"a1": "alice", "a2": "alice", "b1": "bob", "n1": "", "x1": "alice"}
NO_ALICE = EVERYBODY | {"a1": "erased", "a2": "erased"}


def test_what_was_erased_opens_no_more_and_the_log_still_verifies(desk: Desk) -> None:
    assert desk.opened() == EVERYBODY
    certificate = desk.erase("alice")
    assert (certificate.state, certificate.keys, certificate.records) == ("pending", 1, 2)
    assert desk.opened() == NO_ALICE
    desk.journal.append(*completed(call_id="b2", subject="bob"))
    desk.ship(1)
    assert check(desk.dsn, desk.directory / "anchor").faults == []
    assert desk.opened()["b2"] == "bob"


def test_a_dump_beside_todays_keys_is_unreadable_once_it_is_done(postgres: Server, desk: Desk) -> None:
    dump = postgres.snapshot(desk.dsn)
    desk.erase("alice")
    postgres.restore(dump, desk.dsn)
    assert desk.opened() == EVERYBODY  # so the certificate said pending
    dump = postgres.snapshot(desk.dsn)
    desk.erase("alice", name="e2")
    assert desk.finish(AT + COPIES - timedelta(seconds=1)) == []
    (done,) = desk.finish(AT + COPIES)
    assert (done.state, done.done_at) == ("done", AT + COPIES)
    postgres.restore(dump, desk.dsn)
    assert desk.opened() == NO_ALICE  # neighbours, and alice of another tenant, are intact
    desk.ship(0)
    assert check(desk.dsn, desk.directory / "anchor").faults == []


def test_a_restored_database_is_erased_again(postgres: Server, desk: Desk) -> None:
    """Its row, its keys and the hold beside it are gone or back; the acts, from the sidecar's mirror, say what was."""
    dump = postgres.snapshot(desk.dsn)
    desk.erase("alice")
    desk.act(partial(holding, subject="bob", name="h9"))
    desk.ship(0)
    postgres.restore(dump, desk.dsn)
    with pytest.raises(RestoredError, match="let a sidecar ship"):  # nor is anything destroyed that a hold kept
        desk.retain()
    desk.ship(0)
    assert desk.opened() == EVERYBODY
    kinds = [(fault.kind, "h9" in fault.detail) for fault in check(desk.dsn, desk.directory / "anchor").faults]
    assert sorted(kinds) == [("deletion", False), ("deletion", True)]
    assert desk.retain().erasures_again == ["e1"]
    assert desk.opened() == NO_ALICE
    again = desk.act(lambda connection, _: erasing.erasure(connection, "e1", AT))
    assert (again.state, again.keys, again.records, again.requested_by) == ("pending", 1, 2, "cli:ada")
    with pytest.raises(HeldError, match="h9"):
        desk.erase("bob", name="e2")
    assert desk.retain().erasures_again == []
    desk.ship(0)
    told = check(desk.dsn, desk.directory / "anchor").faults
    assert [(fault.kind, "holds everybody" in fault.detail) for fault in told] == [("altered_column", True)]
    (done,) = desk.finish(AT + COPIES)
    assert done.state == "done"


def test_a_key_that_was_wrapped_anew_after_a_restore_is_closed_with_its_copies(postgres: Server, desk: Desk) -> None:
    """An erasure of another came between the restore and the next retention: it took alice's key for one that lives."""
    dump = postgres.snapshot(desk.dsn)
    desk.erase("alice")
    desk.ship(0)
    postgres.restore(dump, desk.dsn)
    desk.ship(0)
    desk.erase("bob", name="e2")
    between = postgres.snapshot(desk.dsn)
    assert desk.retain().erasures_again == ["e1"]
    assert {one.id for one in desk.finish(AT + COPIES)} == {"e1", "e2"}
    postgres.restore(between, desk.dsn)
    assert desk.opened() == NO_ALICE | {"b1": "erased"}


def test_a_certificate_waits_for_all_that_can_still_be_read_and_names_it(desk: Desk) -> None:
    desk.erase("alice")
    old = {"since": (AT - timedelta(days=2)).isoformat(), "at": (AT + timedelta(hours=1)).isoformat()}
    for keeps, what in (
        (old, {"journal"}),
        (old | {"since": "", "damaged": 1}, {"damaged_segments"}),
        (old | {"damaged": 2, "poisoned": 3, "copied_to": "s3://b"}, {"journal", "damaged_segments", "poison"}),
        (None, {"journal"}),
    ):
        query(desk.dsn, "UPDATE warden.journal_cursors SET keeps = %s", json.dumps(keeps) if keeps else None)
        assert desk.finish(AT + COPIES) == []
        found = desk.act(lambda connection, _: erasing.erasure(connection, "e1", AT + COPIES))
        assert (found.state, {one["what"] for one in found.depends_on} - {"master_key"}) == ("pending", what)
    assert keys_in(desk.directory).versions("acme") == [2]  # the database is closed already
    query(desk.dsn, "UPDATE warden.journal_cursors SET keeps = %s", json.dumps(old | {"since": old["at"]}))
    (done,) = desk.finish(AT + COPIES)
    assert (done.state, done.depends_on, done.excludes) == ("done", [], [])


def exported(desk: Desk, name: str, at: datetime, told: dict[str, Any]) -> None:
    statement = "INSERT INTO warden.audit_events (id, at, kind, detail) VALUES (%s, %s, 'audit_export', %s)"
    query(desk.dsn, statement, name, at, json.dumps(told))


def test_a_certificate_names_what_it_cannot_speak_of(desk: Desk) -> None:
    with Unstored(desk, ("b2", "bob")):
        later = datetime.now(UTC)
        acme, late = {"tenant": "acme"}, later + timedelta(seconds=1)
        exported(desk, "x1", later, {"reveal": True, "filter": acme})
        exported(desk, "x2", later, {"reveal": True, "filter": {"tenant": "birch"}})
        exported(desk, "x3", later, {"reveal": False, "filter": acme})
        exported(desk, "x4", late, {"reveal": True, "filter": acme})
        exported(desk, "x5", later, {"reveal": True, "filter": None})
        desk.erase("alice", officer(at=later))
        (done,) = desk.finish(later + erasing.WAIT + timedelta(seconds=1))
    assert [one["what"] for one in done.excludes] == ["journal", "export", "export"]
    assert [one["event"] for one in done.excludes[1:]] == ["x5", "x1"]
    assert done.excludes == desk.act(lambda connection, _: erasing.erasure(connection, "e1", later)).excludes


def test_a_dictionary_finds_nothing_in_the_dump(postgres: Server, desk: Desk) -> None:
    dump = postgres.snapshot(desk.dsn)
    desk.erase("alice")
    desk.finish(AT + COPIES)
    postgres.restore(dump, desk.dsn)

    def attack(connection: sa.Connection, opener: Opener) -> set[str]:
        """Every word we can think of, against every digest and index there is, with every key there is."""
        found = set()
        keys = [dict(row) for row in connection.execute(sa.text("SELECT * FROM warden.data_keys")).mappings()]
        rows = [dict(row) for row in connection.execute(sa.text("SELECT * FROM warden.audit_calls")).mappings()]
        opener.load(connection, [row["data_key"] for row in rows])
        for word in ("alice", "bob", "app", "k", "Where is the library?"):
            found |= {
                f"{key['id']}:{word}" for key in keys if bytes(key["subject_mac"] or b"") in opener.macs("acme", word)
            }
            for row in rows:
                secret = opener.secret(row["data_key"]).secret
                digest = hashlib.sha256(word.encode()).digest()
                guesses = {commitment(b"", digest), digest, commitment(bytes(32), digest)}
                if secret is not None:
                    guesses.add(lookup(secret, "conversation", word))
                kept = {bytes(row[name] or b"-") for name in ("prompt_digest", "output_digest", "conversation_mac")}
                found |= {f"{row['call_id']}:{word}" for _ in guesses & kept}
        return found

    found = desk.act(attack)
    assert {name for name in found if name.startswith(("a1", "a2"))} == set()
    assert {"b1:k", "n1:k", "x1:k"} <= found  # the attack works where the keys are
    (alices,) = {
        key for key, version in query(desk.dsn, "SELECT data_key, 1 FROM warden.audit_calls WHERE call_id = 'a1'")
    }
    assert not any(name.startswith(alices) for name in found)


def test_the_next_call_of_the_erased_is_recorded_anew(desk: Desk) -> None:
    with Shipping(desk.journal, desk.dsn, desk.directory) as shipping:  # its keys are in memory
        desk.journal.append(*completed(call_id="a3", subject="alice"))
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= 1)
        desk.erase("alice")
        desk.journal.append(*completed(call_id="n2"), *completed(call_id="a4", subject="alice"))
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= 3)
        desk.journal.append(*completed(call_id="a5", subject="alice"))
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= 4)
    assert shipping.fault is None
    found = desk.opened()
    assert (found["a3"], found["a5"]) == ("erased", "alice")


class Unstored:
    """A sidecar that seals a batch and cannot store it, for as long as this is open; then it stores it."""

    def __init__(self, desk: Desk, *calls: tuple[str, str]) -> None:
        for name, subject in calls:
            desk.journal.append(*completed(call_id=name, subject=subject))
        self._desk, self._rows = desk, len(calls)

    def __enter__(self) -> None:
        desk = self._desk
        with Shipping(desk.journal, desk.dsn, desk.directory, anchor=desk.directory / "anchor") as shipping:
            sealed = []

            def away(batch: Any) -> None:
                sealed.extend(batch.rows)
                raise OSError("the database is away")

            shipping.shipper._database.commit = away  # type: ignore[method-assign]
            wait_until(lambda: shipping.fault or len(sealed) >= self._rows)

    def __exit__(self, *_: object) -> None:
        self._desk.ship(0)


def test_what_was_sealed_before_an_erasure_and_stored_after_it_is_neither_lost_nor_back(desk: Desk) -> None:
    """Not alice's, whom the erasure is of, and everybody else's; her next call is recorded anew."""
    with Unstored(desk, ("a3", "alice"), ("b2", "bob"), ("n2", "")):
        desk.erase("alice")
    desk.journal.append(*completed(call_id="a4", subject="alice"))
    desk.ship(1)
    found = desk.opened()
    assert (found["a3"], found["b2"], found["n2"], found["a4"]) == ("erased", "bob", "", "alice")


def test_a_call_after_an_erasure_outlives_another_renewal_that_it_was_stored_after(desk: Desk) -> None:
    desk.erase("alice")
    desk.erase("nobody", name="e2")  # renews the tenant's key
    with Unstored(desk, ("a3", "alice")):
        desk.erase("bob", name="e3")  # renews it again, before the call is stored
    assert desk.opened()["a3"] == "alice"


def test_an_erasure_waits_for_a_sidecar_that_was_not_heard_of_since(desk: Desk) -> None:
    with Unstored(desk, ("a3", "alice"), ("b2", "bob")):
        later = datetime.now(UTC)
        desk.erase("alice", officer(at=later))
        assert desk.finish(later + COPIES) == []  # its batch would lose bob with alice
        assert desk.finish(later + timedelta(days=29)) == []
    (done,) = desk.finish(later + COPIES)
    assert done.state == "done"
    found = desk.opened()
    assert (found["a3"], found["b2"]) == ("erased", "bob")


def test_nobody_waits_for_a_sidecar_for_ever(desk: Desk) -> None:
    with Unstored(desk, ("b2", "bob")):
        later = datetime.now(UTC)
        desk.erase("alice", officer(at=later))
        (done,) = desk.finish(later + erasing.WAIT + timedelta(seconds=1))
        assert done.state == "done"
    assert desk.opened()["b2"] == "erased"  # what it held is gone with the old key


def test_a_hold_refuses_an_erasure_until_it_is_released(desk: Desk) -> None:
    def place(connection: sa.Connection, opener: Opener, subject: str | None, name: str) -> None:
        erasing.place_hold(connection, opener.provider, officer(), name, "acme", subject)

    desk.act(place, subject="alice", name="h1")
    with pytest.raises(HeldError, match="h1"):
        desk.erase("alice")
    assert desk.opened() == EVERYBODY
    desk.erase("bob", name="e2")  # whose erasure renews the keys that the hold's name is wrapped under
    desk.finish(AT + COPIES)
    desk.act(place, subject=None, name="h2")
    with pytest.raises(HeldError):
        desk.erase("alice", name="e3")
    for name in ("h1", "h2"):
        assert desk.act(lambda connection, _, name=name: erasing.release_hold(connection, officer(), name))
        assert not desk.act(lambda connection, _, name=name: erasing.release_hold(connection, officer(), name))
    assert desk.erase("alice", name="e4").state == "pending"


def holding(connection: sa.Connection, opener: Opener, subject: str | None = "alice", name: str = "h1") -> None:
    erasing.place_hold(connection, opener.provider, officer(), name, "acme", subject)


def confirming(connection: sa.Connection, opener: Opener, who: str = "cli:ada", name: str = "e1") -> Erasure:
    return erasing.confirm(connection, opener, officer(who), erasure_id=name, copies=COPIES)


def at_once(desk: Desk, first: Any, second: Any) -> Future[Any]:
    """What ``second`` comes to, that began when ``first`` was done and not committed."""
    engine = store.connect(desk.dsn, application="test")
    try:
        with ThreadPoolExecutor(1) as pool, store.transaction(engine) as connection:
            first(connection, Opener(keys_in(desk.directory)))
            other = pool.submit(desk.act, second)
            waits_for_lock(desk.dsn)
            connection.commit()
            other.exception(30)
            return other
    finally:
        engine.dispose()


def erasing_alice(
    connection: sa.Connection, opener: Opener, name: str = "e1", tenant: str = "acme", subject: str = "alice"
) -> Erasure:
    return erasing.request(
        connection, opener, officer(), erasure_id=name, tenant=tenant, subject=subject, two_people=False, copies=COPIES
    )


@pytest.mark.parametrize("two_people", [False, True])
def test_a_hold_that_is_placed_at_the_same_time_comes_before_or_after(desk: Desk, two_people: bool) -> None:
    """Whoever is first: a hold that was placed is never erased past, and one that comes after finds it done."""
    if two_people:
        as_officer(desk, "ada").erase("alice", two_people=True)
        desk = as_officer(desk, "bob")
    act = confirming if two_people else erasing_alice
    with pytest.raises(HeldError, match="h1"):
        at_once(desk, holding, act).result()
    assert desk.opened() == EVERYBODY
    desk.act(lambda connection, _: erasing.release_hold(connection, officer(), "h1"))
    at_once(desk, act, partial(holding, name="h2")).result()
    assert desk.opened() == NO_ALICE


def test_what_a_sidecar_may_still_need_outlives_the_end_of_an_earlier_erasure(desk: Desk) -> None:
    """It sealed under the key of between two erasures, and could not store it yet."""
    desk.erase("alice")
    with Unstored(desk, ("b2", "bob")):
        later = datetime.now(UTC)
        desk.erase("nobody", officer(at=later), name="e2")
        (done,) = desk.finish(later + COPIES)
        assert (done.id, keys_in(desk.directory).versions("acme")) == ("e1", [2, 3])
    assert desk.opened()["b2"] == "bob"


def test_nobody_is_erased_by_a_misspelt_name(desk: Desk) -> None:
    for tenant, subject in (("acme", "alicia"), ("nowhere", "alice")):
        with pytest.raises(UnknownError, match="is it spelt so"):
            desk.act(erasing_alice, tenant=tenant, subject=subject)
        assert query(desk.dsn, "SELECT 1 FROM warden.erasures") == []
    assert not (desk.directory / "tenant-keys" / "t-nowhere").exists()
    assert keys_in(desk.directory).versions("acme") == [1]


def test_two_officers_who_erase_one_subject_at_once_do_it_once(desk: Desk) -> None:
    with pytest.raises(UnknownError, match="e1 of that subject is pending"):
        at_once(desk, erasing_alice, partial(erasing_alice, name="e2")).result()
    assert query(desk.dsn, "SELECT id, keys FROM warden.erasures") == [("e1", 1)]
    desk.journal.append(*completed(call_id="a3", subject="alice"))
    desk.ship(1)
    assert desk.erase("alice", name="e3", unknown=False).keys == 1  # of what came since
    ada = as_officer(desk, "ada")
    desk.journal.append(*completed(call_id="a4", subject="alice"))
    desk.ship(1)
    ada.erase("alice", name="e4", two_people=True)
    with pytest.raises(ErasureError, match="--confirm e4"):
        ada.erase("alice", name="e5", two_people=True)


def test_a_hold_whose_row_is_lost_or_altered_holds_all_the_same(desk: Desk) -> None:
    """A dump from before it was placed, or its owner's hand; the act is in the fleet's log."""
    desk.act(holding)
    query(desk.dsn, "UPDATE warden.legal_holds SET released_at = now()")
    with pytest.raises(HeldError, match="h1"):
        desk.erase("alice")
    desk.erase("bob", name="e2")
    query(desk.dsn, "UPDATE warden.legal_holds SET tenant = 'birch'")
    held = desk.act(lambda connection, opener: [hold.tenant for hold in erasing.holds(connection, opener.provider)])
    assert sorted(held) == ["acme", "birch"]
    query(desk.dsn, "DELETE FROM warden.legal_holds")
    for subject in ("alice", "bob"):  # whose it was is lost with it
        with pytest.raises(HeldError, match="h1"):
            desk.erase(subject, name="e3")
    assert desk.act(lambda connection, _: erasing.release_hold(connection, officer(), "h1"))
    assert not desk.act(lambda connection, _: erasing.release_hold(connection, officer(), "h1"))
    assert desk.erase("alice", name="e4").state == "pending"


def test_a_lost_key_of_one_tenant_stops_no_erasure_of_another(desk: Desk) -> None:
    def place(connection: sa.Connection, opener: Opener) -> None:
        erasing.place_hold(connection, opener.provider, officer(), "h9", "birch", "alice")

    desk.act(place)
    (key,) = desk.directory.rglob("t-birch/1.key")
    key.write_bytes(b"no key")
    with pytest.raises(KeyFaultError, match="t-birch"):
        desk.act(lambda connection, opener: erasing.holds(connection, opener.provider))
    assert desk.erase("alice").state == "pending"


def as_officer(desk: Desk, name: str) -> Desk:
    """The same desk, with a database login of that person's own."""
    return Desk(own_dsn(desk.dsn, RoleKind.OFFICER, name), desk.directory)


def test_a_second_person_is_a_second_person(desk: Desk) -> None:
    """By the database's login: both may be one account of one machine, whose name says nothing."""
    ada, bob = as_officer(desk, "ada"), as_officer(desk, "bob")
    assert ada.erase("alice", two_people=True).state == "requested"
    assert desk.opened() == EVERYBODY
    assert desk.finish(AT + COPIES) == []
    with pytest.raises(ErasureError, match="warden_of_ada asked for it"):
        ada.act(partial(confirming, who="cli:somebody-else"))
    with pytest.raises(ErasureError, match="logins of their own"):
        desk.act(confirming)
    with pytest.raises(ErasureError, match="no erasure"):
        bob.act(partial(confirming, name="e9"))
    done = bob.act(partial(confirming, who="cli:ada"))
    assert (done.state, done.requested_login, done.confirmed_login) == ("pending", "warden_of_ada", "warden_of_bob")
    assert desk.opened() == NO_ALICE
    with pytest.raises(ErasureError, match="already"):
        bob.act(confirming)


def test_who_has_no_login_of_their_own_asks_for_nothing_that_takes_two(desk: Desk) -> None:
    with pytest.raises(ErasureError, match="warden db enroll"):
        desk.erase("alice", two_people=True)
    assert query(desk.dsn, "SELECT count(*) FROM warden.erasures") == [(0,)]


def test_two_confirm_at_once_and_one_does(desk: Desk) -> None:
    as_officer(desk, "ada").erase("alice", two_people=True)
    bob = as_officer(desk, "bob")
    with pytest.raises(ErasureError, match="already"):
        at_once(bob, confirming, confirming).result()


@pytest.mark.parametrize(
    ("kind", "act", "detail"),
    [
        (RoleKind.READER, "hold_released", {"login": "warden_rd_eve"}),
        (RoleKind.READER, "partition_dropped", {"login": "warden_rd_eve"}),
        (RoleKind.OFFICER, "retention", {"login": "warden_of_eve"}),
        (RoleKind.OFFICER, "hold_placed", {"login": "warden_of_ada"}),
        (RoleKind.OFFICER, "hold_placed", {}),
        (RoleKind.KEYS, "audit_search", {"login": "warden_ky_eve"}),
    ],
)
def test_a_login_records_its_own_acts_only(dsn: str, kind: RoleKind, act: str, detail: dict[str, str]) -> None:
    statement = "INSERT INTO warden.audit_events (id, at, kind, detail) VALUES ('x', now(), %s, %s)"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(own_dsn(dsn, kind, "eve"), statement, act, json.dumps(detail))


def test_nobody_erased_is_named_in_what_is_kept_of_it(desk: Desk) -> None:
    desk.erase("alice")
    desk.finish(AT + COPIES)
    for table in ("audit_events", "erasures", "data_keys", "fleet_entries"):
        assert "alice" not in str(query(desk.dsn, f"SELECT t::text FROM warden.{table} t"))


def configured(desk: Desk, **audit: Any) -> Path:
    """A configuration whose bundle says so of acme; cobalt is in no bundle."""
    from tests.integration.audit.test_search import write_config  # noqa: PLC0415
    from tests.support.policy import DEMO_BUNDLE  # noqa: PLC0415

    bundle = desk.directory / "bundle"
    shutil.copytree(DEMO_BUNDLE, bundle, dirs_exist_ok=True)
    tenant = bundle / "tenants" / "acme.yaml"
    told = yaml.safe_load(tenant.read_text())
    told["audit"] = told.get("audit", {}) | audit
    tenant.write_text(yaml.safe_dump(told))
    config = write_config(desk.directory, desk.dsn)
    text = config.read_text()
    old = next(line for line in text.splitlines() if "bundle" in line)
    config.write_text(text.replace(old, f"policy: {{bundle: {bundle}}}"))
    return config


def loaded(desk: Desk, bundle: Bundle) -> None:
    """A sidecar at work decides by it."""
    spool_bundle(desk.directory, bundle.digest, bundle.pieces())
    desk.journal.append(event("bundle_loaded", digest=bundle.digest))
    with Shipping(desk.journal, desk.dsn, desk.directory) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= 1)
    assert shipping.fault is None
    query(desk.dsn, "UPDATE warden.journal_cursors SET closed_at = NULL")


@pytest.mark.parametrize(
    ("own", "sidecars", "tenant", "alone"),
    [
        (False, False, "acme", True),
        (True, False, "acme", False),
        (False, True, "acme", False),  # whoever erases can write the bundle of their own machine
        (False, False, "nobody", False),  # no bundle says that one may
    ],
)
def test_who_may_erase_alone(desk: Desk, own: bool, sidecars: bool, tenant: str, alone: bool) -> None:
    configured(desk, two_people=sidecars)
    loaded(desk, good(desk.directory / "bundle"))
    config = configured(desk, two_people=own)
    told = ["erase", "--tenant", tenant, "--subject", "alice", "--reason", "asked", "--config", str(config)]
    done = CliRunner().invoke(app, told)
    assert (done.exit_code == 0, "warden db enroll" in done.output) == (alone, not alone), (done.output, done.exception)


def test_the_commands(desk: Desk, tmp_path: Path) -> None:
    from tests.integration.audit.test_search import write_config  # noqa: PLC0415
    from tests.support.policy import DEMO_BUNDLE  # noqa: PLC0415

    config = write_config(tmp_path, desk.dsn)
    text = config.read_text()
    config.write_text(
        text.replace(next(line for line in text.splitlines() if "bundle" in line), f"policy: {{bundle: {DEMO_BUNDLE}}}")
    )

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--config", str(config)])

    held = json.loads(
        run("hold", "add", "--tenant", "acme", "--subject", "alice", "--reason", "court", "--json").stdout
    )
    (listed,) = [json.loads(line) for line in run("hold", "list", "--json").stdout.splitlines()]
    assert (listed["id"], listed["subject"]) == (held["id"], "alice")
    refused = run("erase", "--tenant", "acme", "--subject", "alice", "--reason", "asked")
    assert (refused.exit_code, "court" in refused.output) == (1, True)
    assert run("hold", "release", held["id"], "--reason", "over").exit_code == 0
    assert run("hold", "release", held["id"], "--reason", "over").exit_code == 1
    done = run("erase", "--tenant", "acme", "--subject", "alice", "--reason", "asked", "--json")
    assert done.exit_code == 0, done.output
    certificate = json.loads(done.stdout)
    assert (certificate["state"], certificate["records"]) == ("pending", 2)
    file = tmp_path / "certificate"
    assert json.loads(run("erase", "--show", certificate["id"], "-o", str(file), "--json").stdout) == certificate
    assert file.read_text() == certificate.pop("note")
    checked = run("certificate", str(file), "--json")
    assert (checked.exit_code, json.loads(checked.stdout)) == (0, {"ok": True, **certificate})
    keys = tmp_path / "keys"
    keys.write_text(log_signer(Secret(ROOT), origin_of("EU", "fleet")).verifier.text + "\n")
    assert run("certificate", str(file), "--keys", str(keys)).exit_code == 0
    for change in ((b'"pending"', b'"done"'), (b"acme", b"birch"), (b"/EU/", b"/US/"), (b"\n\n", b"\n")):
        (tmp_path / "forged").write_bytes(file.read_bytes().replace(*change))
        assert run("certificate", str(tmp_path / "forged")).exit_code == 1, change
    keys.write_text(log_signer(Secret(b"x" * 32), origin_of("EU", "fleet")).verifier.text + "\n")
    assert run("certificate", str(file), "--keys", str(keys)).exit_code == 1
    for wrong in (
        ["erase"],
        ["erase", "--tenant", "acme", "--reason", "x"],
        ["erase", "--tenant", "a", "--subject", "b"],
    ):
        assert run(*wrong).exit_code == 2

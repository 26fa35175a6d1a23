"""audit.erasing: what a certificate says is done can be read in no copy of the database; neighbours stay whole."""

from __future__ import annotations

import hashlib
import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from audit import erasing, store
from audit.erasing import Erasure, ErasureError, HeldError, Officer
from audit.logbook import log_signer, origin_of
from audit.opening import Opener
from audit.vault import commitment, lookup
from sidecar.cli.keeping import app
from sidecar.core.model import Secret
from tests.integration.audit.test_verify import check
from tests.support.postgres import Server, query
from tests.support.store import ROOT, FakeJournal, Shipping, completed, keys_in, wait_until

_ids = (f"act-{n}" for n in itertools.count())
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

    def erase(self, subject: str, who: Officer | None = None, *, two_people: bool = False, name: str = "e1") -> Erasure:
        found: Erasure = self.act(
            erasing.request, officer=who or officer(), erasure_id=name, tenant="acme", subject=subject,
            two_people=two_people, copies=COPIES,
        )  # fmt: skip
        return found

    def finish(self, at: datetime) -> list[Erasure]:
        def act(connection: sa.Connection, opener: Opener) -> list[Erasure]:
            return erasing.finish(connection, opener.provider, officer(at=at))

        found: list[Erasure] = self.act(act)
        return found

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


def test_a_second_person_is_a_second_person(desk: Desk) -> None:
    assert desk.erase("alice", two_people=True).state == "requested"
    assert desk.opened() == EVERYBODY
    assert desk.finish(AT + COPIES) == []

    def confirm(connection: sa.Connection, opener: Opener, who: str, name: str = "e1") -> Erasure:
        return erasing.confirm(connection, opener, officer(who), erasure_id=name, copies=COPIES)

    with pytest.raises(ErasureError, match="second person"):
        desk.act(confirm, who="cli:ada")
    with pytest.raises(ErasureError, match="no erasure"):
        desk.act(confirm, who="cli:bob", name="e9")
    done = desk.act(confirm, who="cli:bob")
    assert (done.state, done.requested_by, done.confirmed_by) == ("pending", "cli:ada", "cli:bob")
    assert desk.opened() == NO_ALICE
    with pytest.raises(ErasureError, match="already"):
        desk.act(confirm, who="cli:bob")


def test_nobody_erased_is_named_in_what_is_kept_of_it(desk: Desk) -> None:
    desk.erase("alice")
    desk.finish(AT + COPIES)
    for table in ("audit_events", "erasures", "data_keys", "fleet_entries"):
        assert "alice" not in str(query(desk.dsn, f"SELECT t::text FROM warden.{table} t"))


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

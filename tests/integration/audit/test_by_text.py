"""audit.by_text on a real Postgres: the blind index finds words, tells nothing without keys, and dies with them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from audit import by_text, erasing, store
from audit.asked import Asker, Filter, Page, SearchError
from audit.erasing import Officer
from audit.opening import Opener
from audit.retain import retain
from audit.search import search
from audit.vault import terms
from audit.words import MOST
from sidecar.core.model import Redaction
from tests.integration.audit.test_verify import check
from tests.support.postgres import Server, query
from tests.support.store import FakeJournal, Shipping, completed, content, keys_in, signer_of, wait_until

_ids = (f"seen-{n}" for n in itertools.count())
AT = datetime.now(UTC)
NEAR = Filter(since=AT - timedelta(days=3), until=AT + timedelta(hours=1))


class Archive:
    """Calls of one database, and who looks for words in them."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn, self.directory = dsn, directory
        self.journal, self._new = FakeJournal(), 0

    def call(self, name: str, prompt: str, **changes: Any) -> None:
        at = AT - timedelta(minutes=changes.pop("minutes", 5))
        more = {"searchable": True, "subject": "alice", **changes}
        self.journal.append(*completed(at, call_id=name, prompt=content(prompt.encode()), **more))
        self._new += 1

    def ship(self) -> None:
        with Shipping(self.journal, self.dsn, self.directory, anchor=self.directory / "anchor") as shipping:
            wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= self._new)
        assert shipping.fault is None
        self._new = 0

    def find(self, text: str, *, reveal: bool = False, **changes: Any) -> Page:
        engine = store.connect(self.dsn, application="test")
        asker = Asker("cli:ada", AT, _ids, "why", reveal)
        asked = Filter(**{"since": NEAR.since, "until": NEAR.until, "text": text, **changes})
        try:
            return search(engine, asked, asker, Opener(keys_in(self.directory)), "EU")
        finally:
            engine.dispose()

    def names(self, text: str, **more: Any) -> list[str]:
        return [found.columns["call_id"] for found in self.find(text, **more).found]

    def act(self, act: Any) -> Any:
        engine = store.connect(self.dsn, application="test")
        try:
            with store.transaction(engine) as connection:
                return act(connection, Opener(keys_in(self.directory)))
        finally:
            engine.dispose()

    def erase(self, subject: str, at: datetime = AT) -> None:
        def erase(connection: sa.Connection, opener: Opener) -> None:
            erasing.request(
                connection, opener, Officer("cli:ada", at, _ids, "GDPR 17"), erasure_id=f"erase-{subject}",
                tenant="acme", subject=subject, two_people=False, copies=timedelta(),
            )  # fmt: skip
            erasing.finish(connection, opener.provider, Officer("cli:ada", at, _ids, "GDPR 17"))

        self.act(erase)


@pytest.fixture
def archive(dsn: str, tmp_path: Path) -> Archive:
    made = Archive(dsn, tmp_path)
    made.call("c1", "Der Befund: Diabetes mellitus", minutes=3000)
    made.call("c2", "diabetes, and the weather", subject="bob", minutes=20)
    made.call("c3", "DIABETES insipidus", subject="", minutes=10)
    made.call("c4", "nothing of it")
    made.call("c5", "diabetes elsewhere", tenant="birch", minutes=4)
    made.call("x1", "diabetes, not indexed", searchable=False, minutes=3)
    made.ship()
    return made


def test_words_are_found_without_opening_anything(archive: Archive) -> None:
    assert archive.names("diabetes") == ["c5", "c3", "c2", "c1"]
    assert archive.names("Diabetes the INSIPIDUS") == ["c3"]
    assert archive.names("diabete") == []
    assert archive.names("diabetes", tenant="acme", limit=1) == ["c3"]
    page = archive.find("diabetes")
    assert {found.content for found in page.found} == {"withheld"}
    assert page.told == by_text.INDEX_TOLD
    assert archive.names("library") == [], "the call's own words only"
    assert archive.names("over there") == ["c5", "c4", "c3", "c2", "c1"], "an output's words, from all of its parts"


def test_pages_follow_each_other(archive: Archive) -> None:
    names, before = [], None
    for _ in range(5):
        page = archive.find("diabetes", limit=1, before=before)
        names += [found.columns["call_id"] for found in page.found]
        before = page.following
        if before is None:
            break
    assert names == ["c5", "c3", "c2", "c1"]


def test_with_other_filters(archive: Archive) -> None:
    assert archive.names("diabetes", subject="bob") == ["c2"]
    assert archive.names("diabetes", model="another") == []
    assert archive.names("diabetes", since=AT - timedelta(minutes=11)) == ["c5", "c3"]


def test_what_is_revealed_is_confirmed_on_the_content(archive: Archive) -> None:
    page = archive.find("diabetes", reveal=True, tenant="acme")
    assert page.found[0].prompt == "DIABETES insipidus"
    (seen,) = query(archive.dsn, "SELECT detail FROM warden.audit_events WHERE kind = 'content_revealed'")
    assert seen[0]["calls"] == ["c3", "c2", "c1"]


def test_who_did_not_opt_in_is_refused_or_scanned(archive: Archive) -> None:
    with pytest.raises(SearchError, match="no call of that time is indexed"):
        archive.find("diabetes", tenant="cobalt")
    with pytest.raises(SearchError, match="needs --reveal"):
        archive.find("diabetes", scan=True)
    assert "x1" not in archive.names("diabetes", reveal=True)
    page = archive.find("iabete", reveal=True, scan=True)
    assert "x1" in [found.columns["call_id"] for found in page.found]
    assert page.told == by_text.SCAN_TOLD
    with pytest.raises(SearchError, match="nothing of that text"):
        archive.find("of the")


def test_more_words_than_the_index_takes_are_found_where_content_may_be_asked(archive: Archive) -> None:
    archive.call("long", " ".join(f"w{n}" for n in range(MOST + 50)), minutes=2)
    archive.ship()
    assert archive.names(f"w{MOST + 40}") == []
    assert archive.names(f"w{MOST + 40}", reveal=True) == ["long"]


def test_what_was_redacted_is_in_no_index(archive: Archive) -> None:
    archive.call("red", "write to eve@example.org today", redact=(Redaction("email"),), minutes=1)
    archive.ship()
    assert archive.names("today") == ["red"]
    assert archive.names("eve example") == []
    assert archive.names("email") == ["red"], "what stands in its place"


def test_no_dictionary_finds_an_erased_subjects_words(postgres: Server, archive: Archive) -> None:
    """Not in the database, and not in a dump from before beside the keys of today."""
    dump = postgres.snapshot(archive.dsn)
    archive.erase("alice")
    assert archive.names("diabetes") == ["c5", "c3", "c2"]
    (left,) = query(archive.dsn, "SELECT count(*) FROM warden.audit_terms WHERE call_id IN ('c1', 'c4')")
    assert left == (0,)
    postgres.restore(dump, archive.dsn)

    def attack(connection: sa.Connection, opener: Opener) -> set[tuple[str, str]]:
        keys = [row[0] for row in connection.execute(sa.text("SELECT id FROM warden.data_keys"))]
        opener.load(connection, keys)
        secrets = [opener.secret(key).secret for key in keys] + [bytes(32)]
        found = set()
        for call, kept in connection.execute(sa.text("SELECT call_id, terms FROM warden.audit_terms")):
            for word in ("diabetes", "mellitus", "befund", "nothing", "over", "there"):
                guesses = {guess for secret in secrets if secret is not None for guess in terms(secret, [word])}
                found |= {(call, word)} if guesses & set(kept) else set()
        return found

    found = archive.act(attack)
    assert {call for call, _ in found} == {"c2", "c3", "c5"}, "it works where the keys are, and nowhere else"
    assert archive.names("diabetes") == ["c5", "c3", "c2"]
    archive.call("after", "diabetes again", subject="bob")
    archive.ship()
    assert check(archive.dsn, archive.directory / "anchor").faults == []


def test_words_of_different_subjects_do_not_look_alike(archive: Archive) -> None:
    rows = query(archive.dsn, "SELECT terms FROM warden.audit_terms WHERE call_id IN ('c1', 'c2', 'c5')")
    one, two, other = (set(row[0]) for row in rows)
    assert not one & two
    assert not one & other


def test_an_index_goes_with_its_day(dsn: str, tmp_path: Path) -> None:
    archive = Archive(dsn, tmp_path)
    archive.call("old", "diabetes", minutes=9 * 1440, retention_days=5)
    archive.call("new", "diabetes")
    archive.ship()
    engine = store.connect(dsn, application="test")
    officer = Officer("cli:ada", AT, _ids, "policy")
    try:
        retain(engine, Opener(keys_in(tmp_path)), officer, copies=timedelta(), signer_of=signer_of)
        assert query(dsn, "SELECT call_id FROM warden.audit_terms") == [("new",)]
        archive.ship()  # signs the record of the drop
        assert retain(engine, Opener(keys_in(tmp_path)), officer, copies=timedelta(), signer_of=signer_of).dropped
    finally:
        engine.dispose()
    name = store.partition_name((AT - timedelta(days=9)).date(), "audit_terms")
    assert query(dsn, f"SELECT to_regclass('warden.{name}')") == [(None,)]


def test_a_search_that_looked_under_all_the_keys_it_may_goes_on_with_the_day_before(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("today", "yesterday", "before")):
        archive.call(name, "the quarterly ledger", tenant="cedar", minutes=5 + 1440 * number)
    archive.ship()
    monkeypatch.setattr(by_text, "KEYS", 1)
    names, after = [], None
    for _ in range(8):  # one for each day of the window, and more than there are
        page = archive.find("ledger", tenant="cedar", **({} if after is None else {"after": after}))
        names += [found.columns["call_id"] for found in page.found]
        after = page.next
        if after is None:
            break
        assert page.cut
    assert names == ["today", "yesterday", "before"]

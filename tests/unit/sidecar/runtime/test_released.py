"""Up to where a journal may let go of what is shipped to several databases, and what must not be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.follow import read_shipped, write_shipped
from audit.record import Entry, encode
from sidecar.runtime.released import Released, StrandedError, place_of, refuse_stranded
from tests.support.journal import ROOT, open_journal
from tests.support.store import event, refused


def test_the_least_of_them_is_let_go(tmp_path: Path) -> None:
    write_shipped(tmp_path, 10)
    released = Released(tmp_path, ("EU", "US"))
    released.tell("EU", 50)
    assert read_shipped(tmp_path) == 10
    released.tell("US", 30)
    assert read_shipped(tmp_path) == 30
    released.tell("US", 90)
    assert read_shipped(tmp_path) == 50


def test_what_each_has_is_known_after_a_restart(tmp_path: Path) -> None:
    first = Released(tmp_path, ("EU", "US"))
    first.tell("EU", 50)
    first.tell("US", 30)
    again = Released(tmp_path, ("EU", "US"))
    again.tell("EU", 60)  # the other is away
    assert read_shipped(tmp_path) == 30


def test_one_that_is_new_has_missed_nothing(tmp_path: Path) -> None:
    Released(tmp_path, ("EU",)).tell("EU", 70)
    assert read_shipped(tmp_path) == 70
    both = Released(tmp_path, ("EU", "US"))
    both.tell("EU", 80)
    assert read_shipped(tmp_path) == 70
    both.tell("US", 75)
    assert read_shipped(tmp_path) == 75


@pytest.mark.parametrize("jurisdictions", [("EU",), ("EU", "US")])
def test_nothing_is_said_before_anything_was_shipped(tmp_path: Path, jurisdictions: tuple[str, ...]) -> None:
    Released(tmp_path, jurisdictions)
    assert not list(tmp_path.rglob("shipped"))


def test_alone_it_is_the_journals_own_word(tmp_path: Path) -> None:
    released = Released(tmp_path, ("EU",))
    released.tell("EU", 5)
    assert (read_shipped(tmp_path), released.directory("EU")) == (5, tmp_path)
    assert not (tmp_path / "databases").exists()


def test_the_pods_own_log_stays_where_it_is(tmp_path: Path) -> None:
    assert place_of(tmp_path, "EU", own="EU") == tmp_path
    assert place_of(tmp_path, "US", own="EU") == tmp_path / "databases" / "US"


def filled(directory: Path, *entries: Entry) -> None:
    journal = open_journal(directory)
    for entry in entries:
        assert isinstance(journal.append(encode(entry)), int)
    journal.close()


def test_a_database_is_not_taken_out_while_the_journal_holds_records_for_it(tmp_path: Path) -> None:
    filled(tmp_path, event(), refused(store="EU"), refused(store="US"), refused())
    Released(tmp_path, ("EU", "US"))
    refuse_stranded(tmp_path, ROOT, ("EU", "US"))
    with pytest.raises(StrandedError, match=r"holds records of 'US' from sequence 2 on.*put audit\.databases\.US back"):
        refuse_stranded(tmp_path, ROOT, ("EU",))


def test_one_that_has_all_that_was_for_it_may_go(tmp_path: Path) -> None:
    filled(tmp_path, refused(store="US"), refused(store="EU"))
    released = Released(tmp_path, ("EU", "US"))
    released.tell("US", 0)
    refuse_stranded(tmp_path, ROOT, ("EU",))
    assert read_shipped(tmp_path / "databases" / "US") == 1  # not looked through again


def test_without_another_database_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    refuse_stranded(tmp_path, ROOT, ("EU",))

"""What must not be forgotten of a database that is taken out of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.follow import write_shipped
from audit.record import Entry, encode
from sidecar.runtime.settings import journal_of
from sidecar.runtime.stranded import StrandedError, refuse_stranded
from tests.support.journal import ROOT, open_journal
from tests.support.store import refused


@pytest.fixture
def us(tmp_path: Path) -> Path:
    """The journal for a database of the US, beside that of the pod's own."""
    place = journal_of(tmp_path, "US")
    place.mkdir(parents=True)
    filled(place, refused(store="US"), refused(store="US"))
    return place


def filled(directory: Path, *entries: Entry) -> None:
    journal = open_journal(directory)
    for entry in entries:
        assert isinstance(journal.append(encode(entry)), int)
    journal.close()


def test_a_database_is_not_taken_out_while_its_journal_holds_records(tmp_path: Path, us: Path) -> None:
    write_shipped(us, 0)
    refuse_stranded(tmp_path, ROOT, ("EU", "US"))
    with pytest.raises(StrandedError, match=r"holds records of 'US' from sequence 1 on.*put audit\.databases\.US back"):
        refuse_stranded(tmp_path, ROOT, ("EU",))


def test_one_whose_records_cannot_be_read_stays_too(tmp_path: Path, us: Path) -> None:
    (segment,) = us.glob("*.seg")
    segment.write_bytes(b"damaged" + segment.read_bytes()[7:])
    with pytest.raises(StrandedError, match=r"holds records of 'US', and no database"):
        refuse_stranded(tmp_path, ROOT, ("EU",))


def test_one_that_has_all_that_was_for_it_may_go(tmp_path: Path, us: Path) -> None:
    write_shipped(us, 1)
    refuse_stranded(tmp_path, ROOT, ("EU",))


def test_where_there_never_was_a_second_database_nothing_is_looked_for(tmp_path: Path) -> None:
    refuse_stranded(tmp_path, ROOT, ("EU",))
    assert list(tmp_path.iterdir()) == []

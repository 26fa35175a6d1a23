"""sidecar.runtime.journal_source: the journal as the shipper sees it, in bounded bites."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.follow import READ_BYTES, read_shipped
from audit.journal import Bounds, Journal
from audit.segments import Origin
from sidecar.core.model import Secret
from sidecar.runtime.journal_source import JournalSource

ROOT = Secret(b"r" * 32)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    origin = Origin("pod-1", "eu-west-1", "EU")
    opened = Journal.open(tmp_path, ROOT, origin, Bounds(), random=os.urandom, wall_ns=lambda: 1, monotonic=None)
    assert isinstance(opened, Journal)
    yield opened
    opened.close()


def test_reading_is_bounded_by_count_and_by_bytes(journal: Journal) -> None:
    source = JournalSource(journal.directory, ROOT)
    for _ in range(10):
        journal.append(bytes(READ_BYTES // 4))
    assert [item.sequence for item in source.read(3)] == [0, 1, 2]
    assert [item.sequence for item in source.read(100)] == [3, 4, 5, 6]
    assert source.waiting() > 0
    assert [item.sequence for item in source.read(100)] == [7, 8, 9]
    assert source.read(100) == []
    assert source.waiting() == 0
    source.close()


def test_items_say_whose_journal_it_is(journal: Journal) -> None:
    source = JournalSource(journal.directory, ROOT)
    journal.append(b"entry")
    (item,) = source.read(10)
    place = item.place
    assert (item.data, place.sidecar, place.region, place.jurisdiction) == (b"entry", "pod-1", "eu-west-1", "EU")
    assert place.journal == source.identity == journal.identity
    source.close()


def test_another_key_raises_and_skips_nothing(journal: Journal) -> None:
    journal.append(b"entry")
    journal._rotate()
    journal.append(b"later")
    source = JournalSource(journal.directory, Secret(b"x" * 32))
    for _ in range(2):
        with pytest.raises(OSError, match="root key"):
            source.read(10)
    source.close()
    assert read_shipped(journal.directory) == -1


def test_shipped_is_told_at_the_latest_on_closing(journal: Journal) -> None:
    source = JournalSource(journal.directory, ROOT)
    for sequence in range(5):
        source.shipped(sequence)
    source.close()
    assert read_shipped(journal.directory) == 4

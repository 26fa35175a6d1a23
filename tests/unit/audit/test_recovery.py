"""audit.recovery: what a crash or a bad disk left is read as far as it goes; what was altered is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.journal import FaultKind, Follower, write_shipped
from audit.segments import segments_in
from tests.support.journal import (
    ROOT,
    crash,
    entries,
    flip,
    only_segment,
    open_journal,
    written,
)


def test_a_torn_tail_at_every_byte_of_the_last_frame_is_cut(tmp_path: Path) -> None:
    source = open_journal(tmp_path / "source")
    written(source, b"one", b"two")
    whole = only_segment(tmp_path / "source").stat().st_size
    written(source, b"three")
    data = only_segment(tmp_path / "source").read_bytes()
    for size in range(whole, len(data)):
        directory = tmp_path / str(size)
        directory.mkdir()
        only = directory / only_segment(tmp_path / "source").name
        only.write_bytes(data[:size])
        journal = open_journal(directory)
        assert journal.recovery.truncated_bytes == size - whole
        assert journal.recovery.faults == ()
        assert written(journal, b"new") == [2]
        assert only.stat().st_size == whole, "a recovered segment is not appended to"
        assert entries(directory) == [(0, b"one"), (1, b"two"), (2, b"new")]
        journal.close()


@pytest.mark.parametrize("place", ["mark", "length", "index", "checksum", "payload"])
def test_a_bit_flip_mid_segment_is_damage_and_costs_one_frame(tmp_path: Path, place: str) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one")
    start = only_segment(tmp_path).stat().st_size
    written(journal, b"two", b"three")
    crash(journal)
    path = only_segment(tmp_path)
    flip(path, start + {"mark": 0, "length": 4, "index": 8, "checksum": 12, "payload": 20}[place])
    before = path.read_bytes()
    again = open_journal(tmp_path)
    (fault,) = again.recovery.faults
    assert (fault.kind, fault.first, fault.last) == (FaultKind.DAMAGED, 1, 1)
    assert path.read_bytes() == before, "evidence stays as it was found"
    assert written(again, b"four") == [3]
    follower = Follower(tmp_path, ROOT)
    assert [(s, d) for s, d, _ in follower] == [(0, b"one"), (2, b"three"), (3, b"four")]
    assert [fault.kind for fault in follower.faults] == [FaultKind.DAMAGED]
    follower.close()
    write_shipped(tmp_path, 10)
    assert again.release() == 0
    assert path.exists()


def test_frames_swapped_within_a_segment_are_damage(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"zero")
    start = only_segment(tmp_path).stat().st_size
    written(journal, b"one!", b"two!", b"last")
    crash(journal)
    path, frame = only_segment(tmp_path), 36
    data = bytearray(path.read_bytes())
    one, two = slice(start, start + frame), slice(start + frame, start + 2 * frame)
    data[one], data[two] = data[two], data[one]
    path.write_bytes(data)
    again = open_journal(tmp_path)
    assert {fault.kind for fault in again.recovery.faults} == {FaultKind.DAMAGED}
    assert written(again, b"next") == [4]
    assert entries(tmp_path) == [(0, b"zero"), (2, b"two!"), (3, b"last"), (4, b"next")]


def test_an_altered_header_is_not_believed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one")
    crash(journal)
    path = only_segment(tmp_path)
    flip(path, path.read_bytes().index(b"eu-west-1"))
    again = open_journal(tmp_path)
    assert [fault.kind for fault in again.recovery.faults] == [FaultKind.DAMAGED]
    assert path.exists()
    assert again.next_sequence > 1


def test_a_torn_header_leaves_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one")
    crash(journal)
    torn = tmp_path / f"journal-{1:016x}.seg"
    for size in (0, 1, 15, 16, 40, 100):
        torn.write_bytes(only_first(tmp_path).read_bytes()[:size])
        again = open_journal(tmp_path)
        assert again.recovery.faults == ()
        assert again.next_sequence == 1
        assert not torn.exists()
        again.close()


def only_first(directory: Path) -> Path:
    return segments_in(directory)[0][1]


def test_no_sequence_that_was_shipped_is_used_again(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, *[b"x"] * 5)
    crash(journal)
    only_segment(tmp_path).unlink()
    write_shipped(tmp_path, 3)
    again = open_journal(tmp_path)
    assert again.next_sequence == 4
    assert [(f.kind, f.first, f.last) for f in again.recovery.faults] == [(FaultKind.GAP, 0, 3)]

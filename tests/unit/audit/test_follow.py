"""audit.follow: whoever follows a journal reads each entry once, across segments, damage and removal."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from audit.journal import FaultKind, Follower, JournalFault, write_shipped
from audit.segments import segments_in
from sidecar.core.model import Secret
from tests.support.journal import (
    ROOT,
    SMALL,
    FaultyFiles,
    crash,
    entries,
    filled,
    flip,
    only_segment,
    open_journal,
    written,
)


def test_a_follower_sees_what_comes_later_and_survives_rotation(tmp_path: Path) -> None:
    follower = Follower(tmp_path, ROOT)
    assert list(follower) == []
    journal = open_journal(tmp_path, bounds=SMALL)
    for n in range(30):
        written(journal, b"%d" % n * 100)
        assert [sequence for sequence, _, _ in follower] == [n]
    assert follower.faults == []
    written(journal, b"more", b"more")
    assert follower.waiting() > 0
    assert len(follower.read(1)) == 1
    follower.sync()
    follower.close()


def test_a_follower_waits_for_a_frame_that_is_being_written(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one", b"two")
    path = only_segment(tmp_path)
    data = path.read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    target = copy / path.name
    target.write_bytes(data[:-10])
    follower = Follower(copy, ROOT)
    for _ in range(3):
        assert [s for s, _, _ in follower] in ([0], [])
    assert not follower.wait(0.01)
    target.write_bytes(data)
    assert [s for s, _, _ in follower] == [1]
    assert follower.faults == []
    follower.close()


def test_a_follower_reads_on_behind_damage_in_the_live_segment(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one")
    start = only_segment(tmp_path).stat().st_size
    written(journal, b"two", b"three")
    flip(only_segment(tmp_path), start + 20)
    follower = Follower(tmp_path, ROOT)
    assert [s for s, _, _ in follower] == [0]
    assert [s for s, _, _ in follower] == [2], "bad twice at the same place: not a write in progress"
    assert [fault.kind for fault in follower.faults] == [FaultKind.DAMAGED]
    follower.close()


def test_a_follower_inside_a_segment_that_is_removed_finds_the_next(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    follower = Follower(tmp_path, ROOT)

    def read_when_the_header_is_there(operation: str) -> None:
        if operation == "pwrite" and segments_in(tmp_path) and files.room is None:
            assert list(follower) == []  # the header is there, the frame is not
            files.room = 5 if only_segment(tmp_path).stat().st_size else None

    files.hook = read_when_the_header_is_there
    assert isinstance(journal.append(b"lost for want of space"), JournalFault)
    assert segments_in(tmp_path) == []
    files.hook = files.room = None
    journal.tick(1.0)
    assert written(journal, b"one", b"two") == [0, 1]
    assert [s for s, _, _ in follower] == [0, 1]
    assert follower.faults == []
    follower.close()


def test_a_follower_waits_until_there_is_more(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    follower = Follower(tmp_path, ROOT)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(follower.wait, 10.0)
        while not waits.done():
            written(journal, b"x")
        assert waits.result()
    assert len(list(follower)) == journal.next_sequence
    follower.close()


def test_a_follower_with_another_key_says_so(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one")
    follower = Follower(tmp_path, Secret(b"z" * 32))
    assert list(follower) == []
    assert [fault.kind for fault in follower.faults] == [FaultKind.KEY]


def test_a_follower_starts_at_the_oldest_there_is(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    second = segments_in(tmp_path)[1][0]
    write_shipped(tmp_path, second - 1)
    assert journal.release() == 1
    assert entries(tmp_path)[0][0] == second


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=30),
    limit=st.integers(1, 7),
    nbytes=st.integers(1, 900),
    start=st.integers(0, 30),
    damage=st.floats(0, 1, exclude_max=True),
)
def test_entries_read_in_runs_are_those_read_one_by_one(
    sizes: list[int], limit: int, nbytes: int, start: int, damage: float
) -> None:
    """Invariant: however much is read at once, across segments and damage, the same entries and faults come."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        journal = open_journal(directory, bounds=SMALL)
        written(journal, *(b"x" * size for size in sizes))
        crash(journal)
        _, path = segments_in(directory)[0]
        data = bytearray(path.read_bytes())
        data[int(damage * len(data))] ^= 1
        path.write_bytes(data)
        one, many = (Follower(directory, ROOT, sequence=start) for _ in range(2))
        singly, together = list(one), []
        while found := many.read(limit, nbytes):
            assert len(found) <= limit
            together += found
        assert together == singly
        assert many.faults == one.faults
        one.close()
        many.close()

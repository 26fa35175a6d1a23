"""Invariant: a journal cut at any byte recovers to exactly the whole frames before the cut, and goes on from there."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from audit.segments import segments_in
from tests.support.journal import ROOMY, crash, entries, open_journal

BOUNDS = replace(ROOMY, segment_bytes=600)
ENTRIES = st.lists(st.binary(max_size=200), min_size=1, max_size=12)


def whole_before(sizes: list[tuple[int, int]], segment: int, cut: int) -> int:
    """How many entries were whole when the last file was ``segment`` and had ``cut`` bytes."""
    return sum(1 for place, end in sizes if place < segment or (place == segment and end <= cut))


@settings(max_examples=60, deadline=None)
@given(data=ENTRIES, after=st.binary(max_size=50), where=st.floats(0, 1))
def test_any_prefix_of_the_files_recovers_to_its_whole_frames(data: list[bytes], after: bytes, where: float) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, copy = Path(scratch, "source"), Path(scratch, "copy")
        journal = open_journal(source, bounds=BOUNDS)
        sizes = []
        for entry in data:
            assert isinstance(journal.append(entry), int)
            files = segments_in(source)
            sizes.append((len(files) - 1, files[-1][1].stat().st_size))
        crash(journal)
        # The crash: the files in the order they were written, cut at one byte of the whole.
        files = segments_in(source)
        left = int(where * sum(path.stat().st_size for _, path in files))
        copy.mkdir()
        segment = cut = 0
        for place, (_, path) in enumerate(files):
            content = path.read_bytes()[:left]
            (copy / path.name).write_bytes(content)
            segment, cut, left = place, len(content), left - len(content)
            if left == 0:
                break
        count = whole_before(sizes, segment, cut)
        again = open_journal(copy, bounds=BOUNDS)
        assert again.recovery.faults == ()
        assert again.next_sequence == count
        assert again.append(after) == count
        assert entries(copy) == [*enumerate(data[:count]), (count, after)]
        again.close()


@settings(max_examples=40, deadline=None)
@given(data=ENTRIES, at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_flipped_bit_never_yields_an_entry_that_was_not_written(data: list[bytes], at: float, bit: int) -> None:
    """Invariant: whatever bit flips, a reader gets a subset of what was written, each under its own sequence."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        journal = open_journal(directory)
        for entry in data:
            journal.append(entry)
        crash(journal)
        ((_, path),) = segments_in(directory)
        content = bytearray(path.read_bytes())
        content[int(at * len(content))] ^= 1 << bit
        path.write_bytes(content)
        again = open_journal(directory)
        found = entries(directory)
        assert set(found) <= set(enumerate(data))
        assert again.next_sequence >= len(data) or again.recovery.truncated_bytes or len(found) == 0
        sequence = again.append(b"after")
        assert (sequence, b"after") in entries(directory)
        again.close()

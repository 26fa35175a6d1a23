"""audit.keeping, by a journal in use: segments stay until they are shipped, old, and without an open call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from audit.journal import State, write_shipped
from audit.segments import segments_in
from tests.support.journal import (
    SMALL,
    filled,
    open_journal,
    written,
)


def test_segments_go_once_shipped_and_old(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    segments = segments_in(tmp_path)
    assert journal.release() == 0, "nothing shipped"
    write_shipped(tmp_path, segments[2][0] - 1)
    assert journal.release() == 2
    assert segments_in(tmp_path) == segments[2:]
    assert journal.probe() is None
    write_shipped(tmp_path, 8)
    journal.release()
    assert segments_in(tmp_path) == segments[-1:], "never the one that is written"


def test_segments_stay_while_young_unless_space_is_short(tmp_path: Path) -> None:
    journal = filled(tmp_path, keep_s=2.0**40)
    write_shipped(tmp_path, 8)
    assert journal.release() == 0
    journal.close()
    crowded = open_journal(tmp_path, bounds=replace(SMALL, keep_s=2.0**40, max_bytes=3000))
    assert crowded.state is State.FULL
    assert crowded.release() > 0
    assert crowded.released_early > 0
    assert crowded.state is State.OK


def test_a_segment_with_an_open_call_stays(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, bounds=SMALL, wall_ns=lambda: 2**62)
    journal.append(b"x" * 300, opens="call")
    written(journal, *[b"x" * 300] * 8)
    write_shipped(tmp_path, 8)
    assert journal.release() == 0
    journal.append(b"end", closes="call")
    journal.sync()
    assert journal.release() > 0


def test_a_shipped_mark_that_cannot_be_read_releases_nothing(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    (tmp_path / "shipped").write_bytes(b"garbage")
    assert journal.release() == 0

"""audit.mending, by a journal in use: what people do to its files is noticed, and put right as far as it can be."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from audit.journal import FaultKind, Follower, Journal, JournalFault, State, write_shipped
from audit.segments import segments_in
from sidecar.core.model import Secret
from tests.support.journal import (
    ORIGIN,
    ROOMY,
    ROOT,
    SMALL,
    FaultyFiles,
    crash,
    entries,
    flip,
    only_segment,
    open_journal,
    wall_ns,
    written,
)
from tests.support.store import wait_until


def test_a_deleted_segment_is_noticed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"x")
    only_segment(tmp_path).unlink()
    journal.tick(1.0)
    assert journal.state is State.FAULTED
    assert journal.fault is not None
    assert journal.fault.kind is FaultKind.DELETED


def test_a_deleted_closed_segment_is_noticed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, bounds=SMALL)
    written(journal, *[b"x" * 300] * 8)
    segments_in(tmp_path)[0][1].unlink()
    fault = journal.probe()
    assert fault is not None
    assert fault.kind is FaultKind.DELETED


def test_a_replaced_segment_is_noticed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"x")
    path = only_segment(tmp_path)
    other = path.with_suffix(".copy")
    other.write_bytes(path.read_bytes())
    other.replace(path)
    fault = journal.probe()
    assert fault is not None
    assert fault.kind is FaultKind.REPLACED


def test_a_truncated_segment_is_noticed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"x")
    os.truncate(only_segment(tmp_path), 10)
    fault = journal.probe()
    assert fault is not None
    assert fault.kind is FaultKind.TRUNCATED


def test_a_last_frame_that_does_not_read_back_is_noticed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"x", b"y")
    assert journal.probe() is None
    flip(only_segment(tmp_path), -1)
    fault = journal.probe()
    assert fault is not None
    assert fault.kind is FaultKind.UNREADABLE
    assert journal.state is State.FAULTED


def mended(journal: Journal) -> tuple[FaultKind, int, tuple[tuple[int, int], ...]]:
    """Notice and put right, as the two threads do; the one fault that was mended."""
    journal.tick(1.0)
    journal.tick(2.5)
    assert journal.state is State.OK, journal.fault
    (found,) = journal.mended()
    return found.fault.kind, found.rescued, found.lost


def replace_with_a_copy(path: Path) -> None:
    other = path.with_suffix(".copy")
    other.write_bytes(path.read_bytes()[:-5])
    other.replace(path)


@pytest.mark.parametrize(
    ("harm", "kind"), [(Path.unlink, FaultKind.DELETED), (replace_with_a_copy, FaultKind.REPLACED)]
)
@pytest.mark.parametrize("closed", [False, True])
def test_what_was_deleted_or_replaced_is_rescued_through_the_open_descriptor(
    tmp_path: Path, harm: Callable[[Path], None], kind: FaultKind, *, closed: bool
) -> None:
    journal, follower = open_journal(tmp_path, bounds=SMALL if closed else ROOMY), Follower(tmp_path, ROOT)
    data = [b"%d" % n * 300 for n in range(5 if closed else 3)]
    written(journal, *data)
    assert [s for s, _, _ in follower.read(1)] == [0]
    held = segments_in(tmp_path)[1][0] if closed else 3  # entries in the first segment
    harm(segments_in(tmp_path)[0][1])
    assert mended(journal) == (kind, held, ())
    written(journal, b"after")
    assert [s for s, _, _ in follower] == list(range(1, len(data) + 1))
    assert follower.faults == []
    assert entries(tmp_path) == [*enumerate(data), (len(data), b"after")]
    assert len(list(tmp_path.glob("*.foreign"))) == (kind is FaultKind.REPLACED), "the stranger's file is evidence"
    assert journal.close() is None
    again = open_journal(tmp_path)
    assert again.recovery.faults == ()
    again.close()


def test_a_deleted_directory_comes_back_with_all_that_was_held(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    journal = open_journal(directory, bounds=SMALL)
    data = [b"%d" % n * 300 for n in range(8)]
    written(journal, *data)
    identity = journal.identity
    shutil.rmtree(directory)
    kind, rescued, lost = mended(journal)
    assert kind in (FaultKind.DELETED, FaultKind.IO), "an fsync of the directory may meet it first"
    assert (rescued, lost) == (8, ())
    written(journal, b"after")
    assert entries(directory) == [*enumerate(data), (8, b"after")]
    second = Journal.open(directory, ROOT, ORIGIN, ROOMY, random=os.urandom, wall_ns=wall_ns, monotonic=None)
    assert isinstance(second, JournalFault)
    assert second.kind is FaultKind.LOCKED, "the new lock holds too"
    journal.close()
    again = open_journal(directory)
    assert again.identity == identity
    again.close()


def test_what_was_cut_off_is_named_and_what_is_left_stays(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one")
    end = only_segment(tmp_path).stat().st_size
    written(journal, b"two", b"three")
    os.truncate(only_segment(tmp_path), end + 3)
    assert mended(journal) == (FaultKind.TRUNCATED, 0, ((1, 2),))
    assert written(journal, b"four") == [3]
    assert journal.probe() is None
    assert entries(tmp_path) == [(0, b"one")], "what is missing may still come, while the journal is written"
    journal.close()
    assert entries(tmp_path) == [(0, b"one"), (3, b"four")]


def test_a_bit_flipped_far_behind_is_noticed_and_costs_one_entry(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"one")
    start = only_segment(tmp_path).stat().st_size
    written(journal, *[b"x" * 1000] * 50)
    assert journal.probe() is None
    flip(only_segment(tmp_path), start + 30)
    assert mended(journal) == (FaultKind.DAMAGED, 0, ((1, 1),))
    assert written(journal, b"after") == [51]
    assert [s for s, _ in entries(tmp_path)] == [0, *range(2, 52)]
    write_shipped(tmp_path, 51)
    assert journal.release() == 0, "evidence stays"
    journal.close()


def test_nothing_is_released_while_it_is_mended(tmp_path: Path) -> None:
    """Each has a thread of its own: what one counts as there, the other must not remove."""
    files = FaultyFiles()
    journal = open_journal(tmp_path, bounds=SMALL, files=files, wall_ns=lambda: 2**62)
    written(journal, *[b"x" * 300] * 9)
    journal.sync()
    write_shipped(tmp_path, journal.next_sequence - 1)
    files.fail["pwrite"] = errno.EIO
    assert isinstance(journal.append(b"lost"), JournalFault)
    files.fail.clear()
    released: list[int] = []

    def beside(operation: str) -> None:
        if operation == "sync_directory" and not released:
            released.append(journal.release())

    files.hook = beside
    assert journal.mend() is None
    assert released == [0]
    assert journal.probe() is None
    assert journal.release() > 1
    assert journal.probe() is None


def test_the_threads_mend_alone(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, monotonic=monotonic)
    written(journal, b"x")
    only_segment(tmp_path).unlink()
    wait_until(journal.mended, seconds=30)
    assert written(journal, b"y") == [1]
    assert entries(tmp_path) == [(0, b"x"), (1, b"y")]
    assert journal.close() is None


def test_a_second_opener_is_told_who_has_it(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    second = Journal.open(tmp_path, ROOT, ORIGIN, ROOMY, random=os.urandom, wall_ns=wall_ns, monotonic=None)
    assert isinstance(second, JournalFault)
    assert second.kind is FaultKind.LOCKED
    assert str(os.getpid()) in second.detail
    journal.close()
    open_journal(tmp_path).close()


def test_another_root_key_opens_nothing_and_changes_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"x")
    crash(journal)
    path = only_segment(tmp_path)
    before = path.read_bytes()
    other = Journal.open(tmp_path, Secret(b"z" * 32), ORIGIN, ROOMY, random=os.urandom, wall_ns=wall_ns, monotonic=None)
    assert isinstance(other, JournalFault)
    assert other.kind is FaultKind.KEY
    assert path.name in other.detail
    assert path.read_bytes() == before
    open_journal(tmp_path).close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    fault = Journal.open(tmp_path / "file", ROOT, ORIGIN, ROOMY, random=os.urandom, wall_ns=wall_ns, monotonic=None)
    assert isinstance(fault, JournalFault)
    assert str(tmp_path / "file") in fault.detail

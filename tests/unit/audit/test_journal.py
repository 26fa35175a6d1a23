"""audit.journal: every way in which disks and people break a journal."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from audit.journal import SYNC_DEADLINE_S, FaultKind, Follower, Journal, JournalFault, Pressure, State, write_shipped
from audit.segments import segments_in
from sidecar.core.model import Secret
from tests.support.journal import ORIGIN, ROOMY, ROOT, FaultyFiles, crash, entries, open_journal, wall_ns
from tests.support.store import wait_until

SMALL = replace(ROOMY, segment_bytes=1024)


def only_segment(directory: Path) -> Path:
    ((_, path),) = segments_in(directory)
    return path


def written(journal: Journal, *data: bytes) -> list[int]:
    found = [journal.append(entry) for entry in data]
    assert all(isinstance(sequence, int) for sequence in found), found
    return found  # type: ignore[return-value]  # checked above


# --- what works -----------------------------------------------------------------------------------------------------


def test_entries_come_back_in_sequence_and_sealed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    assert written(journal, b"a secret prompt", b"", b"c" * 5000) == [0, 1, 2]
    assert entries(tmp_path) == [(0, b"a secret prompt"), (1, b""), (2, b"c" * 5000)]
    assert b"a secret prompt" not in only_segment(tmp_path).read_bytes()
    assert journal.close() is None


def test_sequences_go_on_across_segments_and_restarts(tmp_path: Path) -> None:
    data = [f"entry {n}".encode() * 20 for n in range(40)]
    for start in (0, 20):
        journal = open_journal(tmp_path, bounds=SMALL)
        written(journal, *data[start : start + 20])
        journal.close()
    assert entries(tmp_path) == list(enumerate(data))
    assert len(segments_in(tmp_path)) > 4
    assert entries(tmp_path, 33) == list(enumerate(data))[33:]


def test_a_segment_names_its_origin_and_the_journal_keeps_its_identity(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    written(journal, b"x")
    follower = Follower(tmp_path, ROOT)
    ((_, _, info),) = follower.read(10)
    assert (info.sidecar, info.region, info.jurisdiction) == (ORIGIN.sidecar, ORIGIN.region, ORIGIN.jurisdiction)
    journal.close()
    assert open_journal(tmp_path).identity == follower.identity == info.journal
    follower.close()


def test_many_threads_append_without_a_lost_or_doubled_sequence(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, bounds=replace(ROOMY, segment_bytes=20_000))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: (journal.append(b"%d" % n), b"%d" % n), range(2000)))
    assert sorted(found) == entries(tmp_path)  # type: ignore[type-var]  # no fault among them, or they differ
    assert [sequence for sequence, _ in entries(tmp_path)] == list(range(2000))


def test_an_entry_over_the_bound_is_refused_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.journal.MAX_ENTRY_BYTES", 10)
    journal = open_journal(tmp_path)
    fault = journal.append(b"x" * 11)
    assert isinstance(fault, JournalFault)
    assert fault.kind is FaultKind.TOO_LARGE
    assert journal.append(b"x" * 10) == 0


# --- no space -------------------------------------------------------------------------------------------------------


def test_enospc_at_every_byte_of_a_frame_leaves_whole_frames_only(tmp_path: Path) -> None:
    frame = 16 + 16 + 9
    for room in range(frame):
        directory = tmp_path / str(room)
        files = FaultyFiles()
        journal = open_journal(directory, files=files)
        written(journal, b"first one")
        size = only_segment(directory).stat().st_size
        files.room = room
        fault = journal.append(b"secondone")
        assert isinstance(fault, JournalFault)
        assert fault.kind is FaultKind.FULL
        assert only_segment(directory).stat().st_size == size
        assert journal.state is State.FULL
        files.room = None
        journal.tick(1.0)
        assert journal.state is State.OK
        assert written(journal, b"third one") == [1]
        assert len(segments_in(directory)) == 2, "no index of a segment is sealed twice"
        assert entries(directory) == [(0, b"first one"), (1, b"third one")]
        journal.close()


def test_enospc_at_every_byte_of_a_new_segment_leaves_no_segment(tmp_path: Path) -> None:
    for room in (0, 1, 15, 16, 17, 100):
        directory = tmp_path / str(room)
        files = FaultyFiles()
        journal = open_journal(directory, files=files)
        files.room = room
        assert isinstance(journal.append(b"x"), JournalFault)
        assert segments_in(directory) == []
        files.room = None
        journal.tick(1.0)
        assert written(journal, b"y") == [0]
        assert journal.probe() is None
        journal.close()


def test_a_short_write_is_completed(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    written(journal, b"one")
    files.short = 5
    assert written(journal, b"two") == [1]
    assert entries(tmp_path) == [(0, b"one"), (1, b"two")]


def test_with_little_space_new_calls_are_refused_and_admitted_ones_may_end(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    written(journal, b"admitted")
    files.free_bytes = ROOMY.min_free - 1
    journal.tick(1.0)
    assert journal.state is State.FULL
    assert isinstance(journal.append(b"new", opens="b"), JournalFault)
    assert journal.append(b"outcome", closes="a", reserve=True) == 1
    files.free_bytes = 0
    journal.tick(2.0)
    assert isinstance(journal.append(b"outcome", reserve=True), JournalFault), "the reserve ends too"
    files.free_bytes = None
    journal.tick(3.0)
    assert journal.state is State.OK


def test_max_bytes_refuses_new_calls(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, bounds=replace(SMALL, max_bytes=5000))
    while isinstance(journal.append(b"x" * 200), int):
        assert journal.nbytes < 5400
    assert journal.state is State.FULL
    assert isinstance(journal.append(b"x" * 200, reserve=True), int)


def test_the_ladder_is_climbed_and_left_with_what_can_be_freed(tmp_path: Path) -> None:
    """What is shipped counts for nothing, though it is kept: it goes as soon as its space is needed."""
    bounds = replace(SMALL, max_bytes=20_000, keep_s=2.0**40)
    journal, at, climbed = open_journal(tmp_path, bounds=bounds), 1.0, [Pressure.NONE]
    while journal.state is State.OK:
        assert isinstance(journal.append(b"x" * 300, tenant="flood"), int)
        at += 1.0
        journal.tick(at)
        if journal.pressure is not climbed[-1]:
            climbed.append(journal.pressure)
    assert climbed == [*Pressure]
    assert journal.over("flood")
    assert not journal.over("other")
    assert journal.most_held[0] == "flood"
    assert isinstance(journal.append(b"x", tenant="other"), JournalFault)
    write_shipped(tmp_path, journal.next_sequence - 1)
    for _ in range(3):
        at += 1.0
        journal.tick(at)
    assert (journal.state, journal.pressure) == (State.OK, Pressure.NONE)
    assert not journal.over("flood")
    assert written(journal, b"y")
    journal.close()


def test_a_full_journal_opens_again_only_with_some_room(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files, bounds=replace(SMALL, min_free=1000, max_bytes=10_000))
    written(journal, b"x")
    states = []
    for at, free in enumerate((999, 1001, 1400, 1600), start=1):
        files.free_bytes = free
        journal.tick(float(at))
        states.append(journal.state)
    assert states == [State.FULL, State.FULL, State.OK, State.OK]
    journal.close()


def test_state_makes_no_system_call(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    files.calls.clear()
    assert journal.state is State.OK
    assert files.calls == []


def test_one_append_is_one_write(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    written(journal, b"x")
    files.calls.clear()
    written(journal, b"y")
    assert files.calls == ["pwrite"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize("operation", ["pwrite", "create"])
def test_an_io_error_faults_the_journal_until_a_new_segment_works(tmp_path: Path, operation: str, code: int) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    files.fail[operation] = code
    fault = journal.append(b"x")
    assert isinstance(fault, JournalFault)
    assert fault.kind is FaultKind.IO
    journal.tick(1.0)
    assert journal.state is State.FAULTED
    assert journal.append(b"x", reserve=True) == journal.fault == fault
    files.fail.clear()
    journal.tick(2.5)
    assert journal.state is State.OK
    assert written(journal, b"y") == [0]
    assert [(each.fault, each.rescued, each.lost) for each in journal.mended()] == [(fault, 0, ())]


def test_a_torn_frame_that_cannot_be_cut_back_faults(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    written(journal, b"one")
    files.room, files.fail["truncate"] = 7, errno.EIO
    assert isinstance(journal.append(b"two"), JournalFault)
    assert journal.state is State.FAULTED
    crash(journal)
    assert entries(tmp_path) == [(0, b"one")]
    again = open_journal(tmp_path)
    assert again.recovery.truncated_bytes == 7
    assert written(again, b"three") == [1]


# --- durability -----------------------------------------------------------------------------------------------------


def test_synced_waits_for_file_and_directory(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    (sequence,) = written(journal, b"x")
    files.calls.clear()
    future = journal.synced(sequence)
    assert not future.done()
    journal.tick(0.0)
    assert future.result(0) is None
    assert files.calls.index("fsync") < files.calls.index("sync_directory")
    assert journal.synced(sequence).result(0) is None


def test_one_fsync_serves_all_who_wait(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    futures = [journal.synced(sequence) for sequence in written(journal, *[b"x"] * 50)]
    files.calls.clear()
    journal.tick(0.0)
    assert all(future.result(0) is None for future in futures)
    assert files.calls.count("fsync") == 1


def test_segments_that_were_left_are_synced_before_anyone_is_told(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files, bounds=SMALL)
    written(journal, *[b"x" * 300] * 8)
    count = len(segments_in(tmp_path))
    files.calls.clear()
    assert journal.sync() is None
    assert files.calls.count("fsync") == count > 2


@pytest.mark.parametrize("operation", ["fsync", "sync_directory"])
def test_an_fsync_error_is_never_retried_as_success(tmp_path: Path, operation: str) -> None:
    """Whoever waited is refused; the file is never synced again, but written anew from what it still reads."""
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    (sequence,) = written(journal, b"x")
    before = only_segment(tmp_path).stat().st_ino
    future = journal.synced(sequence)
    files.fail[operation] = errno.EIO
    journal.tick(0.0)
    assert isinstance(future.result(0), JournalFault)
    assert isinstance(journal.synced(sequence).result(0), JournalFault)
    assert isinstance(journal.append(b"y"), JournalFault)
    files.fail.clear()
    files.calls.clear()
    journal.tick(10.0)
    assert journal.state is State.OK
    assert segments_in(tmp_path)[0][1].stat().st_ino != before, "another file, with the same name"
    assert files.calls.index("create") < files.calls.index("fsync") < files.calls.index("rename")
    assert written(journal, b"y") == [1]
    again = journal.synced()
    journal.tick(20.0)
    assert again.result(0) is None
    assert entries(tmp_path) == [(0, b"x"), (1, b"y")]
    (mended,) = journal.mended()
    assert (mended.fault.kind, mended.rescued, mended.lost) == (FaultKind.IO, 1, ())
    journal.told(mended)
    assert journal.mended() == []
    assert journal.close() is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("operation", ["create", "pwrite", "fsync", "sync_directory", "rename", "mkdir"])
def test_a_mending_that_fails_at_any_step_is_tried_again_and_loses_nothing(
    tmp_path: Path, operation: str, code: int
) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    written(journal, b"one", b"two")
    only_segment(tmp_path).unlink()
    files.fail[operation] = code
    journal.tick(1.0)
    journal.tick(2.0)
    assert journal.state is State.FAULTED
    assert isinstance(journal.append(b"new"), JournalFault)
    files.fail.clear()
    journal.tick(60.0)
    assert journal.state is State.OK
    assert written(journal, b"three") == [2]
    assert entries(tmp_path) == [(0, b"one"), (1, b"two"), (2, b"three")]
    assert [each.lost for each in journal.mended()] == [()]
    assert journal.close() is None
    again = open_journal(tmp_path)
    assert again.recovery.faults == ()
    again.close()


def test_a_waiter_that_was_cancelled_harms_nobody(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    (sequence,) = written(journal, b"x")
    gone, stays = journal.synced(sequence), journal.synced(sequence)
    gone.cancel()
    journal.tick(0.0)
    assert stays.result(0) is None


def test_batch_syncs_within_its_period_without_being_asked(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = open_journal(tmp_path, files=files)
    journal.tick(0.0)
    written(journal, b"x")
    files.calls.clear()
    journal.tick(0.05)
    assert "fsync" not in files.calls
    journal.tick(0.11)
    assert files.calls.count("fsync") == 1
    journal.tick(0.22)
    assert files.calls.count("fsync") == 1, "nothing new, nothing to sync"


def test_a_disk_that_hangs_refuses_new_calls_until_it_answers(tmp_path: Path) -> None:
    files, answer, hanging = FaultyFiles(), threading.Event(), threading.Event()
    journal = open_journal(tmp_path, files=files)
    (sequence,) = written(journal, b"x")
    waiter = journal.synced(sequence)

    def hang(operation: str) -> None:
        if operation == "fsync":
            hanging.set()
            answer.wait(10)

    files.hook = hang
    thread = threading.Thread(target=journal._ticker.sync_tick, args=(100.0,))
    thread.start()
    assert hanging.wait(5)
    journal._ticker.watch_tick(105.0)
    assert journal.state is State.OK
    journal._ticker.watch_tick(100.0 + SYNC_DEADLINE_S + 1)
    assert journal.state is State.FAULTED
    assert isinstance(waiter.result(0), JournalFault)
    assert isinstance(journal.synced().result(0), JournalFault)
    assert isinstance(journal.append(b"new"), JournalFault)
    assert journal.append(b"outcome", reserve=True) == 1
    answer.set()
    thread.join()
    assert journal.state is State.OK
    assert written(journal, b"new") == [2]
    journal.close()


def test_the_threads_do_it_alone(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, monotonic=monotonic)
    (sequence,) = written(journal, b"x")
    assert journal.synced(sequence).result(5) is None
    assert journal.close() is None
    assert isinstance(journal.append(b"y"), JournalFault)


# --- people ---------------------------------------------------------------------------------------------------------


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


# --- release --------------------------------------------------------------------------------------------------------


def filled(directory: Path, **changes: object) -> Journal:
    journal = open_journal(directory, bounds=replace(SMALL, **changes), wall_ns=lambda: 2**62)  # type: ignore[arg-type]
    written(journal, *[b"x" * 300] * 9)
    journal.sync()
    return journal


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


# --- recovery -------------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    descriptor = os.open(path, os.O_WRONLY)  # in place, as a disk or an editor of bytes does
    os.pwrite(descriptor, data, 0)
    os.close(descriptor)


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


# --- following ------------------------------------------------------------------------------------------------------


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


# --- a real full disk -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path):
    mounted = tmp_path / "disk"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mounted)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {done.stderr.decode().strip()}")
    try:
        yield mounted
    finally:
        # Lazily: a test that failed may still hold a file there, and a mount left behind breaks later runs.
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_a_really_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    journal = open_journal(small_disk, bounds=replace(ROOMY, min_free=1))
    kept = []
    while isinstance(sequence := journal.append(b"x" * 3001, reserve=True), int):
        kept.append(sequence)
    assert sequence.kind is FaultKind.FULL
    assert 10 < len(kept) < 100
    assert [s for s, _ in entries(small_disk)] == kept
    assert journal.close() is None
    again = open_journal(small_disk, bounds=replace(ROOMY, min_free=1))
    assert again.recovery.faults == ()
    assert again.next_sequence == len(kept)
    again.close()

"""audit.journal: what is written is there, and what a disk does to it is told."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic, time_ns

import pytest

from audit.journal import SYNC_DEADLINE_S, FaultKind, Follower, JournalFault, Pressure, State, write_shipped
from audit.segments import segments_in
from tests.support.disk import small_disk_at
from tests.support.journal import (
    ORIGIN,
    ROOMY,
    ROOT,
    SMALL,
    FaultyFiles,
    crash,
    entries,
    only_segment,
    open_journal,
    written,
)

# --- what works -------------------------------------------------------------------------------------------------------


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


def test_without_a_descriptor_to_spare_no_segment_is_lost_sight_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    journal = open_journal(tmp_path, bounds=SMALL)
    with monkeypatch.context() as patch:
        patch.setattr("audit.appending.os.dup", none_left)
        assert [journal.append(b"x" * 200) for _ in range(20)] == list(range(20))
    assert journal.sync() is None
    assert journal.probe() is None
    assert {*journal._closed, journal._segment.first if journal._segment else -1} == {
        first for first, _ in segments_in(tmp_path)
    }
    assert len(journal._closed) > 2
    assert len(entries(tmp_path)) == 20
    assert journal.close() is None


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
    monkeypatch.setattr("audit.appending.MAX_ENTRY_BYTES", 10)
    journal = open_journal(tmp_path)
    fault = journal.append(b"x" * 11)
    assert isinstance(fault, JournalFault)
    assert fault.kind is FaultKind.TOO_LARGE
    assert journal.append(b"x" * 10) == 0


# --- no space ---------------------------------------------------------------------------------------------------------


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


def test_a_quiet_journals_segment_is_closed_in_its_time_and_goes(tmp_path: Path) -> None:
    """Where few call, a segment would take months to fill, and what it began with would be kept as long."""
    now = [time_ns()]
    bounds = replace(ROOMY, keep_s=3600.0)
    journal = open_journal(tmp_path, bounds=bounds, wall_ns=lambda: now[0])
    assert bounds.segment_s == 450.0
    assert journal.append(b"old") == 0
    now[0] += 449 * 10**9
    journal.look()
    assert len(segments_in(tmp_path)) == 1
    now[0] += 10**9
    for _ in range(3):
        journal.look()
        now[0] += 451 * 10**9  # an empty one is closed by nobody
    assert len(segments_in(tmp_path)) == 2
    journal.sync()
    write_shipped(tmp_path, 0)
    now[0] += 3600 * 10**9
    journal.look()
    assert entries(tmp_path) == []
    assert journal.append(b"new") == 1
    assert entries(tmp_path, 1) == [(1, b"new")]
    journal.close()


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


# --- durability -------------------------------------------------------------------------------------------------------


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


# --- a real full disk -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", "256k") as disk:
        yield disk


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

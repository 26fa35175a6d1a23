"""Copies of a journal: what waits, what is told, and what is where when the store fails, hangs, fills up or lies."""

from __future__ import annotations

import errno
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from audit.copies import BEAT_S, Piece, beat_name, journal_of, piece_of, segments_of
from audit.copying import PIECE_BYTES, Copier, CopyTo
from audit.follow import write_shipped
from audit.journal import Journal
from audit.objects import Stored
from audit.segments import FaultKind, JournalFault, segments_in
from tests.support.journal import ORIGIN, ROOMY, ROOT, SMALL, crash, open_journal, wall_ns
from tests.support.objects import MemoryObjects, on_disk


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, store: MemoryObjects, clock: Clock) -> Iterator[Journal]:
    opened = copied_journal(tmp_path, store, clock)
    yield opened
    opened.close()


def copied_journal(directory: Path, store: MemoryObjects, clock: Clock, *, keep_s: float = 3600.0) -> Journal:
    """Without threads: ``turns`` copies."""
    journal = open_journal(directory, bounds=replace(SMALL, keep_s=keep_s))
    journal.copiers = {"outside": copier(journal, store, clock, keep_s)}
    return journal


def copier(journal: Journal, store: MemoryObjects, clock: Clock, keep_s: float = 3600.0) -> Copier:
    return Copier(
        CopyTo(store), journal.directory, journal.identity, ORIGIN, keep_s, monotonic=clock,
        wall_ns=lambda: int(store.at * 1e9),
    )  # fmt: skip


def copier_of(journal: Journal) -> Copier:
    return next(iter(journal.copiers.values()))


def turns(journal: Journal, most: int = 100) -> float:
    """Until there is nothing to do at once; the pause that was asked for."""
    for _ in range(most):
        pause = copier_of(journal).turn()
        if pause > 0:
            return pause
    raise AssertionError(f"still at work after {most} turns")


def caught_up(journal: Journal, clock: Clock) -> None:
    """However long the pauses are that it asks for: until it asks for a second one in a row after all was tried."""
    pauses = 0
    for _ in range(200):
        pause = copier_of(journal).turn()
        pauses = pauses + 1 if pause else 0
        if pauses == 4:
            return
        clock.now += pause
    raise AssertionError("still at work")


def appended(journal: Journal, count: int, nbytes: int = 100) -> None:
    for n in range(count):
        assert isinstance(journal.append(f"{n:04}".encode() * (nbytes // 4)), int)


def told(future: Future[JournalFault | None]) -> JournalFault | None:
    assert future.done()
    return future.result(0)


# --- names --------------------------------------------------------------------------------------------------------


def test_a_piece_is_read_from_its_name_and_nothing_else_is_one() -> None:
    piece = Piece("ab" * 16, 0x1234, "cd" * 8, 0, PIECE_BYTES)
    assert piece_of(piece.name) == piece
    assert journal_of(piece.name) == journal_of(beat_name("ab" * 16)) == "ab" * 16
    for name in (piece.name[:-1], f"x{piece.name}", piece.name.upper(), "other/alive/x", "notes.txt"):
        assert piece_of(name) is None
    assert piece_of(f"{'ab' * 16}/{0:016x}-{'cd' * 8}/{5:012x}-{5:012x}") is None  # nothing in it
    assert journal_of("notes.txt") is None


def test_pieces_join_up_to_the_first_gap_and_a_short_object_is_none() -> None:
    def stored(start: int, end: int, nbytes: int | None = None) -> Stored:
        return Stored(Piece("ab" * 16, 7, "cd" * 8, start, end).name, end - start if nbytes is None else nbytes, end)

    ((key, copies),) = segments_of([stored(50, 90), stored(0, 50), stored(40, 60), stored(100, 120)]).items()
    assert key == (7, "cd" * 8)
    assert (copies.whole, copies.end, copies.newest) == (90, 120, 120)
    assert segments_of([stored(0, 50, nbytes=49)]) == {}


# --- copying ------------------------------------------------------------------------------------------------------


def test_what_is_durable_is_copied_byte_for_byte_across_segments(
    journal: Journal, store: MemoryObjects, clock: Clock, tmp_path: Path
) -> None:
    appended(journal, 40)
    assert turns(journal) > 0
    assert store.segments() == {}  # nothing is durable yet, and what isn't may never have been
    assert journal.sync() is None
    caught_up(journal, clock)
    assert store.segments() == on_disk(tmp_path)
    assert len(store.segments()) > 3
    assert copier_of(journal).behind_s == 0.0


def test_many_calls_wait_on_one_put(journal: Journal, store: MemoryObjects) -> None:
    appended(journal, 5)
    waiters = [journal.copied() for _ in range(50)]
    journal.sync()
    assert not any(waiter.done() for waiter in waiters)
    turns(journal)
    assert [told(waiter) for waiter in waiters] == [None] * 50
    assert sum("/alive" not in name for name in store.puts) == 1
    assert told(journal.copied()) is None  # nothing new: nothing to wait for


def test_what_nobody_waits_for_is_copied_every_second(journal: Journal, store: MemoryObjects, clock: Clock) -> None:
    appended(journal, 1)
    journal.sync()
    turns(journal)
    appended(journal, 1)
    journal.sync()
    assert 0 < turns(journal) <= 1.0
    clock.now += 1.0
    assert copier_of(journal).behind_s == 1.0
    before = len(store.kept)
    turns(journal)
    assert len(store.kept) == before + 1


def test_a_failure_is_tried_again_and_only_the_third_refuses(
    journal: Journal, store: MemoryObjects, clock: Clock
) -> None:
    appended(journal, 1)
    waiter = journal.copied()
    journal.sync()
    store.fail = OSError(errno.ENOSPC, "No space left on device")
    pauses = []
    for _ in range(3):
        assert not waiter.done()
        pauses.append(turns(journal))
        clock.now += pauses[-1]
    assert pauses == [0.1, 0.2, 0.4]
    fault = told(waiter)
    assert fault is not None
    assert fault.kind is FaultKind.COPY
    assert "No space left" in fault.detail
    assert told(journal.copied()) == fault  # at once, without another try
    assert isinstance(journal.append(b"batch calls go on"), int)
    store.fail = None
    journal.sync()
    turns(journal)
    turns(journal)
    assert told(journal.copied()) is None


def test_a_store_that_reads_back_something_else_is_not_believed(
    journal: Journal, store: MemoryObjects, clock: Clock
) -> None:
    appended(journal, 1)
    waiter = journal.copied()
    journal.sync()
    store.lies = True
    for _ in range(3):
        clock.now += turns(journal)
    fault = told(waiter)
    assert fault is not None
    assert "reads back something else" in fault.detail
    store.lies = False
    turns(journal)
    assert told(journal.copied()) is None


def test_a_store_that_hangs_is_told_of_by_another_thread(journal: Journal, store: MemoryObjects, clock: Clock) -> None:
    appended(journal, 1)
    store.hold = threading.Event()
    waiter = journal.copied()
    journal.sync()
    thread = threading.Thread(target=turns, args=(journal,))
    thread.start()
    assert store.entered.wait(10)
    clock.now += 4.0
    journal.measure()
    assert not waiter.done()
    clock.now += 1.5
    journal.measure()
    fault = told(waiter)
    assert fault is not None
    assert "no copy within 5 s" in fault.detail
    assert told(journal.copied()) == fault
    store.hold.set()
    thread.join(10)
    assert not thread.is_alive()
    turns(journal)
    assert copier_of(journal).fault is None


def test_under_constant_load_a_store_that_is_back_is_used_again(
    journal: Journal, store: MemoryObjects, clock: Clock
) -> None:
    store.fail = OSError("away")
    for _ in range(50):
        appended(journal, 1)
        journal.sync()
        clock.now += 1.0
        turns(journal)
    assert len(copier_of(journal)._marks) < 40  # two a segment at most, however long it is away
    assert copier_of(journal).fault is not None
    store.fail = None
    clock.now += 60
    real = store.put

    def put(name: str, data: bytes) -> None:
        appended(journal, 1)  # there is always more before a put ends
        journal.sync()
        real(name, data)

    store.put = put  # type: ignore[method-assign]
    for _ in range(60):
        clock.now += copier_of(journal).turn()
        if copier_of(journal).fault is None:
            break
    store.put = real  # type: ignore[method-assign]
    assert copier_of(journal).fault is None


def test_a_restart_goes_on_where_the_store_is(tmp_path: Path, store: MemoryObjects, clock: Clock) -> None:
    journal = copied_journal(tmp_path, store, clock)
    appended(journal, 12)
    journal.sync()
    turns(journal)
    appended(journal, 3)
    crash(journal)
    before = dict(store.kept)
    journal = copied_journal(tmp_path, store, clock)
    appended(journal, 1)
    journal.sync()
    clock.now += 60
    caught_up(journal, clock)
    assert before.keys() <= store.kept.keys()
    assert store.segments() == on_disk(tmp_path)
    journal.close()


def test_segments_whose_entries_are_in_the_database_are_not_copied_late(
    journal: Journal, store: MemoryObjects, clock: Clock, tmp_path: Path
) -> None:
    store.fail = OSError("away")
    appended(journal, 60)
    journal.sync()
    for _ in range(4):
        clock.now += turns(journal)
    firsts = [first for first, _ in segments_in(tmp_path)]
    write_shipped(tmp_path, firsts[3] - 1)
    store.fail = None
    caught_up(journal, clock)
    assert sorted(store.segments()) == firsts[3:]
    assert told(journal.copied()) is None


def test_copies_go_once_shipped_and_over_and_gone_here_but_never_with_a_journal_that_was_deleted(
    tmp_path: Path, store: MemoryObjects, clock: Clock
) -> None:
    journal = copied_journal(tmp_path, store, clock)
    appended(journal, 60)
    journal.sync()
    caught_up(journal, clock)
    firsts = sorted(store.segments())
    gone = segments_in(tmp_path)[:3]
    for _, path in gone:
        path.unlink()

    def looked() -> list[int]:
        clock.now += 700
        turns(journal)
        return sorted(store.segments())

    assert looked() == firsts  # not shipped: somebody deleted them
    write_shipped(tmp_path, gone[2][0])
    assert looked() == firsts  # shipped, but kept for an hour
    store.at += 3601
    # The objects' own time moves with the store's here: only the journal's clock tells that an hour is over.
    copier_of(journal)._wall_ns = lambda: int((store.at + 3601) * 1e9)
    assert looked() == firsts[2:]  # the third is not shipped whole
    journal.close()


def test_the_sidecar_says_that_it_lives_and_that_it_ended(tmp_path: Path, store: MemoryObjects, clock: Clock) -> None:
    journal = copied_journal(tmp_path, store, clock)
    turns(journal)
    name = beat_name(journal.identity)
    assert b'"stopped":false' in store.kept[name]
    del store.kept[name]
    turns(journal)
    assert name not in store.kept
    clock.now += BEAT_S
    turns(journal)
    appended(journal, 3)
    assert journal.close() is None
    assert b'"stopped":true' in store.kept[name]
    assert store.segments() == on_disk(tmp_path)


def test_an_end_without_a_copy_says_how_much_is_nowhere_else(
    tmp_path: Path, store: MemoryObjects, clock: Clock
) -> None:
    journal = copied_journal(tmp_path, store, clock)
    appended(journal, 3)
    store.fail = OSError("away")
    fault = journal.close()
    assert fault is not None
    assert "the last 4 entries were not copied" in fault.detail or "the last 3 entries" in fault.detail


def test_an_end_with_everything_in_the_database_misses_no_copy(
    tmp_path: Path, store: MemoryObjects, clock: Clock
) -> None:
    journal = copied_journal(tmp_path, store, clock)
    appended(journal, 3)
    write_shipped(tmp_path, 2)
    store.fail = OSError("away")
    assert journal.close() is None


def test_a_deleted_segment_is_copied_once_it_is_written_anew(
    journal: Journal, store: MemoryObjects, clock: Clock, tmp_path: Path
) -> None:
    appended(journal, 3)
    journal.sync()
    segments_in(tmp_path)[-1][1].unlink()
    assert turns(journal) == 0.1
    assert journal.probe() is not None
    assert journal.mend() is None
    appended(journal, 1)
    journal.sync()
    caught_up(journal, clock)
    assert store.segments() == on_disk(tmp_path)


def test_without_a_store_who_needs_a_copy_is_told_at_once(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fault = told(journal.copied())
    assert fault is not None
    assert fault.kind is FaultKind.COPY
    journal.close()


def test_with_its_threads_a_journal_copies_by_itself(tmp_path: Path, store: MemoryObjects) -> None:
    journal = Journal.open(
        tmp_path, ROOT, ORIGIN, ROOMY, random=secrets.token_bytes, wall_ns=wall_ns, monotonic=time.monotonic,
        copies={"outside": CopyTo(store)},
    )  # fmt: skip
    assert isinstance(journal, Journal)
    appended(journal, 3)
    assert journal.copied().result(30) is None
    assert journal.close() is None
    assert store.segments() == on_disk(tmp_path)


def test_a_call_waits_for_each_store_that_it_names_and_for_no_other(journal: Journal, clock: Clock) -> None:
    journal.copiers = {name: copier(journal, MemoryObjects(), clock) for name in ("a", "b", "c")}
    assert isinstance(journal.append(b"x"), int)
    first, both = journal.copied(), journal.copied(("b", "a"))
    journal.sync()
    assert not first.done()
    journal.copiers["a"].turn()
    assert first.result(0) is None
    assert not both.done()
    journal.copiers["b"].turn()
    assert both.result(0) is None
    unknown = journal.copied(("a", "nowhere")).result(0)
    assert unknown is not None
    assert "audit.journal.copy has no store named 'nowhere'" in unknown.detail


def test_the_first_store_that_fails_is_told_at_once(journal: Journal, clock: Clock) -> None:
    stores = {"a": MemoryObjects(), "b": MemoryObjects()}
    journal.copiers = {name: copier(journal, store, clock) for name, store in stores.items()}
    assert isinstance(journal.append(b"x"), int)
    both = journal.copied(("a", "b"))
    journal.sync()
    clock.now += 6
    journal.copiers["b"].watch()  # nobody has heard of it within its deadline
    told = both.result(0)
    assert told is not None
    journal.copiers["a"].turn()
    assert journal.copied(("a",)).result(0) is None

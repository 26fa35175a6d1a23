"""Keeps a journal's copies outside the node: what is durable here is put there, read back, and waited for by calls."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from audit.copies import BEAT_S, Beat, Piece, SegmentCopies, beat_name, segments_of
from audit.follow import read_shipped
from audit.objects import ObjectStore
from audit.segments import FaultKind, JournalFault, Origin, read_info, segment_path, segments_in

__all__ = ["FINISH_S", "PIECE_BYTES", "Copier", "CopyTo", "all_of"]

PIECE_BYTES: Final = 8 * 2**20  # of one object at most
FINISH_S: Final = 10.0  # at the end of a sidecar, for what is not copied yet
_TRIES: Final = 3  # failures in a row that make calls be refused, not only wait
_PAUSE_S: Final = 0.1  # before the second try, doubled up to:
_PAUSE_MOST_S: Final = 30.0
_PRUNE_S: Final = 600.0  # between two looks at which copies may go
_MARKS: Final = 8192  # places that somebody may wait for; beyond it the last one moves on
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class CopyTo:
    """Where, and in what time (seconds): ``every_s`` for what nobody waits for, ``deadline_s`` for who waits."""

    store: ObjectStore
    every_s: float = 1.0
    deadline_s: float = 5.0


@dataclass(slots=True)
class _Mark:
    """Everything up to sequence ``through`` lies before byte ``nbytes`` of segment ``first``; since ``at``."""

    through: int
    first: int
    nbytes: int
    at: float


@dataclass(frozen=True, slots=True)
class _Work:
    piece: Piece
    path: Path
    last: bool  # nothing waits behind it


class Copier:
    """One journal's. Its thread alone speaks to the store; ``watch`` is called by another, which sees that it hangs."""

    def __init__(
        self,
        to: CopyTo,
        directory: Path,
        journal: str,
        origin: Origin,
        keep_s: float,
        *,
        monotonic: Callable[[], float],
        wall_ns: Callable[[], int],
    ) -> None:
        self._to, self._directory, self._journal, self._origin, self._keep_s = to, directory, journal, origin, keep_s
        self._monotonic, self._wall_ns = monotonic, wall_ns
        self._lock = threading.Lock()
        self._waiters: list[tuple[int, float, Future[JournalFault | None]]] = []
        self._marks: deque[_Mark] = deque()
        self._through = -1  # the last sequence that is copied
        self._reached: tuple[int, int] | None = None  # what is durable here: (segment's first sequence, bytes)
        self._known: dict[tuple[int, str], int] | None = None  # bytes copied; None: the store was not asked yet
        self._ids: dict[int, str] = {}
        self._failures = 0
        self._fault: JournalFault | None = None
        self._again = self._beat_at = self._prune_at = self._put_at = float("-inf")
        self._end_at = float("inf")
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # --- what calls ask -------------------------------------------------------------------------------------------

    @property
    def fault(self) -> JournalFault | None:
        """Why no call may count on a copy now; no system call."""
        return self._fault

    @property
    def where(self) -> str:
        return self._to.store.where

    @property
    def behind_s(self) -> float:
        """For how long the oldest of what isn't copied waits (seconds)."""
        with self._lock:
            return self._monotonic() - self._marks[0].at if self._marks else 0.0

    def wait(self, through: int) -> Future[JournalFault | None]:
        """Done once ``through`` is copied: None, or why it isn't; within ``deadline_s`` and a second."""
        future: Future[JournalFault | None] = Future()
        with self._lock:
            if through <= self._through:
                future.set_result(None)
            elif self._fault is not None:
                future.set_result(self._fault)
            else:
                self._waiters.append((through, self._monotonic(), future))
        self._wake.set()
        return future

    def after(self, synced: Future[JournalFault | None], through: int) -> Future[JournalFault | None]:
        """As ``wait``, once ``synced`` says that it is durable here."""
        answer: Future[JournalFault | None] = Future()

        def tell(done: Future[JournalFault | None]) -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(done.result())

        def then(done: Future[JournalFault | None]) -> None:
            (done if done.result() is not None else self.wait(through)).add_done_callback(tell)

        synced.add_done_callback(then)
        return answer

    # --- what the journal tells ------------------------------------------------------------------------------------

    def reached(self, through: int, first: int, nbytes: int) -> None:
        """All up to ``through`` is durable on this disk: ``nbytes`` of segment ``first``, and all before it."""
        with self._lock:
            if self._reached == (first, nbytes):
                return
            self._reached = first, nbytes
            marks = self._marks
            many = len(marks) >= (_MARKS if self._fault is None else 2)
            # The first of two stays where it is, so that what is being copied now reaches it.
            if many and marks[-1].first == marks[-2].first == first:
                marks[-1].through, marks[-1].nbytes = through, nbytes
            else:
                marks.append(_Mark(through, first, nbytes, self._monotonic()))

    def watch(self) -> None:
        """Who has waited long enough is told, whatever the store's thread is doing."""
        now = self._monotonic()
        with self._lock:
            late = any(now - since > self._to.deadline_s for _, since, _ in self._waiters)
            if late and self._fault is None:
                self._fault = self._words(f"no copy within {self._to.deadline_s:g} s")
            fault = self._fault
        if late:
            self._tell(fault)

    # --- copying --------------------------------------------------------------------------------------------------

    def turn(self) -> float:
        """One piece of work; seconds until there may be more (0: at once)."""
        now = self._monotonic()
        if now < self._again:
            return self._again - now
        try:
            work = self._next(now)
            if work is None:
                return _LOOK_S
            wait = self._put_at + self._to.every_s - now
            if wait > 0 and work.last and not self._waiters and not self._stop.is_set():
                return wait
            self._copy(work)
        except (OSError, ValueError) as fault:
            return self._failed(fault)
        self._copied(work.piece)
        return 0.0

    def _next(self, now: float) -> _Work | None:
        """Raises OSError."""
        if self._known is None:
            self._known = {key: each.whole for key, each in self._stored().items()}
        if now - self._beat_at >= BEAT_S:
            self._beat()
            self._beat_at = now
        work = self._look(self._known)
        if work is None and now - self._prune_at >= _PRUNE_S:
            self._prune_at = now
            self._prune()
        return work

    def _look(self, known: dict[tuple[int, str], int]) -> _Work | None:
        """The oldest bytes that are durable here, not in the database, and not copied yet."""
        reached = self._reached
        if reached is None:
            return None
        shipped, found = read_shipped(self._directory), segments_in(self._directory)
        for place, (first, path) in enumerate(found):
            following = found[place + 1][0] if place + 1 < len(found) else None
            if first > reached[0]:
                break
            if first < reached[0] and following is not None and following <= shipped + 1:
                continue
            # One that can't be read is damaged or gone: tried again until it is written anew, or in the database.
            segment = self._segment(first, path)
            end = reached[1] if first == reached[0] else path.stat().st_size
            start = known.get((first, segment), 0)
            if start < end:
                piece = Piece(self._journal, first, segment, start, min(end, start + PIECE_BYTES))
                return _Work(piece, path, last=(first, piece.end) == reached)
        if shipped < self._last and all(first != reached[0] for first, _ in found):
            raise OSError(f"{segment_path(self._directory, reached[0])}: is not there")
        return None

    @property
    def _last(self) -> int:
        """The last sequence that there is something to copy of; -1: all is copied."""
        with self._lock:
            return self._marks[-1].through if self._marks else -1

    def _segment(self, first: int, path: Path) -> str:
        if first not in self._ids:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                header = read_info(descriptor)
            finally:
                os.close(descriptor)
            if header is None:
                raise OSError(f"{path}: its header can't be read")
            self._ids[first] = header[0].id[:8].hex()
        return self._ids[first]

    def _copy(self, work: _Work) -> None:
        """Put and read back: that a store answers says nothing of what it holds. Raises OSError."""
        piece, store = work.piece, self._to.store
        with work.path.open("rb") as file:
            data = os.pread(file.fileno(), piece.nbytes, piece.start)
        if len(data) != piece.nbytes:
            raise OSError(f"{work.path}: {len(data)} of {piece.nbytes} bytes at {piece.start} can be read")
        store.put(piece.name, data)
        if store.get(piece.name) != data:
            raise OSError(f"{store.where}: {piece.name} reads back something else than was put there")

    def _copied(self, piece: Piece) -> None:
        assert self._known is not None
        self._known[piece.first, piece.segment] = piece.end
        now = self._monotonic()
        self._put_at, self._failures = now, 0
        with self._lock:
            while self._marks and (self._marks[0].first, self._marks[0].nbytes) <= (piece.first, piece.end):
                self._through = max(self._through, self._marks.popleft().through)
            # Whoever comes now would be copied in time again.
            if not self._marks or now - self._marks[0].at < self._to.deadline_s / 2:
                self._fault = None
        self._tell(None)

    def _failed(self, fault: Exception) -> float:
        self._failures += 1
        pause = min(_PAUSE_S * 2.0 ** min(self._failures - 1, 20), _PAUSE_MOST_S)
        self._again = self._monotonic() + pause
        if self._failures >= _TRIES:
            words = str(fault) if isinstance(fault, OSError) and fault.errno is None else f"{self.where}: {fault}"
            with self._lock:
                self._fault = self._words(words)
            self._tell(self._fault)
        return pause

    def _words(self, words: str) -> JournalFault:
        return JournalFault(FaultKind.COPY, words if self.where in words else f"{self.where}: {words}")

    def _tell(self, fault: JournalFault | None) -> None:
        """Answer those who are copied; with ``fault``, all."""
        with self._lock:
            done = [each for each in self._waiters if fault is not None or each[0] <= self._through]
            self._waiters = [each for each in self._waiters if fault is None and each[0] > self._through]
            copied = self._through
        for through, _, future in done:
            if future.set_running_or_notify_cancel():
                future.set_result(None if through <= copied else fault)

    # --- what the store holds -------------------------------------------------------------------------------------

    def _stored(self) -> dict[tuple[int, str], SegmentCopies]:
        return dict(segments_of(self._to.store.list(self._journal)))

    def _beat(self, *, stopped: bool = False) -> None:
        origin = self._origin
        beat = Beat(origin.sidecar, origin.region, origin.jurisdiction, self._wall_ns() / 1e9, stopped)
        self._to.store.put(beat_name(self._journal), msgspec.json.encode(beat))

    def _prune(self) -> None:
        """Copies of segments that are not here any more go once all of it is in the database and ``keep_s`` is over."""
        shipped, here = read_shipped(self._directory), {first for first, _ in segments_in(self._directory)}
        before, copies = self._wall_ns() / 1e9 - self._keep_s, list(self._stored().values())
        for old, after in itertools.pairwise(copies):
            if old.first not in here and after.first <= shipped + 1 and old.newest < before:
                for piece in old.pieces:
                    self._to.store.delete(piece.name)
                assert self._known is not None
                self._known.pop((old.first, old.segment), None)
                self._ids.pop(old.first, None)

    # --- its thread -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="journal-copy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = self._guarded()
            if pause > 0:
                self._wake.wait(min(pause, _LOOK_S))
                self._wake.clear()
        self._rest(FINISH_S)

    def _guarded(self) -> float:
        try:
            return self.turn()
        except Exception as bug:  # noqa: BLE001 — without its thread calls would wait in vain: closed, not silent
            self._failures = max(self._failures, _TRIES)
            return self._failed(bug)

    def _rest(self, seconds: float) -> None:
        """At the end: all that is left, patiently for a while; what isn't copied then stays where it is."""
        until, self._again = self._monotonic() + seconds, float("-inf")
        self._wake.clear()
        while (pause := self._guarded()) == 0.0 or (self._failures and self._monotonic() + pause < until):
            self._wake.wait(pause)
        try:
            self._beat(stopped=True)
        except (OSError, ValueError):
            return

    def end(self) -> None:
        """Nothing more will be durable: copy what is left, and end."""
        self._end_at = min(self._end_at, self._monotonic() + FINISH_S)
        self._stop.set()
        self._wake.set()

    def finish(self) -> JournalFault | None:
        """``end``, and wait for it, ``FINISH_S`` seconds at most; a fault says that something was not copied."""
        self.end()
        seconds = max(self._end_at - self._monotonic(), 0.0)
        if self._thread is not None:
            self._thread.join(seconds)
        else:
            self._rest(0)
        with self._lock:
            copied, fault = self._through, self._fault
        left = self._last - max(copied, read_shipped(self._directory))
        self._tell(fault or self._words("the journal is closed"))
        if left <= 0:
            return None
        why = "" if fault is None else f" ({fault.detail})"
        return self._words(f"the last {left} entries were not copied{why}")


def all_of(copies: Sequence[Future[JournalFault | None]]) -> Future[JournalFault | None]:
    """Done once all are: with the first fault at once."""
    if len(copies) == 1:
        return copies[0]
    answer: Future[JournalFault | None] = Future()
    lock, left, told = threading.Lock(), len(copies), False

    def tell(done: Future[JournalFault | None]) -> None:
        nonlocal left, told
        fault = done.result()
        with lock:
            left -= 1
            ends = not told and (fault is not None or left == 0)
            told = told or ends
        if ends and answer.set_running_or_notify_cancel():
            answer.set_result(fault)

    for each in copies:
        each.add_done_callback(tell)
    return answer

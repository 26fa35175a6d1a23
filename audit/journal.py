"""The journal: an append-only, sealed log on local disk that one process writes and proves by reading back."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from audit.copying import Copier, CopyTo, all_of
from audit.files import OS_FILES, Files
from audit.follow import Follower, read_identity, read_shipped, write_identity, write_shipped
from audit.journal_bounds import SYNC_DEADLINE_S, Bounds, State
from audit.journal_threads import Ticker
from audit.keeping import first_astray, found
from audit.mending import Mended, mend_all, settle_in
from audit.pressure import Pressure
from audit.recovery import OpenCall, Recovery, recover
from audit.releasing import Releasing
from audit.rootkeys import Root
from audit.scrub import Scrub
from audit.seal import Random
from audit.segments import (
    FaultKind,
    JournalFault,
    Origin,
    SegmentInfo,
)
from audit.writing import lock_directory

__all__ = [
    "SYNC_DEADLINE_S",
    "Bounds",
    "FaultKind",
    "Follower",
    "Journal",
    "JournalFault",
    "OpenCall",
    "Origin",
    "Pressure",
    "Recovery",
    "SegmentInfo",
    "State",
    "close_all",
    "write_shipped",
]

_NO_COPY: Final = JournalFault(FaultKind.COPY, "audit.journal.copy names nowhere to copy to")
_MENDED_MOST: Final = 100  # faults put right that nobody has been told of; the oldest go first


class Journal(Releasing):
    """One process's journal. ``append`` may be called from several threads; what is slow has threads of its own."""

    def __init__(
        self,
        directory: Path,
        root: Root,
        origin: Origin,
        bounds: Bounds,
        *,
        identity: str,
        recovery: Recovery,
        lock: int,
        random: Random,
        wall_ns: Callable[[], int],
        files: Files,
        copiers: Mapping[str, Copier] | None = None,
        beside: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(
            directory, root, origin, bounds, identity=identity, recovery=recovery, random=random, wall_ns=wall_ns,
            files=files, beside=beside,
        )  # fmt: skip
        self._lock_file = lock
        self._scrub = Scrub(files)
        self._hurt: set[int] = set()  # first sequences of segments that don't read back
        self._mended: list[Mended] = []
        self._ticker = Ticker(self)
        self.copiers = copiers or {}

    @classmethod
    def open(
        cls,
        directory: Path,
        root: Root,
        origin: Origin,
        bounds: Bounds,
        *,
        random: Random,
        wall_ns: Callable[[], int],
        monotonic: Callable[[], float] | None,
        files: Files = OS_FILES,
        copies: Mapping[str, CopyTo] | None = None,
        beside: Callable[[], int] = lambda: 0,
    ) -> Journal | JournalFault:
        """Lock, recover, and go on in a new segment. ``monotonic`` None: no thread; the caller calls ``tick``.

        ``copies``: where what is durable here is copied to, by name, each by a thread of its own. ``beside``: bytes of
        the other journals on this volume (``Bounds.sharers``).
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = lock_directory(directory)
        except OSError as fault:
            return JournalFault(FaultKind.IO, f"{directory}: {fault.strerror}")
        if isinstance(lock, JournalFault):
            return lock
        try:
            recovery = recover(files, directory, root, read_shipped(directory), wall_ns())
            if isinstance(recovery, JournalFault):
                os.close(lock)
                return recovery
            identity = read_identity(directory)
            if not identity:
                identity = random(16).hex()
                write_identity(directory, identity)
            clock = monotonic or time.monotonic
            copiers = {
                name: Copier(each, directory, identity, origin, bounds.keep_s, monotonic=clock, wall_ns=wall_ns)
                for name, each in (copies or {}).items()
            }
            journal = cls(
                directory,
                root,
                origin,
                bounds,
                identity=identity,
                recovery=recovery,
                lock=lock,
                random=random,
                wall_ns=wall_ns,
                files=files,
                copiers=copiers,
                beside=beside,
            )
            journal._begin()
        except OSError as fault:
            os.close(lock)
            return JournalFault(FaultKind.IO, f"{directory}: {fault.strerror}")
        if monotonic is not None:
            journal._ticker.start(monotonic)
            for copier in copiers.values():
                copier.start()
        return journal

    def _begin(self) -> None:
        self._closed = found(self._files, self.directory)
        self._closed_bytes = sum(segment.nbytes for segment in self._closed.values())
        self.measure()

    # --- durability -----------------------------------------------------------------------------------------------

    def synced(self, sequence: int | None = None) -> Future[JournalFault | None]:
        """Done once everything up to ``sequence`` (default: all so far) outlives power: None, or why it doesn't."""
        with self._lock:
            future = self._commit.wait(self._next - 1 if sequence is None else sequence, self.fault)
        if not future.done():
            self._ticker.wake()
        return future

    def copied(self, stores: Sequence[str] = ("",)) -> Future[JournalFault | None]:
        """Done once everything so far is durable here and in these stores outside the node: None, or why it isn't.

        "" is the first one.
        """
        copiers = [self._copier(name) for name in stores]
        for each in copiers:
            fault = each if isinstance(each, JournalFault) else each.fault
            if fault is not None:
                told: Future[JournalFault | None] = Future()
                told.set_result(fault)
                return told
        with self._lock:
            through = self._next - 1
        synced = self.synced(through)
        return all_of([each.after(synced, through) for each in copiers if isinstance(each, Copier)])

    def _copier(self, name: str) -> Copier | JournalFault:
        if not self.copiers:
            return _NO_COPY
        found = self.copiers.get(name) if name else next(iter(self.copiers.values()))
        return found or JournalFault(FaultKind.COPY, f"audit.journal.copy has no store named {name!r}")

    def sync(self) -> JournalFault | None:
        """Make everything written so far durable, and tell who waits."""
        with self._lock:
            through, segment, fault = self._next - 1, self._segment, self._fault
            nbytes = segment.nbytes if segment is not None and segment.index else 0
        if fault is None:
            fault = self._commit.run(through, segment)
            if fault is not None:
                with self._lock:
                    fault = self._fail(fault)
            elif segment is not None and nbytes:
                for copier in self.copiers.values():
                    copier.reached(through, segment.first, nbytes)
        self._commit.tell(fault)
        return fault

    # --- read-back ------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """As ``Releasing``; and who has waited long enough for a copy is told."""
        for copier in self.copiers.values():
            copier.watch()
        super().measure()

    def probe(self) -> JournalFault | None:
        """Whether what was written is still there, under its name, and reads back; part of it again each time."""
        with self._lock:
            segment, closed = self._segment, list(self._closed.values())
            seen = (segment.nbytes, segment.last) if segment is not None else (0, 0)
            whole = (segment.nbytes, segment.checksum) if segment is not None else (0, 0)
        fault = first_astray(self._files, self.directory, self._lock_file, closed)
        if fault is None and segment is not None:
            fault = segment.read_back(self._files, *seen) or self._scrub.go_on(segment, *whole)
            with self._lock:
                # One that was left meanwhile may be closed, or removed for being empty: that shows later.
                if fault is not None and self._segment is not segment:
                    fault = None
        with self._lock:
            gone = fault is not None and any(self._closed.get(each.first) is not each for each in closed)
            if fault is None or gone:  # it was released, or mended, between the two looks
                return None
            if segment is not None and fault.kind in (FaultKind.UNREADABLE, FaultKind.DAMAGED, FaultKind.TRUNCATED):
                self._hurt.add(segment.first)
            return self._fail(fault)

    # --- putting right ----------------------------------------------------------------------------------------------

    @property
    def broken(self) -> bool:
        """Whether ``mend`` may help."""
        return self._fault is not None and self._fault.kind not in (FaultKind.CLOSED, FaultKind.BUG)

    def mend(self) -> JournalFault | None:
        """Rescue what can be read, name what is lost, and go on in a new segment: None, or why that must wait.

        Until it is done everything is refused. Called by the thread that syncs, so never beside an fsync.
        """
        with self._turn:
            return self._mend()

    def _mend(self) -> JournalFault | None:
        try:
            self._lock_file = settle_in(self._files, self.directory, self._lock_file, self.identity)
            with self._lock:
                if self._segment is not None:
                    with contextlib.suppress(FileNotFoundError):  # an empty one, gone already
                        self._retire(self._segment)
                closed, doubtful = dict(self._closed), set(self._commit.doubtful)
            done = mend_all(self._files, closed, self._next, self._root, doubtful=doubtful, hurt=self._hurt)
            self._files.sync_directory(self.directory)
            with self._lock:
                for first in closed.keys() - done.closed.keys():
                    self._shares.gone(closed[first].tenants)
                self._closed = done.closed
                self._closed_bytes = sum(segment.nbytes for segment in done.closed.values())
                self._commit.doubtful.clear()
                begun = self._rotate()
            if isinstance(begun, JournalFault):
                return begun
            self._files.fsync(begun.descriptor)  # nobody writes to it yet: everything is refused
            self._files.sync_directory(self.directory)
        except OSError as cause:
            return JournalFault(FaultKind.IO, f"{self.directory}: mending: {cause.strerror}")
        fault = begun.read_back(self._files, begun.nbytes, 0)
        if fault is not None:
            return fault
        shipped = read_shipped(self.directory)
        lost = tuple((max(first, shipped + 1), last) for first, last in done.lost if last > shipped)
        with self._lock:
            assert self._fault is not None
            self._mended = [*self._mended[-_MENDED_MOST:], Mended(self._fault, done.rescued, lost)]
            self._fault = None
            self._hurt.clear()
        return None

    def mended(self) -> list[Mended]:
        """Faults that were put right and are not told yet, oldest first; ``told`` forgets one."""
        return list(self._mended)

    def told(self, mended: Mended) -> None:
        with self._lock:
            self._mended.remove(mended)

    def look(self) -> None:
        """Read back, close a segment that is old enough, and release what may go."""
        if self.probe() is None and self._fault is None:
            self._turn_over()
            self.release()

    def _turn_over(self) -> None:
        """Nothing leaves while it is written to, and where few call it would take months to fill."""
        with self._lock:
            segment = self._segment
            if segment is None or not segment.index or self._fault is not None:
                return
            if abs(self._wall_ns() - self._begun_ns) >= self._bounds.segment_s * 1e9:  # a clock may be set back
                self._rotate()

    # --- what its threads ask ---------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """What is due at ``now`` (monotonic seconds), for one that was opened without threads."""
        self._ticker.tick(now)

    @property
    def waited_for(self) -> bool:
        return self._commit.waited_for

    def stall(self, seconds: float | None) -> None:
        """Tell who waits; they are refused, whatever the disk does later."""
        if seconds is None:
            self._stalled = None
            return
        fault = JournalFault(FaultKind.IO, f"{self.directory}: fsync has not answered for {seconds:.0f} s")
        with self._lock:
            self._stalled = fault if self._ticker.syncing else None
        self._commit.tell(fault)

    def bug(self, fault: Exception) -> None:
        """A thread of its own failed: closed, not silent."""
        with self._lock:
            self._fail(JournalFault(FaultKind.BUG, f"{self.directory}: {fault!r}"))
        self.sync()

    def close(self) -> JournalFault | None:
        """Make all durable, here and where it is copied to, stop the threads, let the lock go; once.

        A fault says what could not be made durable, and of each store what was not copied.
        """
        if self._ticker.stopped:
            return None
        hangs = self._ticker.stop()
        if hangs:  # in the kernel: the lock goes when the process does
            return JournalFault(FaultKind.IO, f"{self.directory}: {hangs} has not ended; fsync hangs")
        synced = self.sync()
        for copier in self.copiers.values():  # beside each other
            copier.end()
        fault = _joined([synced, *(copier.finish() for copier in self.copiers.values())])
        with self._lock:
            segment, self._segment = self._segment, None
            self._fail(JournalFault(FaultKind.CLOSED, f"{self.directory}: the journal is closed"))
            with contextlib.suppress(OSError):
                if segment is not None:
                    self._files.close(segment.descriptor)
                self._commit.close()
            for held in self._closed.values():
                held.let_go(self._files)
        os.close(self._lock_file)
        return fault


def _joined(faults: Iterable[JournalFault | None]) -> JournalFault | None:
    """The first, with the words of all."""
    told = [fault for fault in faults if fault is not None]
    return replace(told[0], detail="; ".join(fault.detail for fault in told)) if told else None


def close_all(journals: Collection[Journal]) -> list[JournalFault]:
    """``Journal.close`` of each, beside each other: what one can't make durable or copy costs no other its time."""
    with ThreadPoolExecutor(len(journals), "journal-close") as pool:
        return [fault for fault in pool.map(Journal.close, journals) if fault is not None]

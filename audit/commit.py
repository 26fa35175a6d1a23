"""Group commit: one fsync for all who wait, files before the names of new ones, and never a second try as a success."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from pathlib import Path

from audit.files import Files
from audit.segments import FaultKind, JournalFault
from audit.writing import LiveSegment

__all__ = ["GroupCommit"]


class GroupCommit:
    """What of one journal is durable, and who waits for it. ``lock`` is the journal's."""

    def __init__(self, directory: Path, files: Files, lock: threading.Lock, *, synced: int) -> None:
        self._directory, self._files, self._lock = directory, files, lock
        self.synced = synced  # the last sequence that outlives power
        self._waiters: list[tuple[int, Future[JournalFault | None]]] = []
        self._left: list[LiveSegment] = []  # written to the end, not yet synced and closed
        self.doubtful: set[int] = set()  # first sequences of segments that an fsync failed for: never synced again

    @property
    def waited_for(self) -> bool:
        return bool(self._waiters)

    @property
    def unsynced(self) -> set[int]:
        """First sequences of the segments that were left and aren't durable yet."""
        return {segment.first for segment in self._left}

    def leave(self, segment: LiveSegment) -> None:
        """Sync and close this segment, which is written no more, before anything after it counts. Under the lock."""
        self._left.append(segment)

    def wait(self, through: int, fault: JournalFault | None) -> Future[JournalFault | None]:
        """Done once ``through`` is durable; at once with ``fault``, where there is one. Under the lock."""
        future: Future[JournalFault | None] = Future()
        if through <= self.synced:
            future.set_result(None)
        elif fault is not None:
            future.set_result(fault)
        else:
            self._waiters.append((through, future))
        return future

    def run(self, through: int, segment: LiveSegment | None) -> JournalFault | None:
        """Make everything up to ``through`` durable; ``segment`` is the one that is written. Not under the lock."""
        with self._lock:
            left, self._left = self._left, []
        if through <= self.synced and not left:
            return None
        try:
            for old in left:
                self._files.fsync(old.descriptor)
            if segment is not None and segment not in left:
                self._current(segment)
            if any(not old.listed for old in (*left, *([segment] if segment is not None else []))):
                self._files.sync_directory(self._directory)
                if segment is not None:
                    segment.listed = True
        except OSError as cause:
            # Pages that failed to reach the disk are marked clean: a second fsync would lie (fsyncgate).
            with self._lock:
                self.doubtful.update(old.first for old in (*left, *([segment] if segment is not None else [])))
            return JournalFault(FaultKind.IO, f"{self._directory}: fsync: {cause.strerror}")
        finally:
            for old in left:
                with contextlib.suppress(OSError):  # what it could still say is in the fsync's answer
                    self._files.close(old.descriptor)
        self.synced = max(self.synced, through)
        return None

    def _current(self, segment: LiveSegment) -> None:
        try:
            self._files.fsync(segment.descriptor)
        except OSError:
            if not segment.removed:  # meanwhile, because nothing was in it
                raise

    def tell(self, fault: JournalFault | None) -> None:
        """Answer those whose entries are durable; with ``fault``, all of them."""
        with self._lock:
            done = [waiter for waiter in self._waiters if fault is not None or waiter[0] <= self.synced]
            self._waiters = [waiter for waiter in self._waiters if fault is None and waiter[0] > self.synced]
        for _, future in done:
            if future.set_running_or_notify_cancel():
                future.set_result(fault)

    def close(self) -> None:
        """Let go of what could not be synced. Under the lock."""
        for segment in self._left:
            self._files.close(segment.descriptor)
        self._left = []

"""A journal's space: how much is left, and which segments may go because nobody needs them any more."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

from audit.appending import Appending
from audit.files import Files
from audit.follow import read_shipped
from audit.journal_bounds import Bounds
from audit.keeping import Leaving, next_to_leave
from audit.pressure import Pressure
from audit.recovery import Recovery
from audit.rootkeys import Root
from audit.seal import Random
from audit.segments import FaultKind, JournalFault, Origin

__all__ = ["Releasing"]


class Releasing(Appending):
    """Segments that are let go; ``audit.journal.Journal`` makes those that stay durable and proves them."""

    def __init__(
        self,
        directory: Path,
        root: Root,
        origin: Origin,
        bounds: Bounds,
        *,
        identity: str,
        recovery: Recovery,
        random: Random,
        wall_ns: Callable[[], int],
        files: Files,
        beside: Callable[[], int],
    ) -> None:
        """``beside``: bytes of the other journals on this volume."""
        super().__init__(
            directory, root, origin, bounds, identity=identity, recovery=recovery, random=random, wall_ns=wall_ns,
            files=files,
        )  # fmt: skip
        self._beside = beside
        self._turn = threading.Lock()  # whose it is to move or remove closed segments: a mending's, or a release's
        self.released_early = 0  # segments that went before ``keep_s``, for space

    def measure(self) -> None:
        """How many bytes may still be written before new calls are refused."""
        try:
            free = self._files.free(self.directory)
        except OSError as cause:
            with self._lock:
                self._fail(JournalFault(FaultKind.IO, f"{self.directory}: {cause.strerror}"))
            return
        bounds, beside = self._bounds, self._beside()
        with self._lock:
            nbytes, usable = self.nbytes, max(free - bounds.min_free, 0)
            # An equal part of the volume, so that one that is never emptied leaves the others theirs.
            capacity = min(bounds.max_bytes, (nbytes + beside + usable) // bounds.sharers)
            was_full = self._is_full
            self._free = free
            self._headroom = min(free - bounds.min_free, capacity - nbytes)
            self._overdrawn = self._overdrawn if self._headroom <= 0 else 0
            self._starved = self._starved and self._headroom <= 0
            self._was_full = was_full and self._headroom <= min(bounds.segment_bytes, capacity // 20)
            settled = sum(segment.nbytes for segment in self._closed.values() if not segment.owed)
            step = self._ladder.measure(nbytes - settled, capacity, full=self._is_full)
            self._shares.measure(capacity, tight=step >= Pressure.SHED)

    def release(self) -> int:
        """Remove segments that are shipped, older than ``keep_s`` and without an open call; how many went.

        Where the journal is nearly full, shipped ones go before their time: refusing every call for the sake of copies
        that the database already has would be the wrong way round. Nothing goes while the journal is mended.
        """
        if not self._turn.acquire(blocking=False):
            return 0
        try:
            removed = self._release()
        finally:
            self._turn.release()
        if removed:
            self.measure()
        return removed

    def _release(self) -> int:
        shipped, removed = read_shipped(self.directory), 0
        self._account(shipped)
        while self._fault is None and (leaving := self._leaving(shipped)) is not None:
            try:
                leaving.segment.let_go(self._files)
                self._files.unlink(leaving.segment.path)
                self._files.sync_directory(self.directory)
            except OSError as cause:
                with self._lock:
                    words = f"{leaving.segment.path}: releasing it: {cause.strerror}"
                    self._fail(JournalFault(FaultKind.IO, words))
                return removed
            with self._lock:
                self._closed_bytes -= leaving.segment.nbytes
            self.released_early += leaving.early
            removed += 1
        return removed

    def _account(self, shipped: int) -> None:
        """What the database has is nobody's burden any more, though it may be kept for a while."""
        with self._lock:
            needed = min(shipped + 1, next(iter(self._open.values()), self._next))
            following = self._segment.first if self._segment is not None else self._next
            for first, after in itertools.pairwise([*self._closed, following]):
                segment = self._closed[first]
                if after > needed:
                    return
                if segment.owed:
                    segment.owed = False
                    self._shares.gone(segment.tenants)

    def _leaving(self, shipped: int) -> Leaving | None:
        """The oldest segment that may go; taken off the list of those that must be there."""
        with self._lock:
            leaving = next_to_leave(
                self._closed,
                self._segment.first if self._segment is not None else self._next,
                needed=min(shipped + 1, next(iter(self._open.values()), self._next)),
                busy=self._commit.unsynced,
                before_ns=self._wall_ns() - int(self._bounds.keep_s * 1e9),
                crowded=self._headroom <= 2 * self._bounds.segment_bytes or self._starved,
            )
            if leaving is not None:
                del self._closed[leaving.segment.first]
            return leaving

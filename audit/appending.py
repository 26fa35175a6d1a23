"""The part of a journal that every call meets: whether it takes an entry, and the segment that takes it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from audit.commit import GroupCommit
from audit.files import Files
from audit.journal_bounds import Bounds, State
from audit.keeping import HELD, Closed
from audit.pressure import Ladder, Pressure, Shares
from audit.recovery import Recovery
from audit.rootkeys import Root
from audit.seal import Random
from audit.segments import (
    MAX_ENTRY_BYTES,
    FaultKind,
    JournalFault,
    Origin,
    encode_frame,
    new_segment,
    segment_path,
)
from audit.writing import SPACE, LiveSegment, begin

__all__ = ["Appending"]

HELD_MAX: Final = 65_536  # calls that hold something after their end; more are forgotten by the next recovery


class Appending:
    """Segments written one after another, under one lock that no I/O but the one write of an entry is done under.

    ``audit.journal.Journal`` makes it durable, proves it by reading back, mends it and lets segments go.
    """

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
    ) -> None:
        self.directory, self.identity, self.recovery = directory, identity, recovery
        self._root, self._origin, self._bounds = root, origin, bounds
        self._random, self._wall_ns, self._files = random, wall_ns, files
        self._lock = threading.Lock()
        self._segment: LiveSegment | None = None
        self._begun_ns = 0  # when it was (wall clock)
        self._next = recovery.next_sequence
        self._commit = GroupCommit(directory, files, self._lock, synced=self._next - 1)
        self._open: dict[str, int] = {call.call_id: call.sequence for call in recovery.open_calls}
        # Closed, but holding something at Triton until (wall ns): the next recovery must find both of their entries.
        self._held: dict[str, tuple[int, int]] = {
            each.call_id: (each.sequence, each.holds_until_ns) for each in recovery.past if each.holds_until_ns
        }
        self._fault: JournalFault | None = None
        self._starved = False  # the last write met a full disk
        self._stalled: JournalFault | None = None  # passes when the sync that hangs has ended
        self._closed_bytes = 0
        self._closed: dict[int, Closed] = {}  # by first sequence, in order
        self._ladder = Ladder(bounds.warn_at, bounds.shed_at)
        self._shares = Shares(bounds.tenant_share)
        self._was_full = False  # it is left later than it is entered
        self._headroom = 0  # bytes until new calls are refused
        self._free = 1 << 62  # bytes on the volume, as measured last, less what was written since
        self._overdrawn = 0  # bytes written since there was no headroom left

    # --- what every call asks -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Whether a new call may be admitted; no system call."""
        if self._fault is not None or self._stalled is not None:
            return State.FAULTED
        return State.FULL if self._is_full else State.OK

    @property
    def _is_full(self) -> bool:
        return self._headroom <= 0 or self._starved or self._was_full

    @property
    def pressure(self) -> Pressure:
        """The step of the ladder, as it was measured last; no system call."""
        return self._ladder.step

    @property
    def used(self) -> float:
        """The part of the journal's capacity that can't be freed yet."""
        return self._ladder.used

    def over(self, tenant: str) -> bool:
        """Whether a tenant holds more of the journal than its share."""
        return self._shares.over(tenant)

    @property
    def most_held(self) -> tuple[str, int]:
        """The tenant that holds the most of what is not in the database yet, and how many bytes."""
        with self._lock:
            return self._shares.most_held

    @property
    def fault(self) -> JournalFault | None:
        """Why the journal is FAULTED."""
        return self._fault or self._stalled

    @property
    def next_sequence(self) -> int:
        return self._next

    @property
    def nbytes(self) -> int:
        """Of all segments."""
        segment = self._segment
        return self._closed_bytes + (segment.nbytes if segment is not None else 0)

    @property
    def limit(self) -> int:
        """The bytes that it may take."""
        return self._bounds.max_bytes

    @property
    def open_calls(self) -> int:
        return len(self._open)

    # --- writing --------------------------------------------------------------------------------------------------

    def append(
        self,
        entry: bytes,
        *,
        opens: str = "",
        closes: str = "",
        reserve: bool = False,
        tenant: str = "",
        until_ns: int = 0,
    ) -> int | JournalFault:
        """Write one entry; its sequence, or why nothing was written.

        ``opens`` and ``closes`` name the call whose first or last entry it is: a segment stays while a call in it is
        open. ``reserve``: an entry of a call that was admitted, which may use the last of the space. ``until_ns``: the
        call that is closed holds something at Triton until then (wall clock).
        """
        if len(entry) > MAX_ENTRY_BYTES:
            return JournalFault(FaultKind.TOO_LARGE, f"an entry of {len(entry)} bytes is over {MAX_ENTRY_BYTES}")
        with self._lock:
            # Nearly never, so it is only then asked of what kind it is.
            amiss = self._fault is not None or self._stalled is not None or self._starved or self._was_full
            if amiss or self._headroom <= 0:
                refusal = self._refusal(reserve=reserve)
                if refusal is not None:
                    return refusal
            segment = self._segment
            if segment is None or (segment.nbytes + len(entry) > self._bounds.segment_bytes and segment.index):
                begun = self._rotate()
                if isinstance(begun, JournalFault):
                    return begun
                segment = begun
            frame = encode_frame(segment.sealer, segment.index, entry)
            try:
                segment.write(self._files, frame)
            except OSError as cause:
                return self._failed(segment, cause)
            segment.wrote(frame)
            self._took(len(frame))
            self._shares.add(tenant, len(frame))
            sequence = self._next
            self._next = sequence + 1
            if opens:
                self._open[opens] = sequence
            if closes:
                opened = self._open.pop(closes, None)
                if until_ns and opened is not None and len(self._held) < HELD_MAX:
                    self._held[closes] = opened, until_ns
            return sequence

    def _refusal(self, *, reserve: bool) -> JournalFault | None:
        if self._fault is not None:
            return self._fault
        if reserve:
            return self._full() if self._free <= 0 or self._overdrawn >= self._bounds.reserve else None
        if self._stalled is not None:
            return self._stalled
        return self._full() if self._is_full else None

    def _full(self) -> JournalFault:
        return JournalFault(FaultKind.FULL, f"{self.directory}: no space left for the journal")

    def _failed(self, segment: LiveSegment, cause: OSError) -> JournalFault:
        """Cut back to the last whole frame and close the segment: its next index may have been sealed and seen."""
        try:
            segment.cut(self._files)
            self._retire(segment)
        except OSError as again:
            self._commit.doubtful.add(segment.first)
            return self._fail(
                JournalFault(FaultKind.IO, f"{segment.path}: {cause.strerror}; cutting back: {again.strerror}")
            )
        return self._refuse(segment.path, cause)

    def _refuse(self, path: Path, cause: OSError) -> JournalFault:
        if cause.errno in SPACE:
            self._starved = True
            return self._full()
        return self._fail(JournalFault(FaultKind.IO, f"{path}: {cause.strerror}"))

    def _fail(self, fault: JournalFault) -> JournalFault:
        """The first fault stays until ``mend`` has put it right; nothing is retried as if it had worked."""
        self._fault = self._fault or fault
        return self._fault

    def _rotate(self) -> LiveSegment | JournalFault:
        path = segment_path(self.directory, self._next)
        try:
            if self._segment is not None:
                self._retire(self._segment)
            head, opened = new_segment(
                self._origin,
                self.identity,
                self._root,
                self._random,
                created_ns=self._wall_ns(),
                first=self._next,
                open_from=self._open_from(),
            )
            self._segment, self._begun_ns = begin(self._files, path, head, opened), self._wall_ns()
        except OSError as cause:
            return self._refuse(path, cause)
        self._took(len(head))
        return self._segment

    def _took(self, nbytes: int) -> None:
        if self._headroom <= 0:
            self._overdrawn += nbytes
        self._headroom -= nbytes
        self._free -= nbytes

    def _open_from(self) -> int:
        """The lowest sequence that the next recovery has to read: of an open call, or one that holds something yet."""
        now_ns = self._wall_ns()
        self._held = {call: held for call, held in self._held.items() if held[1] > now_ns}
        lowest = next(iter(self._open.values()), self._next)
        return min([lowest, *(begun for begun, _ in self._held.values())])

    def _retire(self, segment: LiveSegment) -> None:
        """Under the lock. Raises OSError where an empty segment can't be removed."""
        self._segment = None
        if segment.index == 0:
            segment.remove(self._files)
            return
        held = -1
        with contextlib.suppress(OSError):  # none is left: as beyond HELD, or the segment would be nobody's
            held = os.dup(segment.descriptor) if len(self._closed) < HELD else -1
        self._commit.leave(segment)
        place = replace(segment.place, nbytes=segment.nbytes)
        self._closed[segment.first] = Closed(segment.first, segment.path, place, held, self._shares.left())
        self._closed_bytes += segment.nbytes

"""Reads a journal while it is written: whole frames only, in sequence, across segments; the writer never waits."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, assert_never

import msgspec

from audit.files import OS_FILES
from audit.rootkeys import Root
from audit.segments import (
    End,
    FaultKind,
    Frame,
    FrameReader,
    JournalFault,
    Lost,
    OpenSegment,
    SegmentInfo,
    segments_in,
    unlock,
)
from audit.spool import write_whole
from audit.writing import holder

__all__ = ["Follower", "read_identity", "read_shipped", "write_identity", "write_shipped"]

READ_BYTES: Final = 8 * 2**20  # of entries read at once; one entry may be larger
_SKIPPED: Final = 1000  # entries at once that were read before
_SHIPPED: Final = "shipped"
_IDENTITY: Final = "identity"
_POLL_S: Final = 0.02
_GAP_PATIENCE_S: Final = 5.0  # a deleted segment is noticed within a second and written anew from its descriptor
_MAX_FAULTS: Final = 1000  # remembered; the oldest go first


class _Shipped(msgspec.Struct):
    through: int  # the last sequence that is safe elsewhere; -1: none


def write_shipped(directory: Path, sequence: int) -> None:
    """Tell the journal that nothing up to and with ``sequence`` is needed any more; durable when this returns."""
    write_whole(directory / _SHIPPED, json.dumps({"through": sequence}).encode())


def read_shipped(directory: Path) -> int:
    """-1 where nothing has been shipped, or the file can't be read: then nothing may be released."""
    try:
        return msgspec.json.decode((directory / _SHIPPED).read_bytes(), type=_Shipped).through
    except (OSError, msgspec.DecodeError):
        return -1


def read_identity(directory: Path) -> str:
    """Which journal this is, 32 hex digits; "" before it was first opened."""
    try:
        return (directory / _IDENTITY).read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def write_identity(directory: Path, identity: str) -> None:
    write_whole(directory / _IDENTITY, identity.encode("ascii"))


class Follower:
    """One reader of one journal. Damage is skipped and kept in ``faults``; the sequences show the gap.

    Call ``sync`` before committing elsewhere what was read: otherwise a power cut could take from the journal what the
    database already has.
    """

    def __init__(self, directory: Path, root: Root, *, sequence: int = 0) -> None:
        self._directory, self._root = directory, root
        self.faults: list[JournalFault] = []
        self._next = sequence
        self._descriptor = -1
        self._first = -1
        self._path: Path | None = None
        self._reader: FrameReader | None = None
        self._info: SegmentInfo | None = None
        self._successor: int | None = None  # first sequence of the segment after the one that is read
        self._gap: tuple[int, float] | None = None  # first sequence that is missing, since when (monotonic)
        self._suspect: tuple[int, int] | None = None  # (segment's first, offset) of a bad frame seen once

    @property
    def identity(self) -> str:
        return read_identity(self._directory)

    @property
    def sequence(self) -> int:
        """The sequence that is read next."""
        return self._next

    def seek(self, sequence: int) -> None:
        """Read next from ``sequence``, or from the oldest entry there still is."""
        self._leave()
        self._next = max(sequence, 0)

    def __iter__(self) -> Iterator[tuple[int, bytes, SegmentInfo]]:
        """What is there now; iterate again for what comes later. Raises OSError."""
        while (item := self._step()) is not None:
            yield item

    def read(self, limit: int, nbytes: int = READ_BYTES) -> list[tuple[int, bytes, SegmentInfo]]:
        """Up to ``limit`` entries that are there now, or about ``nbytes`` of them; empty at the end. Raises OSError."""
        items: list[tuple[int, bytes, SegmentInfo]] = []
        while len(items) < limit and nbytes > 0:
            items += (found := self._whole(limit - len(items), nbytes))
            if not found:
                if (item := self._step()) is None:
                    break
                items.append(item)
                found = [item]
            nbytes -= sum(len(entry) for _, entry, _ in found)
        return items

    def _whole(self, limit: int, nbytes: int) -> list[tuple[int, bytes, SegmentInfo]]:
        """Those that follow in the segment at hand, as long as nothing is amiss with it: what is, ``_step`` tells."""
        reader, info = self._reader, self._info
        if reader is None or info is None:
            return []
        while (before := self._next - info.first - reader.index) > 0:  # a restart begins within a segment
            if not reader.run(min(before, _SKIPPED), nbytes):
                return []
        first = info.first + reader.index
        entries = reader.run(limit, nbytes)
        if entries:
            self._next = first + len(entries)
        return [(n, entry, info) for n, entry in enumerate(entries, first)]

    def wait(self, timeout: float) -> bool:
        """Whether the journal's files grew within ``timeout`` seconds (polls every 20 ms)."""
        seen = self._extent()
        for _ in range(math.ceil(timeout / _POLL_S)):
            if self._extent() != seen:
                return True
            time.sleep(_POLL_S)
        return self._extent() != seen

    def waiting(self) -> int:
        """Bytes that were written and not read yet. Raises OSError."""
        total = 0
        for first, path in segments_in(self._directory):
            if first >= self._first:
                with suppress(FileNotFoundError):
                    total += path.stat().st_size
        return max(total - (self._reader.offset if self._reader is not None else 0), 0)

    def sync(self) -> None:
        """Make durable what has been read of the current segment (earlier ones are, once their end was read)."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)

    def close(self) -> None:
        self._leave()

    # --- stepping -------------------------------------------------------------------------------------------------

    def _step(self) -> tuple[int, bytes, SegmentInfo] | None:
        while True:
            if self._reader is None and not self._enter():
                return None
            reader, info = self._reader, self._info
            assert reader is not None
            assert info is not None
            following = self._successor
            match reader.next(search=following is not None or self._suspect == (self._first, reader.offset)):
                case Frame() as frame:
                    sequence = info.first + frame.index
                    if sequence >= self._next:
                        self._next = sequence + 1
                        return sequence, frame.entry, info
                case Lost() as lost:
                    self._fault(
                        JournalFault(
                            FaultKind.DAMAGED,
                            f"segment {info.first:016x} is damaged at byte {lost.offset}",
                            info.first + lost.index,
                            info.first + lost.resumes - 1,
                        )
                    )
                case End() as end:
                    if not self._ended(end, following):
                        return None
                case _ as never:
                    assert_never(never)

    def _ended(self, end: End, following: int | None) -> bool:
        """Whether there may be more: in this segment after all, or in another."""
        if self._replaced():
            self._leave()
        elif following is not None:
            return self._advance(end, following)
        elif (successor := self._following()) is not None:
            # Complete, now that it has a successor: but only what is read from here on is its true tail.
            self._successor = successor
            if self._reader is not None:
                self._reader.again()
        else:
            self._unsure(end)
            return False
        return True

    def _unsure(self, end: End) -> None:
        """A bad tail of a live segment is "not yet"; only if it is there again, look behind it."""
        self._suspect = (self._first, end.offset) if end.left else None
        if self._reader is not None:
            self._reader.again()

    def _replaced(self) -> bool:
        """Whether the file that is read no longer has its name: an empty segment was removed, its name used again."""
        assert self._path is not None
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return True

    def _advance(self, end: End, following: int) -> bool:
        """False: what is missing may still be written anew by the journal's writer, which has it open."""
        assert self._info is not None
        after = self._info.first + end.index
        if after < following and self._may_come(after):
            self._successor = None
            return False
        if end.left or after < following:
            words = f"segment {self._info.first:016x} ends at {after - 1}, the next begins at {following}"
            self._fault(JournalFault(FaultKind.GAP, words, after, following - 1))
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
        self._leave()
        self._next = max(self._next, following)
        return True

    def _may_come(self, missing: int) -> bool:
        now = time.monotonic()
        if self._gap is None or self._gap[0] != missing:
            self._gap = missing, now
        return now - self._gap[1] < _GAP_PATIENCE_S and holder(self._directory) is not None

    def _following(self) -> int | None:
        return next((first for first, _ in segments_in(self._directory) if first > self._first), None)

    def _enter(self) -> bool:
        """Open the segment that holds ``_next``, or the first one after it; False where there is none yet."""
        found = segments_in(self._directory)
        before = [place for place, (first, _) in enumerate(found) if first <= self._next]
        for place in range(before[-1] if before else 0, len(found)):
            first, path = found[place]
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # released between the two looks
            match unlock(descriptor, path, self._root):
                case OpenSegment() as segment:
                    self._descriptor, self._first, self._info, self._path = descriptor, first, segment.info, path
                    self._reader = FrameReader(descriptor, segment)
                    return True
                case JournalFault() as fault:
                    os.close(descriptor)
                    if place + 1 == len(found) and fault.kind is not FaultKind.KEY:
                        return False  # its header is being written
                    self._fault(fault)
        return False

    def _leave(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._reader, self._info, self._first, self._path = -1, None, None, -1, None
        self._suspect, self._successor = None, None

    def _extent(self) -> tuple[int, int]:
        found = segments_in(self._directory)
        if not found:
            return (-1, 0)
        with suppress(FileNotFoundError):
            return found[-1][0], OS_FILES.place(found[-1][1]).nbytes
        return (-1, 0)

    def _fault(self, fault: JournalFault) -> None:
        if fault not in self.faults:
            self.faults.append(fault)
            del self.faults[:-_MAX_FAULTS]

"""Reads the segment that is written again, a part at a time, and compares it with what was written."""

from __future__ import annotations

from typing import Final

import google_crc32c

from audit.files import Files
from audit.segments import FaultKind, JournalFault
from audit.writing import LiveSegment

__all__ = ["Scrub"]

_STEP: Final = 16 * 2**20  # bytes read again each time: a segment of 64 MiB in four seconds
_CHUNK: Final = 1 << 20


class Scrub:
    """One journal's. A pass goes to where the segment ended when the pass began; then comes the next."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._segment: LiveSegment | None = None
        self._offset = self._sum = self._until = self._expected = 0

    def go_on(self, segment: LiveSegment, nbytes: int, checksum: int) -> JournalFault | None:
        """``checksum`` is the CRC-32C of the first ``nbytes`` bytes as they were written."""
        if segment is not self._segment or self._offset >= self._until:
            self._segment, self._offset, self._sum = segment, 0, 0
            self._until, self._expected = nbytes, checksum
        stop = min(self._until, self._offset + _STEP)
        try:
            while self._offset < stop:
                data = self._files.pread(segment.descriptor, min(_CHUNK, stop - self._offset), self._offset)
                if not data:
                    return JournalFault(FaultKind.TRUNCATED, f"{segment.path} ends at byte {self._offset}")
                self._sum = google_crc32c.extend(self._sum, data)
                self._offset += len(data)
        except OSError as cause:
            return JournalFault(FaultKind.UNREADABLE, f"{segment.path}: {cause.strerror}")
        if self._offset >= self._until and self._sum != self._expected:
            return JournalFault(FaultKind.DAMAGED, f"{segment.path} was altered after it was written")
        return None

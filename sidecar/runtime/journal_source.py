"""The journal as a shipper reads it, in bounded bites, and is told what may go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from audit.assemble import Place
from audit.follow import Follower, write_shipped
from audit.rootkeys import Root
from audit.segments import FaultKind, SegmentInfo
from audit.ship import Item

__all__ = ["JournalSource"]

_TELL_S: Final = 1.0  # seconds between two times that the journal is told what was shipped


class JournalSource:
    """``audit.ship.Source`` over the real journal."""

    def __init__(self, directory: Path, root: Root) -> None:
        self._told_to = partial(write_shipped, directory)
        self._follower = Follower(directory, root)
        self._entry_bytes = 512.0  # of one entry, a running mean: the follower knows what waits in bytes
        self._told_of: tuple[SegmentInfo, Place] | None = None
        self._shipped = self._told = -1
        self._told_at = 0.0

    @property
    def identity(self) -> str:
        return self._follower.identity

    def seek(self, sequence: int) -> None:
        self._follower.seek(sequence)

    def read(self, limit: int) -> Sequence[Item]:
        """Raises OSError, also where the journal is sealed under another key: skipping it would let it be deleted."""
        self._tell_in_time()  # the last of a backlog may come within the second: a full journal waits for it
        follower, start = self._follower, self._follower.sequence
        found = follower.read(limit)
        items = [Item(sequence, data, self._place(info)) for sequence, data, info in found]
        locked = next((fault for fault in follower.faults if fault.kind is FaultKind.KEY), None)
        if locked is not None:
            follower.faults.clear()
            follower.seek(start)
            raise OSError(locked.detail)
        if items:
            nbytes = sum(len(item.data) for item in items)
            self._entry_bytes += (nbytes / len(items) - self._entry_bytes) * 0.1
        return items

    def _place(self, info: SegmentInfo) -> Place:
        """The same for all of a segment."""
        if self._told_of is None or self._told_of[0] is not info:
            place = Place(
                info.sidecar,
                info.journal,
                info.region,
                info.jurisdiction,
                info.evidence,
                info.telemetry,
                info.store,
                info.open_from,
            )
            self._told_of = (info, place)
        return self._told_of[1]

    def waiting(self) -> int:
        """About how many entries wait to be read, from their bytes."""
        try:
            return round(self._follower.waiting() / self._entry_bytes)
        except OSError:
            return 0

    def sync(self) -> None:
        self._follower.sync()

    def shipped(self, sequence: int) -> None:
        """Told to the journal at most once a second: it costs an fsync, and only frees old segments."""
        self._shipped = sequence
        self._tell_in_time()

    def _tell_in_time(self) -> None:
        if time.monotonic() - self._told_at >= _TELL_S:
            self._tell()

    def _tell(self) -> None:
        if self._shipped != self._told:
            self._told_to(self._shipped)
            self._told, self._told_at = self._shipped, time.monotonic()

    def close(self) -> None:
        self._tell()
        self._follower.close()

"""What a journal may take and whether it takes more: its bounds, its states, its periods."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = [
    "MEND_FIRST_S",
    "MEND_LAST_S",
    "PROBE_PERIOD_S",
    "STATE_PERIOD_S",
    "SYNC_DEADLINE_S",
    "SYNC_PERIOD_S",
    "Bounds",
    "State",
    "segment_seconds",
]

SYNC_PERIOD_S: Final = 0.1  # mode batch: the most that a power cut can take
STATE_PERIOD_S: Final = 0.2  # between two looks at the free space
PROBE_PERIOD_S: Final = 1.0  # between two reads back, and two releases
MEND_FIRST_S: Final = 1.0  # between two tries to put a broken journal right, doubled up to:
MEND_LAST_S: Final = 30.0
SYNC_DEADLINE_S: Final = 10.0  # a disk that takes longer is taken for hung: nothing new is admitted until it answers


class State(StrEnum):
    """Whether a new call may be admitted. FULL passes with space, FAULTED once the journal has been put right."""

    OK = "ok"
    FULL = "full"
    FAULTED = "faulted"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes and seconds, as warden.yaml's ``audit.journal`` states them.

    Nothing new is admitted with less than ``min_free`` bytes free or at ``max_bytes``; calls that were admitted may
    still write ``min_free`` bytes of output and outcomes. Shipped segments stay for ``keep_s``, but go earlier, oldest
    first, where the journal would otherwise be full. ``warn_at`` and ``shed_at``: parts of the journal at which it is
    short of space, counting what may not go yet; ``tenant_share``: the part that one tenant may hold. ``sharers``:
    journals on this volume, this one among them: none takes more than an equal part of it, nor of ``min_free``.
    """

    segment_bytes: int = 64 * 2**20
    max_bytes: int = 8 * 2**30
    min_free: int = 256 * 2**20
    keep_s: float = 86400.0
    warn_at: float = 0.5
    shed_at: float = 0.8
    tenant_share: float = 0.5
    sharers: int = 1

    @property
    def reserve(self) -> int:
        """What calls that were admitted may still write once it is full."""
        return self.min_free // self.sharers

    @property
    def segment_s(self) -> float:
        """Seconds after which a segment is written no more: what a quiet one began with is to go in its time too."""
        return segment_seconds(self.keep_s)


def segment_seconds(keep_s: float) -> float:
    """``Bounds.segment_s`` of such a ``keep_s``."""
    return max(60.0, keep_s / 8)

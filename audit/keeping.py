"""What becomes of the segments that are written to the end: whether they are all there, and which may go."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from audit.recovery import DAMAGE_MARK
from audit.segments import FaultKind, JournalFault, segments_in

__all__ = ["Leaving", "missing", "next_to_leave"]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A segment that may be removed; ``early``: before its time, for space."""

    first: int
    path: Path
    early: bool


def missing(directory: Path, closed: Iterable[Path]) -> JournalFault | None:
    """Whether somebody else has removed a segment."""
    try:
        names = {path for _, path in segments_in(directory)}
    except OSError as cause:
        return JournalFault(FaultKind.DELETED, f"{directory}: {cause.strerror}")
    gone = next((path for path in closed if path not in names), None)
    return None if gone is None else JournalFault(FaultKind.DELETED, f"{gone} was deleted before it was released")


def next_to_leave(
    closed: Mapping[int, Path], following: int, *, needed: int, busy: Collection[int], before_ns: int, crowded: bool
) -> Leaving | None:
    """The oldest of ``closed`` (by first sequence, in order) that may go.

    ``following`` is the first sequence after them all, ``needed`` the lowest that must stay, ``busy`` those still to be
    synced. It must have been written to last before ``before_ns`` (since the UNIX epoch), unless it is ``crowded``.
    Damaged ones are evidence and stay until a person has seen to them.
    """
    for first, after in itertools.pairwise([*closed, following]):
        path = closed[first]
        if after > needed or first in busy:
            return None
        if path.with_name(path.name + DAMAGE_MARK).exists():
            continue
        try:
            expired = path.stat().st_mtime_ns <= before_ns
        except FileNotFoundError:
            return None  # ``missing`` tells of it
        return Leaving(first, path, not expired) if expired or crowded else None
    return None

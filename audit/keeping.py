"""What becomes of the segments that are written to the end: held open, looked for under their names, and let go."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from audit.files import Files, Place
from audit.recovery import DAMAGE_MARK
from audit.segments import FaultKind, JournalFault, segments_in

__all__ = ["HELD", "Closed", "Leaving", "astray", "first_astray", "found", "lock_astray", "next_to_leave"]

HELD: Final = 256  # segments whose descriptors are kept, so that what is deleted can still be read


@dataclass(slots=True)
class Closed:
    """A segment that is written no more. ``descriptor`` reads it even where its name is gone; -1: too many are held."""

    first: int
    path: Path
    place: Place
    descriptor: int = -1
    tenants: Mapping[str, int] = field(default_factory=dict)  # bytes of each
    owed: bool = True  # not all of it is in the database, or a call in it has not ended

    @property
    def nbytes(self) -> int:
        return self.place.nbytes

    def hold(self, files: Files, descriptor: int, place: Place) -> None:
        """From now on it is this file."""
        self.let_go(files)
        self.descriptor, self.place = descriptor, place

    def let_go(self, files: Files) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                files.close(self.descriptor)
        self.descriptor = -1


@dataclass(frozen=True, slots=True)
class Leaving:
    """A segment that may be removed; ``early``: before its time, for space."""

    segment: Closed
    early: bool


def found(files: Files, directory: Path) -> dict[int, Closed]:
    """The segments that are there already, by first sequence, in order. Raises OSError."""
    there = segments_in(directory)
    held = there[-HELD:]
    return {
        first: Closed(first, path, files.place(path), files.open(path) if (first, path) in held else -1)
        for first, path in there
    }


def astray(files: Files, segment: Closed) -> JournalFault | None:
    """Whether its name is gone, or another file's, or it is shorter than it was."""
    try:
        place = files.place(segment.path)
    except FileNotFoundError:
        return JournalFault(FaultKind.DELETED, f"{segment.path} was deleted before it was released")
    except OSError as cause:
        return JournalFault(FaultKind.UNREADABLE, f"{segment.path}: {cause.strerror}")
    if (place.device, place.inode) != (segment.place.device, segment.place.inode):
        return JournalFault(FaultKind.REPLACED, f"{segment.path} is another file than the one that was written")
    if place.nbytes < segment.place.nbytes:
        words = f"{segment.path} has {place.nbytes} of the {segment.place.nbytes} bytes written"
        return JournalFault(FaultKind.TRUNCATED, words)
    return None


def lock_astray(files: Files, directory: Path, lock: int) -> JournalFault | None:
    """Whether the lock that this process holds is not the one that the next process would ask for."""
    path = directory / "lock"
    try:
        place, ours = files.place(path), os.fstat(lock)
    except OSError as cause:
        return JournalFault(FaultKind.DELETED, f"{path}: {cause.strerror}")
    if (place.device, place.inode) != (ours.st_dev, ours.st_ino):
        return JournalFault(FaultKind.REPLACED, f"{path} is another file than the one that is locked")
    return None


def first_astray(files: Files, directory: Path, lock: int, closed: Iterable[Closed]) -> JournalFault | None:
    """The first thing that somebody else has removed or replaced."""
    looks = itertools.chain((lock_astray(files, directory, lock),), (astray(files, segment) for segment in closed))
    return next((fault for fault in looks if fault is not None), None)


def next_to_leave(
    closed: Mapping[int, Closed], following: int, *, needed: int, busy: Collection[int], before_ns: int, crowded: bool
) -> Leaving | None:
    """The oldest of ``closed`` (by first sequence, in order) that may go.

    ``following`` is the first sequence after them all, ``needed`` the lowest that must stay, ``busy`` those still to be
    synced. It must have been written to last before ``before_ns`` (since the UNIX epoch), unless it is ``crowded``.
    Damaged ones are evidence and stay until a person has seen to them.
    """
    for first, after in itertools.pairwise([*closed, following]):
        segment = closed[first]
        if after > needed or first in busy:
            return None
        if segment.path.with_name(segment.path.name + DAMAGE_MARK).exists():
            continue
        try:
            expired = segment.path.stat().st_mtime_ns <= before_ns
        except FileNotFoundError:
            return None  # ``astray`` tells of it
        return Leaving(segment, not expired) if expired or crowded else None
    return None

"""Puts a journal right: what its own descriptors still read is written anew, and what is lost is named.

A file that was deleted or replaced is still there for who has it open; one whose fsync failed is never synced again but
copied, because its pages may be marked clean without being on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from audit.files import Files, Place
from audit.follow import read_identity, write_identity
from audit.keeping import Closed, astray, lock_astray
from audit.recovery import DAMAGE_MARK
from audit.rootkeys import Root
from audit.segments import End, Frame, FrameReader, JournalFault, Lost, OpenSegment, unlock
from audit.writing import lock_directory

__all__ = ["FOREIGN_MARK", "Done", "Mended", "Survey", "mend_all", "settle_in", "survey"]

FOREIGN_MARK: Final = ".foreign"  # what somebody else had put under a segment's name
_PART: Final = ".part"
_CHUNK: Final = 1 << 20  # bytes copied at once


@dataclass(frozen=True, slots=True)
class Mended:
    """One fault that was put right. ``rescued``: entries written anew; ``lost``: first and last of each gap."""

    fault: JournalFault
    rescued: int
    lost: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """How many whole entries a segment holds, what of it is lost, and where its whole frames end (bytes)."""

    whole: int
    lost: tuple[tuple[int, int], ...]
    end: int


def survey(descriptor: int, path: Path, root: Root, after: int) -> Survey:
    """Of a segment whose entries end before ``after``. Raises OSError."""
    match unlock(descriptor, path, root):
        case OpenSegment() as segment:
            reader, first = FrameReader(descriptor, segment), segment.info.first
        case JournalFault():
            return Survey(0, ((int(path.name[8:24], 16), after - 1),), 0)
    whole, lost = 0, []
    while True:
        item = reader.next(search=True)
        match item:
            case Frame():
                whole += 1
            case Lost():
                lost.append((first + item.index, first + item.resumes - 1))
            case End():
                if first + item.index < after:
                    lost.append((first + item.index, after - 1))
                return Survey(whole, tuple(lost), item.offset)
            case _ as never:
                assert_never(never)


@dataclass(frozen=True, slots=True)
class Done:
    """What ``mend_all`` did: the segments that there are now, entries written anew, sequences that are lost."""

    closed: dict[int, Closed]
    rescued: int
    lost: tuple[tuple[int, int], ...]


def mend_all(
    files: Files,
    closed: Mapping[int, Closed],
    following: int,
    root: Root,
    *,
    doubtful: Collection[int],
    hurt: Collection[int],
) -> Done:
    """Put right every segment that is astray, ``doubtful`` (an fsync of it failed) or ``hurt`` (doesn't read back).

    ``closed`` by first sequence, in order; ``following`` comes after them all. Raises OSError: then try again.
    """
    kept: dict[int, Closed] = {}
    lost: list[tuple[int, int]] = []
    rescued = 0
    for first, after in itertools.pairwise([*closed, following]):
        segment = closed[first]
        wrong = astray(files, segment)
        if wrong is None and segment.first not in doubtful and segment.first not in hurt:
            kept[segment.first] = segment
        elif segment.descriptor < 0:
            lost.append((segment.first, after - 1))
        else:
            count, gone = _mend(files, segment, root, after, doubtful=segment.first in doubtful)
            rescued += count
            lost += gone
            kept[segment.first] = segment
    return Done(kept, rescued, tuple(lost))


def _mend(
    files: Files, segment: Closed, root: Root, after: int, *, doubtful: bool
) -> tuple[int, tuple[tuple[int, int], ...]]:
    seen = survey(segment.descriptor, segment.path, root, after)
    held, there, rescued = files.place(segment.descriptor), _under(files, segment.path), 0
    if doubtful or there != held:
        rescued = seen.whole
        _anew(files, segment)
    else:  # shorter than it was, but in its place: it is what it is
        segment.place = held
    if seen.lost:
        mark = segment.path.with_name(segment.path.name + DAMAGE_MARK)
        mark.write_text("".join(f"{first} to {last} are lost\n" for first, last in seen.lost), encoding="ascii")
    return rescued, seen.lost


def settle_in(files: Files, directory: Path, lock: int, identity: str) -> int:
    """The directory, the lock and the journal's name are there again; the lock that holds. Raises OSError."""
    files.mkdir(directory)
    if lock_astray(files, directory, lock) is not None:
        taken = lock_directory(directory)
        if isinstance(taken, JournalFault):
            raise OSError(errno.EBUSY, taken.detail)
        os.close(lock)
        lock = taken
    if read_identity(directory) != identity:
        write_identity(directory, identity)
    return lock


def _under(files: Files, path: Path) -> Place | None:
    try:
        return files.place(path)
    except OSError:
        return None


def _anew(files: Files, segment: Closed) -> None:
    """A new file with what the descriptor reads, durable before it takes the name. Raises OSError."""
    path = segment.path
    part, old = path.with_name(path.name + _PART), files.place(segment.descriptor)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(part)
    new = files.create(part)
    try:
        _copy(files, segment.descriptor, new, min(old.nbytes, segment.nbytes))
        files.fsync(new)
        there = _under(files, path)
        if there is not None and (there.device, there.inode) != (old.device, old.inode):
            files.rename(path, path.with_name(path.name + FOREIGN_MARK))
        files.rename(part, path)
        place = files.place(new)
    except OSError:
        files.close(new)
        raise
    segment.hold(files, new, place)


def _copy(files: Files, source: int, target: int, nbytes: int) -> None:
    offset = 0
    while offset < nbytes:
        data = files.pread(source, min(_CHUNK, nbytes - offset), offset)
        if not data:
            return  # it shrank meanwhile: what is missing shows as lost
        written = 0
        while written < len(data):
            done = files.pwrite(target, data[written:], offset + written)
            if done == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += done
        offset += len(data)

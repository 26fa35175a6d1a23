"""One segment while it is written: begun, extended by whole frames or not at all, read back; and the journal's lock."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

import google_crc32c

from audit.files import Files, Place
from audit.seal import Sealer
from audit.segments import FaultKind, JournalFault, OpenSegment, frame_is_whole

__all__ = ["SPACE", "LiveSegment", "begin", "holder", "lock_directory"]

SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # what passes once somebody makes room


@dataclass(slots=True)
class LiveSegment:
    """The segment that is written: its next index, its length, and where its last frame begins (0: it has none)."""

    path: Path
    descriptor: int
    sealer: Sealer
    place: Place
    first: int
    nbytes: int
    index: int = 0
    last: int = 0
    checksum: int = 0  # CRC-32C of all that was written
    listed: bool = False  # its name is durable
    removed: bool = False  # left without a frame, closed and unlinked

    def write(self, files: Files, frame: bytes) -> None:
        """One write; what a short one left out is tried once more. Raises OSError: then ``cut`` it back."""
        done, size = files.pwrite(self.descriptor, frame, self.nbytes), len(frame)
        while done < size:
            more = files.pwrite(self.descriptor, frame[done:], self.nbytes + done)
            if more == 0:
                _no_space()
            done += more

    def wrote(self, frame: bytes) -> None:
        self.last, self.nbytes, self.index = self.nbytes, self.nbytes + len(frame), self.index + 1
        self.checksum = google_crc32c.extend(self.checksum, frame)

    def cut(self, files: Files) -> None:
        """Leave nothing after the last whole frame. Raises OSError."""
        files.truncate(self.descriptor, self.nbytes)

    def remove(self, files: Files) -> None:
        """Close and unlink: nothing was written to it. Raises OSError."""
        self.removed = True
        files.close(self.descriptor)
        files.unlink(self.path)

    def read_back(self, files: Files, nbytes: int, last: int) -> JournalFault | None:
        """Whether ``nbytes`` are there under this name, in this file, and the frame at ``last`` is whole."""
        try:
            place = files.place(self.path)
            frame = files.pread(self.descriptor, nbytes - last, last) if last else b""
        except FileNotFoundError:
            return JournalFault(FaultKind.DELETED, f"{self.path} was deleted while it was written")
        except OSError as cause:
            return JournalFault(FaultKind.UNREADABLE, f"{self.path}: {cause.strerror}")
        if (place.device, place.inode) != (self.place.device, self.place.inode):
            return JournalFault(FaultKind.REPLACED, f"{self.path} is another file than the one that is written")
        if place.nbytes < nbytes:
            return JournalFault(FaultKind.TRUNCATED, f"{self.path} has {place.nbytes} of the {nbytes} bytes written")
        if last and not frame_is_whole(frame):
            return JournalFault(FaultKind.UNREADABLE, f"{self.path}: the frame at byte {last} does not read back")
        return None


def begin(files: Files, path: Path, head: bytes, opened: OpenSegment) -> LiveSegment:
    """Create the file with its header. Raises OSError; where removing a half-made file fails too, that one's."""
    descriptor = files.create(path)
    try:
        if files.pwrite(descriptor, head, 0) != len(head):
            _no_space()
        place = files.place(path)
    except OSError:
        files.close(descriptor)
        files.unlink(path)
        raise
    first, checksum = opened.info.first, google_crc32c.value(head)
    return LiveSegment(path, descriptor, opened.sealer, place, first, len(head), checksum=checksum)


def lock_directory(directory: Path) -> int | JournalFault:
    """The journal's lock, held until its descriptor is closed: by the kernel, if the process dies. Raises OSError."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        return JournalFault(FaultKind.LOCKED, f"{directory}: in use by process {holder}")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holder(directory: Path) -> int | None:
    """The process that writes the journal now, if one does; asks without ever taking the lock (/proc/locks)."""
    try:
        place = (directory / "lock").stat()
        table = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    device = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    for line in table.splitlines():
        words = line.split()  # "1: FLOCK ADVISORY WRITE 4711 fe:00:1234 0 EOF"; a waiter has "->" second
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == device:
            return int(words[4])
    return None


def _no_space() -> Never:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

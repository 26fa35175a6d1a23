"""The file operations under the journal, in one place so that tests can make each of them fail."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["OS_FILES", "Files", "OsFiles", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Which file a path or descriptor is, and how long it is (bytes)."""

    device: int
    inode: int
    nbytes: int


class Files(Protocol):
    """Every method raises OSError as the system does."""

    def create(self, path: Path) -> int:
        """A descriptor of a new file, read and write, mode 0600."""
        ...

    def open(self, path: Path) -> int:
        """A descriptor of a file that is there, for reading."""
        ...

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int: ...

    def pread(self, descriptor: int, nbytes: int, offset: int) -> bytes: ...

    def truncate(self, descriptor: int, nbytes: int) -> None: ...

    def fsync(self, descriptor: int) -> None: ...

    def sync_directory(self, directory: Path) -> None: ...

    def close(self, descriptor: int) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def rename(self, path: Path, to: Path) -> None:
        """Whatever is at ``to`` gives way."""
        ...

    def mkdir(self, path: Path) -> None:
        """With its parents, mode 0700; one that is there stays."""
        ...

    def place(self, path: Path | int) -> Place:
        """Of a path or a descriptor."""
        ...

    def free(self, directory: Path) -> int:
        """Bytes that this user can still write there."""
        ...


class OsFiles:
    """The operating system's."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def pread(self, descriptor: int, nbytes: int, offset: int) -> bytes:
        return os.pread(descriptor, nbytes, offset)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, nbytes: int) -> None:
        os.ftruncate(descriptor, nbytes)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rename(self, path: Path, to: Path) -> None:
        path.replace(to)

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def place(self, path: Path | int) -> Place:
        found = os.fstat(path) if isinstance(path, int) else path.stat()
        return Place(found.st_dev, found.st_ino, found.st_size)

    def free(self, directory: Path) -> int:
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize


OS_FILES = OsFiles()

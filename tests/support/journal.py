"""Journals in a temporary directory, and a file layer whose every operation can be made to fail."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit.files import OS_FILES, Files, OsFiles
from audit.journal import Bounds, Follower, Journal, Origin
from audit.record import Admitted, Entry, Settled, encode
from audit.rootkeys import Root
from audit.segments import segments_in
from sidecar.core.model import Secret

ROOT = Secret(b"k" * 32)
ORIGIN = Origin("pod-1", "eu-west-1", "EU")
ROOMY = Bounds(segment_bytes=2**20, max_bytes=2**30, min_free=2**20, keep_s=3600.0)
SMALL = replace(ROOMY, segment_bytes=1024)
_ticks = itertools.count(1_700_000_000_000_000_000)


def wall_ns() -> int:
    return next(_ticks)


def open_journal(
    directory: Path, *, root: Root = ROOT, bounds: Bounds = ROOMY, files: Files = OS_FILES, **more: Any
) -> Journal:
    """A journal without a thread of its own, so that a test decides what happens when."""
    journal = Journal.open(
        directory, root, ORIGIN, bounds,
        random=secrets.token_bytes, wall_ns=more.get("wall_ns", wall_ns), monotonic=more.get("monotonic"), files=files,
    )  # fmt: skip
    assert isinstance(journal, Journal), journal
    return journal


def put(journal: Journal, entry: Entry) -> int:
    """Written as the recorder does it: the journal is told which calls begin and end."""
    opens = entry.call.call_id if isinstance(entry, Admitted) else ""
    closes = entry.call_id if isinstance(entry, Settled) else ""
    sequence = journal.append(encode(entry), opens=opens, closes=closes, reserve=not isinstance(entry, Admitted))
    assert isinstance(sequence, int), sequence
    return sequence


def entries(directory: Path, sequence: int = 0) -> list[tuple[int, bytes]]:
    """What a reader of the journal sees."""
    follower = Follower(directory, ROOT, sequence=sequence)
    try:
        return [(found, data) for found, data, _ in follower]
    finally:
        follower.close()


def crash(journal: Journal) -> None:
    """Leave the journal as a killed process does: nothing synced, the lock gone."""
    assert journal._ticker.stop() == ""
    os.close(journal._lock_file)
    for segment in [*journal._commit._left, *([journal._segment] if journal._segment else [])]:
        os.close(segment.descriptor)


class FaultyFiles(OsFiles):
    """The real thing, until told otherwise. ``room``: bytes that may still be written before ENOSPC."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.short = 0  # the next write writes only so many bytes
        self.fail: dict[str, int] = {}  # operation → errno
        self.free_bytes: int | None = None
        self.calls: list[str] = []
        self.hook: Callable[[str], None] | None = None

    def _check(self, operation: str) -> None:
        self.calls.append(operation)
        if self.hook is not None:
            self.hook(operation)
        if operation in self.fail:
            raise OSError(self.fail[operation], os.strerror(self.fail[operation]))

    def create(self, path: Path) -> int:
        self._check("create")
        return super().create(path)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self._check("pwrite")
        if self.short:
            data, self.short = data[: self.short], 0
        if self.room is not None:
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.room]
            self.room -= len(data)
        return super().pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, nbytes: int) -> None:
        self._check("truncate")
        super().truncate(descriptor, nbytes)

    def fsync(self, descriptor: int) -> None:
        self._check("fsync")
        super().fsync(descriptor)

    def sync_directory(self, directory: Path) -> None:
        self._check("sync_directory")
        super().sync_directory(directory)

    def unlink(self, path: Path) -> None:
        self._check("unlink")
        super().unlink(path)

    def rename(self, path: Path, to: Path) -> None:
        self._check("rename")
        super().rename(path, to)

    def mkdir(self, path: Path) -> None:
        self._check("mkdir")
        super().mkdir(path)

    def free(self, directory: Path) -> int:
        self._check("free")
        return super().free(directory) if self.free_bytes is None else self.free_bytes


def only_segment(directory: Path) -> Path:
    ((_, path),) = segments_in(directory)
    return path


def written(journal: Journal, *data: bytes) -> list[int]:
    found = [journal.append(entry) for entry in data]
    assert all(isinstance(sequence, int) for sequence in found), found
    return found  # type: ignore[return-value]  # checked above


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    descriptor = os.open(path, os.O_WRONLY)  # in place, as a disk or an editor of bytes does
    os.pwrite(descriptor, data, 0)
    os.close(descriptor)


def filled(directory: Path, **changes: object) -> Journal:
    journal = open_journal(directory, bounds=replace(SMALL, **changes), wall_ns=lambda: 2**62)  # type: ignore[arg-type]
    written(journal, *[b"x" * 300] * 9)
    journal.sync()
    return journal

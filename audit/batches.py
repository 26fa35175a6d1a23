"""The files of a log's kept batches: one each while they are new, hundreds to a file once their heads were signed.

A pack is its index's length (8 bytes, big-endian), the index (MessagePack: [[first position, bytes], …]), and the
batches one after another. It is durable before the files that it replaces go, and is never written again.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from audit.spool import write_whole

__all__ = ["BatchFiles"]

PACK_FEWEST: Final = 64  # files that are worth a pack
PACK_BATCHES: Final = 2000
PACK_BYTES: Final = 32 * 2**20
_BATCH: Final = re.compile(r"(\d{20})\.batch")
_PACK: Final = re.compile(r"(\d{20})\.pack")
_INDEX: Final = msgspec.msgpack.Decoder(list[tuple[int, int]])


class BatchFiles:
    """One log's, by first position. For one process at a time."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError, and ValueError where a pack's index can't be read."""
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._packs: dict[int, list[int]] = {}  # its first position → those in it
        self._packed: dict[int, tuple[Path, int, int]] = {}  # file, offset, bytes
        names = [path.name for path in directory.iterdir()]
        for first in sorted(int(match[1]) for name in names if (match := _PACK.fullmatch(name))):
            self._learn(first)
        singles = sorted(int(match[1]) for name in names if (match := _BATCH.fullmatch(name)))
        for first in singles:
            if first in self._packed:  # a crash came before it went
                self._path(first).unlink()
        self.firsts = sorted({*singles, *self._packed})

    def __contains__(self, first: int) -> bool:
        place = bisect.bisect_left(self.firsts, first)
        return self.firsts[place : place + 1] == [first]

    def at_or_after(self, position: int) -> list[int]:
        """The batches that begin there, in order."""
        return self.firsts[bisect.bisect_left(self.firsts, position) :]

    def name(self, first: int) -> Path:
        """The file that it is in."""
        return self._packed[first][0] if first in self._packed else self._path(first)

    def read(self, first: int) -> bytes:
        """Raises OSError."""
        if first not in self._packed:
            return self._path(first).read_bytes()
        path, offset, nbytes = self._packed[first]
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(nbytes)

    def write(self, first: int, data: bytes) -> None:
        """Durable when this returns; replaces one that isn't packed. Raises OSError."""
        write_whole(self._path(first), data)
        if first not in self:
            bisect.insort(self.firsts, first)

    def forget(self, firsts: Sequence[int]) -> None:
        """Of those that aren't packed. Newest first, so that a crash between leaves no gap."""
        for first in sorted(firsts, reverse=True):
            self._path(first).unlink(missing_ok=True)
            self.firsts.remove(first)

    def pack(self, upto: int) -> None:
        """Put those together that end at or before ``upto``, but for the last. Raises OSError."""
        while True:
            ripe = [
                first
                for first, after in zip(self.firsts, self.firsts[1:], strict=False)
                if after <= upto and first not in self._packed
            ][:PACK_BATCHES]
            if len(ripe) < PACK_FEWEST:
                return
            self._pack(ripe)

    def _pack(self, ripe: list[int]) -> None:
        bodies: list[bytes] = []
        room = PACK_BYTES
        for first in ripe:
            room -= self._path(first).stat().st_size
            if room < 0 and bodies:
                break
            bodies.append(self._path(first).read_bytes())
        taken = ripe[: len(bodies)]
        newest = self._path(taken[-1]).stat().st_mtime
        index = msgspec.msgpack.encode([(first, len(body)) for first, body in zip(taken, bodies, strict=True)])
        path = self._pack_path(taken[0])
        write_whole(path, b"".join((len(index).to_bytes(8, "big"), index, *bodies)))
        os.utime(path, (newest, newest))  # it is as old as the newest in it
        self._learn(taken[0])
        for first in taken:
            self._path(first).unlink()

    def prune(self, *, before_s: float, most_bytes: int, upto: int, short: int = 0) -> None:
        """Forget files last written before ``before_s`` (s since the UNIX epoch), and the oldest beyond ``most_bytes``.

        ``short``: bytes that the disk lacks; the oldest go for them too. Only batches that end at or before ``upto``;
        the last one stays. Raises OSError.
        """
        over = max(sum(path.stat().st_size for path in self._directory.iterdir()) - most_bytes, short)
        while len(self.firsts) > 1:
            firsts = self._packs.get(self.firsts[0], self.firsts[:1])
            after = self.firsts[len(firsts) : len(firsts) + 1]
            path = self.name(firsts[0])
            told = path.stat()
            if not after or after[0] > upto or (told.st_mtime > before_s and over <= 0):
                return
            path.unlink()
            over -= told.st_size
            self._packs.pop(firsts[0], None)
            for first in firsts:
                self._packed.pop(first, None)
            del self.firsts[: len(firsts)]

    def _learn(self, pack: int) -> None:
        path = self._pack_path(pack)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "big")
            try:
                index = _INDEX.decode(file.read(min(length, PACK_BYTES)))
            except msgspec.DecodeError as fault:
                raise ValueError(f"{path} is damaged: {fault}") from fault
        offset = 8 + length
        for first, nbytes in index:
            self._packed[first] = (path, offset, nbytes)
            offset += nbytes
        self._packs[pack] = [first for first, _ in index]

    def _path(self, first: int) -> Path:
        return self._directory / f"{first:020d}.batch"

    def _pack_path(self, first: int) -> Path:
        return self._directory / f"{first:020d}.pack"

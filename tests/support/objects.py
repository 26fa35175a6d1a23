"""An object store in memory that can fail, hang, fill up and lie."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit.copies import segments_of
from audit.objects import Stored, check_name
from audit.segments import segments_in


class MemoryObjects:
    """``ObjectStore``. ``fail``: what every call raises; ``lies``: bytes are kept changed; ``hold``: puts wait.

    ``overwrites``: it knows no conditional writes.
    """

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.fail: OSError | None = None
        self.lies = False
        self.overwrites = False
        self.hold: threading.Event | None = None
        self.entered = threading.Event()
        self.puts: list[str] = []
        self.at = 1_700_000_000.0

    @property
    def where(self) -> str:
        return "memory"

    def put(self, name: str, data: bytes) -> None:
        self.puts.append(check_name(name))
        self.entered.set()
        if self.hold is not None:
            assert self.hold.wait(30)
        if self.fail is not None:
            raise self.fail
        self.kept[name] = data[:-1] + bytes([data[-1] ^ 1]) if self.lies else data

    def put_new(self, name: str, data: bytes) -> bool:
        if name in self.kept and not self.overwrites:
            return False
        self.put(name, data)
        return True

    def get(self, name: str) -> bytes | None:
        if self.fail is not None:
            raise self.fail
        return self.kept.get(check_name(name))

    def list(self, prefix: str = "") -> Iterator[Stored]:
        if self.fail is not None:
            raise self.fail
        for name in sorted(self.kept):
            if not prefix or name.startswith(f"{prefix}/"):
                yield Stored(name, len(self.kept[name]), self.at)

    def folders(self, prefix: str) -> Sequence[str]:
        inner = [each.name[len(prefix) + 1 :] for each in self.list(prefix)]
        return sorted({name.partition("/")[0] for name in inner if "/" in name})

    def delete(self, name: str) -> None:
        if self.fail is not None:
            raise self.fail
        self.kept.pop(name, None)

    def segments(self) -> dict[int, bytes]:
        """Each segment's bytes as the copies give them, from its start to the first gap; by first sequence."""
        found: dict[int, bytes] = {}
        for (first, _), copies in segments_of(self.list()).items():
            data = bytearray(copies.end)
            for piece in copies.pieces:
                data[piece.start : piece.end] = self.kept[piece.name]
            found[first] = bytes(data[: copies.whole])
        return found


def on_disk(directory: Path) -> dict[int, bytes]:
    """Each segment's bytes in a journal's directory, by first sequence."""
    return {first: path.read_bytes() for first, path in segments_in(directory)}

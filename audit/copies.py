"""How the copies of a journal are named: by journal, segment and byte range, so that they can be put together again.

``JOURNAL/FIRST-SEGMENT/START-END``: 32 hex digits, the segment's first sequence (16) and its id (16), bytes (12 each).
What is in them is the segment's own bytes, sealed as they are on the disk.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from audit.objects import Stored

__all__ = ["BEAT_S", "Beat", "Piece", "SegmentCopies", "beat_name", "journal_of", "piece_of", "segments_of"]

BEAT_S: Final = 30.0  # between two beats of a sidecar that copies
_BEAT: Final = "alive"
_PIECE: Final = re.compile(r"([0-9a-f]{32})/([0-9a-f]{16})-([0-9a-f]{16})/([0-9a-f]{12})-([0-9a-f]{12})")


class Beat(msgspec.Struct, frozen=True):
    """That a sidecar copies this journal (``at``: seconds since the UNIX epoch), or ``stopped`` and left it whole."""

    sidecar: str
    region: str
    jurisdiction: str
    at: float
    stopped: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Bytes ``start`` to ``end`` of the segment that begins with sequence ``first``; ``segment`` is its id's half."""

    journal: str
    first: int
    segment: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.journal}/{self.first:016x}-{self.segment}/{self.start:012x}-{self.end:012x}"

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class SegmentCopies:
    """One segment's copies, by where they begin; ``whole``: bytes without a gap from its start on."""

    first: int
    segment: str
    pieces: tuple[Piece, ...]
    whole: int
    newest: float  # when one was written last, by the store's clock

    @property
    def end(self) -> int:
        return max(piece.end for piece in self.pieces)


def beat_name(journal: str) -> str:
    return f"{journal}/{_BEAT}"


def journal_of(name: str) -> str | None:
    """Whose object it is; None: of no journal."""
    journal, _, rest = name.partition("/")
    return journal if rest == _BEAT or piece_of(name) is not None else None


def piece_of(name: str) -> Piece | None:
    match = _PIECE.fullmatch(name)
    if match is None:
        return None
    start, end = int(match[4], 16), int(match[5], 16)
    return Piece(match[1], int(match[2], 16), match[3], start, end) if start < end else None


def segments_of(stored: Iterable[Stored]) -> Mapping[tuple[int, str], SegmentCopies]:
    """By (first sequence, segment), in order. What is no copy is passed over."""
    found: dict[tuple[int, str], list[tuple[Piece, float]]] = defaultdict(list)
    for each in stored:
        piece = piece_of(each.name)
        if piece is not None and piece.nbytes == each.nbytes:
            found[piece.first, piece.segment].append((piece, each.at))
    return {key: _joined(*key, sorted(pieces)) for key, pieces in sorted(found.items())}


def _joined(first: int, segment: str, pieces: list[tuple[Piece, float]]) -> SegmentCopies:
    whole = 0
    for piece, _ in pieces:
        if piece.start > whole:
            break
        whole = max(whole, piece.end)
    return SegmentCopies(first, segment, tuple(piece for piece, _ in pieces), whole, max(at for _, at in pieces))

"""The journal's file format: a segment's header, its frames, and a reader that tells torn from damaged.

A segment is a header (``WARDENJ1``, length, CRC-32C, MessagePack) and frames. A frame is a 16-byte head (marker, length
of the payload, index in the segment, CRC-32C over the three and the payload; little-endian) and the sealed payload. The
marker lets a reader find the next whole frame after damage; the index says which one it is.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from audit.rootkeys import Root, current_root, root_of, where
from audit.seal import KEY_BYTES, OVERHEAD, Random, Sealer, key_id, unwrap, wrap

__all__ = [
    "FRAME_HEAD",
    "MAX_ENTRY_BYTES",
    "End",
    "FaultKind",
    "Frame",
    "FrameReader",
    "JournalFault",
    "Lost",
    "OpenSegment",
    "Origin",
    "SegmentInfo",
    "encode_frame",
    "frame_is_whole",
    "new_segment",
    "read_info",
    "segment_path",
    "segments_in",
    "unlock",
]

MAX_ENTRY_BYTES: Final = 64 * 2**20  # one entry; the recorder's own bounds keep entries far below
FRAME_HEAD: Final = 16
_FRAME: Final = struct.Struct("<4sIII")
_PREFIX: Final = struct.Struct("<4sII")  # what the checksum covers of the head
_CRC: Final = struct.Struct("<I")
_MARK: Final = b"\xf5WF\x01"
_MAGIC: Final = b"WARDENJ1"
_HEAD: Final = struct.Struct("<8sII")
_MAX_HEADER: Final = 64 * 1024
_MAX_EVIDENCE: Final = 1024  # characters
_WINDOW: Final = 256 * 1024  # bytes read at once
_NAME: Final = "journal-{:016x}.seg"


class FaultKind(StrEnum):
    """What is wrong with a journal."""

    LOCKED = "locked"  # another process has it
    KEY = "key"  # sealed under another root key
    FULL = "full"  # passes when space returns
    IO = "io"  # the system refused a write, a sync or a read
    DELETED = "deleted"
    REPLACED = "replaced"
    TRUNCATED = "truncated"
    UNREADABLE = "unreadable"  # what was written does not read back
    DAMAGED = "damaged"  # frames lost inside a segment
    GAP = "gap"  # sequences that no segment holds
    TOO_LARGE = "too_large"
    COPY = "copy"  # what is here is nowhere else
    CLOSED = "closed"
    BUG = "bug"  # of ours, in a thread that the journal needs


@dataclass(frozen=True, slots=True)
class JournalFault:
    """A fault and where it is; ``first`` to ``last`` are the sequences it cost, where known."""

    kind: FaultKind
    detail: str
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose journal this is and where it is written; stands in every segment, sealed with it.

    ``evidence``: what agreed on the region when the journal was opened. ``telemetry``: the collector's jurisdiction, ""
    where there is none. ``store``: the jurisdiction whose database all of it is for; "": the pod's own.
    """

    sidecar: str
    region: str
    jurisdiction: str
    evidence: str = ""
    telemetry: str = ""
    store: str = ""


class SegmentInfo(msgspec.Struct, frozen=True, array_like=True):
    """A segment's header. ``open_from`` is the lowest sequence of a call that was open when the segment began."""

    id: bytes  # 16 random bytes
    journal: str  # the same for every segment of one directory
    sidecar: str
    region: str
    jurisdiction: str
    created_ns: int
    first: int
    open_from: int
    root: bytes  # key_id of the root key
    wrapped: bytes
    evidence: str = ""
    telemetry: str = ""
    store: str = ""


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment whose key is at hand; frames begin at byte ``start``."""

    info: SegmentInfo
    sealer: Sealer
    start: int


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A whole frame; the next one is at byte ``end``."""

    index: int
    entry: bytes
    offset: int
    end: int


class Lost(msgspec.Struct, frozen=True, gc=False):
    """Damage from byte ``offset``: frames ``index`` up to, not including, ``resumes``, whose frame is at ``end``."""

    index: int
    resumes: int
    offset: int
    end: int


class End(msgspec.Struct, frozen=True, gc=False):
    """No further whole frame: ``left`` bytes that are none follow ``offset`` (0: a clean end)."""

    index: int
    offset: int
    left: int


# --- names --------------------------------------------------------------------------------------------------------


def segment_path(directory: Path, first: int) -> Path:
    return directory / _NAME.format(first)


def segments_in(directory: Path) -> list[tuple[int, Path]]:
    """First sequence and path of each segment, in order. Raises OSError."""
    found = []
    for name in os.listdir(directory):  # noqa: PTH208 — names only, every second
        if name.startswith("journal-") and name.endswith(".seg") and len(name) == 28:
            try:
                found.append((int(name[8:24], 16), directory / name))
            except ValueError:
                continue
    return sorted(found)


# --- header -------------------------------------------------------------------------------------------------------


def _context(info: SegmentInfo) -> bytes:
    """All of the header but the wrapped key: who edits the region of a segment can't open it any more."""
    return msgspec.msgpack.encode(msgspec.structs.replace(info, wrapped=b""))


def new_segment(
    origin: Origin, journal: str, root: Root, random: Random, *, created_ns: int, first: int, open_from: int
) -> tuple[bytes, OpenSegment]:
    """The bytes that a new segment begins with, and the segment."""
    key, segment_id, wrapping = random(KEY_BYTES), random(16), current_root(root)
    bare = SegmentInfo(
        segment_id,
        journal,
        origin.sidecar,
        origin.region,
        origin.jurisdiction,
        created_ns,
        first,
        open_from,
        key_id(wrapping),
        b"",
        origin.evidence[:_MAX_EVIDENCE],
        origin.telemetry,
        origin.store,
    )
    info = msgspec.structs.replace(bare, wrapped=wrap(wrapping, key, _context(bare), random))
    body = msgspec.msgpack.encode(info)
    data = _HEAD.pack(_MAGIC, len(body), google_crc32c.value(body)) + body
    return data, OpenSegment(info, Sealer(key, segment_id), len(data))


def read_info(descriptor: int) -> tuple[SegmentInfo, int] | None:
    """The header and where it ends; None where it is torn or damaged. Raises OSError."""
    head = os.pread(descriptor, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        return None
    magic, length, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or length > _MAX_HEADER:
        return None
    body = os.pread(descriptor, length, _HEAD.size)
    if len(body) < length or google_crc32c.value(body) != checksum:
        return None
    try:
        return msgspec.msgpack.decode(body, type=SegmentInfo), _HEAD.size + length
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def unlock(descriptor: int, path: Path, root: Root) -> OpenSegment | JournalFault:
    """Read a segment's header and unwrap its key. Raises OSError."""
    found = read_info(descriptor)
    if found is None:
        return JournalFault(FaultKind.DAMAGED, f"{path}: its header is torn or damaged")
    info, start = found
    wrapping = root_of(root, info.root)
    if wrapping is None:
        return JournalFault(FaultKind.KEY, f"{path}: sealed under root key {info.root.hex()}, but {where(root)}")
    key = unwrap(wrapping, info.wrapped, _context(info))
    if key is None:
        return JournalFault(FaultKind.DAMAGED, f"{path}: its header was altered")
    return OpenSegment(info, Sealer(key, info.id), start)


# --- frames -------------------------------------------------------------------------------------------------------


def encode_frame(sealer: Sealer, index: int, entry: bytes) -> bytes:
    """The bytes of frame ``index``. Never twice for one index of one segment: the index is the nonce."""
    sealed = sealer.seal(index, entry)
    prefix = _PREFIX.pack(_MARK, len(sealed), index)
    return b"".join((prefix, _CRC.pack(google_crc32c.extend(google_crc32c.value(prefix), sealed)), sealed))


def frame_is_whole(data: bytes) -> bool:
    """Whether ``data`` is exactly one frame whose checksum holds."""
    if len(data) < FRAME_HEAD:
        return False
    mark, length, _, checksum = _FRAME.unpack_from(data)
    if mark != _MARK or len(data) != FRAME_HEAD + length:
        return False
    return bool(google_crc32c.extend(google_crc32c.value(data[:12]), data[FRAME_HEAD:]) == checksum)


class FrameReader:
    """Reads one segment's frames in order, while it is being written or after; holds one window of bytes."""

    __slots__ = ("_base", "_buffer", "_descriptor", "_sealer", "index", "offset")

    def __init__(self, descriptor: int, segment: OpenSegment) -> None:
        self._descriptor = descriptor
        self._sealer = segment.sealer
        self._base, self._buffer = 0, b""
        self.offset, self.index = segment.start, 0

    def next(self, *, search: bool) -> Frame | Lost | End:
        """The next frame. ``search``: look behind a bad one for a good one, which makes it damage and not a torn tail.

        After ``Lost`` and ``Frame`` the reader stands at their ``end``. Raises OSError.
        """
        frame = self._frame(self.offset)
        if frame is not None and frame.index == self.index:
            self.index, self.offset = frame.index + 1, frame.end
            return frame
        if frame is None and search:
            frame = self._find(self.offset + 1)
        if frame is None:
            left = os.fstat(self._descriptor).st_size - self.offset
            return End(self.index, self.offset, max(left, 0))
        lost = Lost(self.index, frame.index, self.offset, frame.offset)
        self.index, self.offset = frame.index, frame.offset
        return lost

    def run(self, most: int, nbytes: int) -> list[bytes]:
        """The entries of the frames that follow, from ``index`` on, as long as each is whole and the one expected.

        At most ``most``, and few bytes over ``nbytes``. What is not so, and the end, ``next`` tells. Raises OSError.
        """
        entries: list[bytes] = []
        index, offset, until = self.index, self.offset, self.offset + nbytes
        while len(entries) < most and offset < until:
            at = offset - self._base
            if at < 0 or at + FRAME_HEAD > len(self._buffer):
                self._read(offset, FRAME_HEAD)
                at = 0
                if len(self._buffer) < FRAME_HEAD:
                    break
            mark, length, found, checksum = _FRAME.unpack_from(self._buffer, at)
            if mark != _MARK or found != index or not OVERHEAD <= length <= MAX_ENTRY_BYTES + OVERHEAD:
                break
            end = at + FRAME_HEAD + length
            if end > len(self._buffer):
                self._read(offset, FRAME_HEAD + length)
                at, end = 0, FRAME_HEAD + length
                if len(self._buffer) < end:
                    break
            buffer = self._buffer
            sealed = buffer[at + FRAME_HEAD : end]
            if google_crc32c.extend(google_crc32c.value(buffer[at : at + _PREFIX.size]), sealed) != checksum:
                break
            entry = self._sealer.open(index, sealed)
            if entry is None:
                break
            entries.append(entry)
            index, offset = index + 1, offset + FRAME_HEAD + length
        self.index, self.offset = index, offset
        return entries

    def again(self) -> None:
        """Forget what was read ahead: the file may have grown, or been read while it was written."""
        self._buffer = b""

    def _bytes(self, offset: int, length: int) -> bytes:
        start = offset - self._base
        if start < 0 or start + length > len(self._buffer):
            self._read(offset, length)
            start = 0
        return self._buffer[start : start + length]

    def _read(self, offset: int, length: int) -> None:
        self._base, self._buffer = offset, os.pread(self._descriptor, max(length, _WINDOW), offset)

    def _frame(self, offset: int) -> Frame | None:
        """The whole, authentic frame at ``offset`` that is not before the one expected."""
        head = self._bytes(offset, FRAME_HEAD)
        if len(head) < FRAME_HEAD:
            return None
        mark, length, index, checksum = _FRAME.unpack(head)
        if mark != _MARK or not OVERHEAD <= length <= MAX_ENTRY_BYTES + OVERHEAD or index < self.index:
            return None
        sealed = self._bytes(offset + FRAME_HEAD, length)
        if len(sealed) < length or google_crc32c.extend(google_crc32c.value(head[:12]), sealed) != checksum:
            return None
        entry = self._sealer.open(index, sealed)
        return None if entry is None else Frame(index, entry, offset, offset + FRAME_HEAD + length)

    def _find(self, offset: int) -> Frame | None:
        """The first whole frame at or after ``offset``; bounded by the segment's size."""
        while True:
            window = os.pread(self._descriptor, _WINDOW, offset)
            at = window.find(_MARK)
            while at >= 0:
                frame = self._frame(offset + at)
                if frame is not None:
                    return frame
                at = window.find(_MARK, at + 1)
            if len(window) < _WINDOW:
                return None
            offset += len(window) - len(_MARK) + 1

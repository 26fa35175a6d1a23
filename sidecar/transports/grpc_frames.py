"""gRPC's framing over HTTP/2, pure: length-prefixed messages, timeouts, status text (PROTOCOL-HTTP2.md)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from sidecar.core.model import MalformedRequest
from sidecar.core.reasons import Reason

PREFIX: Final = 5  # one byte "compressed", four bytes length, big endian
_TIMEOUT_UNITS: Final = {"H": 3_600_000_000_000, "M": 60_000_000_000, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_MAX_TIMEOUT_NS: Final = 10 * 365 * 86_400 * 10**9  # ten years: beyond it a deadline is none
_WINDOW: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
INFLATED: Final = 2**17  # bytes decompressed at once, less than a millisecond
_DEFLATED: Final = 2**16  # bytes given to zlib at once: it hands back what it didn't come to, and that is copied
ENCODINGS: Final = ("identity", *_WINDOW)


class UnsupportedEncoding(Exception):  # noqa: N818 — a peer's choice, answered UNIMPLEMENTED as gRPC prescribes
    """The message is compressed in a way that is not offered."""


def prefix(length: int) -> bytes:
    """The frame header of an uncompressed message of ``length`` bytes."""
    return b"\x00" + length.to_bytes(4, "big")


def frame(message: bytes) -> bytes:
    return prefix(len(message)) + message


class FrameReader:
    """Cuts a byte stream into messages; holds at most one message, of at most ``limit`` bytes (decompressed too)."""

    __slots__ = ("_encoding", "_limit", "_need", "_parts", "_size", "wire_bytes")

    def __init__(self, limit: int, encoding: str = "identity") -> None:
        self._limit = limit
        self._encoding = encoding
        self._parts: list[bytes] = []
        self._size = 0
        self.wire_bytes = 0  # what the message given last took on the wire, framing included
        self._need = PREFIX  # bytes until the next decision: a whole header, or a whole frame

    @property
    def buffered(self) -> int:
        """Bytes held of a message that is not whole yet."""
        return self._size

    def alone(self, data: bytes) -> bytes | None:
        """The message, where ``data`` is one whole, uncompressed, of a size that is accepted, and all else is None."""
        size = len(data) - PREFIX
        if self._size or size < 0 or size > self._limit or data[0] or int.from_bytes(data[1:PREFIX], "big") != size:
            return None
        return data[PREFIX:]

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Whole messages, in order. Raises ``MalformedRequest`` (too large, bad flag) or ``UnsupportedEncoding``."""
        for flag, message in self.frames(data):
            yield message if flag == 0 else b"".join(self.inflate(flag, message))

    def frames(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """As ``feed``, but as they came: each with its flag, which other than 0 wants ``inflate``."""
        if data:
            self._parts.append(data)
            self._size += len(data)
        if self._size < self._need:
            return
        joined = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        at = 0  # of the next frame: what is left is copied once, however many small messages came in one piece
        while len(joined) - at >= self._need:
            length = int.from_bytes(joined[at + 1 : at + PREFIX], "big")
            if length > self._limit:
                raise MalformedRequest(
                    f"message of {length} bytes; at most {self._limit} are accepted", Reason.REQUEST_TOO_LARGE
                )
            self._need = PREFIX + length
            if len(joined) - at < self._need:
                break
            flag, message = joined[at], joined[at + PREFIX : at + self._need]
            self.wire_bytes = self._need
            at, self._need = at + self._need, PREFIX
            yield flag, message
        rest = joined[at:]
        self._parts, self._size = ([rest] if rest else []), len(rest)

    def inflate(self, flag: int, message: bytes) -> Iterator[bytes]:
        """A compressed message in pieces of at most ``INFLATED`` bytes, so that a small one can't grow unnoticed."""
        if flag != 1:
            raise MalformedRequest(f"gRPC frame flag {flag}; 0 or 1 expected")
        window = _WINDOW.get(self._encoding)
        if window is None:
            raise UnsupportedEncoding(self._encoding)
        size = 0
        try:
            for piece in _inflated(zlib.decompressobj(window), message):
                size += len(piece)
                if size > self._limit:
                    raise MalformedRequest(
                        f"message over {self._limit} bytes once decompressed", Reason.REQUEST_TOO_LARGE
                    )
                yield piece
        except zlib.error as fault:
            raise MalformedRequest(f"{self._encoding} data cannot be read") from fault
        except EOFError as fault:
            raise MalformedRequest(f"{self._encoding} data is cut short") from fault

    def end(self) -> None:
        """The stream has ended: raises ``MalformedRequest`` if it did so inside a message."""
        if self._size:
            raise MalformedRequest(f"the request ended inside a message ({self._size} of {self._need} bytes)")


def _inflated(stream: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Raises ``EOFError`` where the data ends before its end mark."""
    for start in range(0, len(data), _DEFLATED):
        rest = data[start : start + _DEFLATED]
        while rest and not stream.eof:
            piece = stream.decompress(rest, INFLATED)
            rest = stream.unconsumed_tail
            if piece:
                yield piece
    while not stream.eof:  # all was given to zlib, which may still hold what one piece had no room for
        piece = stream.decompress(b"", INFLATED)
        if not piece:
            raise EOFError
        yield piece


def parse_timeout(value: str) -> int | None:
    """``grpc-timeout`` in ns; None for one that is absent in effect. Raises ``MalformedRequest``."""
    unit = _TIMEOUT_UNITS.get(value[-1:])
    digits = value[:-1]
    if unit is None or not 1 <= len(digits) <= 8 or not (digits.isascii() and digits.isdigit()):
        raise MalformedRequest("grpc-timeout: up to eight digits and one of H M S m u n")
    ns = int(digits) * unit
    return ns if ns <= _MAX_TIMEOUT_NS else None


def format_timeout(ns: int) -> str:
    """The shortest form that keeps at least millisecond accuracy; never less than 1 ms."""
    ms = max(1, ns // 10**6)
    return f"{ms}m" if ms < 10**8 else f"{min(ms // 1000, 99_999_999)}S"


def encode_message(text: str) -> str:
    """``grpc-message``: UTF-8, percent-encoded outside printable ASCII, at most 4 KiB of source text."""
    data = text[:4096].encode("utf-8", "replace")
    return "".join(chr(b) if 0x20 <= b <= 0x7E and b != 0x25 else f"%{b:02X}" for b in data)


def decode_message(value: str) -> str:
    return unquote(value, errors="replace")

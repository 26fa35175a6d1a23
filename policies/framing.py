"""Messages between a sidecar and its compiling process: MessagePack behind four bytes of length, in bounded time."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

__all__ = ["Broken", "Reader", "Writer"]

MESSAGE_MAX: Final = 64 * 2**20  # bytes; a tenant's document of 1 MiB makes parts of some MiB at most
TOTAL_MAX: Final = 2**30  # bytes of all messages; ten thousand tenants make 6 MB
CHUNK: Final = 2**16
TURN: Final = 0.1  # seconds between two looks at whether to go on

T = TypeVar("T")


class Broken(Exception):  # noqa: N818 — no error of ours: the other side went, hangs, or says what it can't mean
    """There is nothing more to be had of the other side; the text says why."""


class Reader(Generic[T]):
    """Reads messages of ``kind`` from a pipe. ``left``: seconds that it may still take; raises ``Broken`` at none."""

    def __init__(self, descriptor: int, kind: Any, left: Callable[[], float]) -> None:
        self._descriptor, self._left = descriptor, left
        self._rest = TOTAL_MAX
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def read(self) -> T:
        (length,) = struct.unpack(">I", self._exactly(4))
        if length > MESSAGE_MAX:
            raise Broken(f"a message of {length} bytes")
        self._rest -= length
        if self._rest < 0:
            raise Broken(f"more than {TOTAL_MAX} bytes in all")
        try:
            found: T = self._decoder.decode(self._exactly(length))
        except msgspec.MsgspecError as fault:
            raise Broken(f"a message that is none: {fault}") from None
        return found

    def _exactly(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size:
            _wait(self._poll, self._left)
            piece = os.read(self._descriptor, min(size, CHUNK))
            if not piece:
                raise Broken("it ended early")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class Writer:
    """Writes messages into a pipe; as ``Reader``."""

    def __init__(self, descriptor: int, left: Callable[[], float]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._left = descriptor, left
        self._encoder = msgspec.msgpack.Encoder()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, message: Any) -> None:
        data = self._encoder.encode(message)
        rest = memoryview(struct.pack(">I", len(data)) + data)
        while rest:
            _wait(self._poll, self._left)
            try:
                rest = rest[os.write(self._descriptor, rest[:CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise Broken("it ended early") from None


def _wait(poll: select.poll, left: Callable[[], float]) -> None:
    while (seconds := left()) > 0:
        if poll.poll(min(seconds, TURN) * 1000):
            return
    raise Broken("it took too long")

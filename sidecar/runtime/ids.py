"""The one source of ids and of chance: UUIDv7 for calls (RFC 9562 §5.7), W3C ids for traces and spans."""

from __future__ import annotations

import os
import random
import threading

from sidecar.core.model import Instant

_POOL_BYTES = 4096  # one system call for about 400 ids


class RandomIds:
    """Ids from the operating system's randomness, read ahead in a pool. One a process, for all its threads."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._random = random.Random(os.urandom(16))  # noqa: S311 — chooses what is sampled, guards nothing
        self._pool, self._at = b"", 0
        self._lock = threading.Lock()  # two that take the same bytes would give two calls one id

    def _take(self, size: int) -> bytes:
        with self._lock:
            at = self._at
            if at + size > len(self._pool):
                self._pool, at = os.urandom(_POOL_BYTES), 0
            taken = self._pool[at : at + size]
            self._at = at + size
            return taken

    def call(self, at: Instant) -> str:
        return uuid7(at.wall_ns, self._take(10))

    def trace(self) -> str:
        return self._take(16).hex()

    def span(self) -> str:
        return self._take(8).hex()

    def sampled(self) -> bool:
        return self._random.random() < self._ratio


def uuid7(wall_ns: int, randomness: bytes) -> str:
    """48 bits of milliseconds, then 74 of ``randomness`` (10 bytes)."""
    ms = (wall_ns // 1_000_000) & ((1 << 48) - 1)
    rand = int.from_bytes(randomness, "big")
    value = ms << 80 | 0x7 << 76 | ((rand >> 64) & 0xFFF) << 64 | 0b10 << 62 | (rand & ((1 << 62) - 1))
    text = f"{value:032x}"
    return (
        f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"  # as uuid.UUID writes it, at half the cost
    )

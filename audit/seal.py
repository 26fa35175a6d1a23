"""Seals journal frames: AES-256-GCM under a fresh key per segment, itself wrapped under the root key."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.secretfile import KeyFault, read_secret
from sidecar.core.model import Secret

__all__ = [
    "KEY_BYTES",
    "OVERHEAD",
    "KeyFault",
    "Random",
    "Sealer",
    "create_key_file",
    "key_id",
    "load_root_key",
    "same_volume",
    "unwrap",
    "wrap",
]

Random = Callable[[int], bytes]  # n → n unpredictable bytes (runtime passes secrets.token_bytes)

KEY_BYTES: Final = 32  # AES-256
OVERHEAD: Final = 16  # GCM's tag; what a sealed payload is longer than its entry
_NONCE: Final = 12  # NIST SP 800-38D: 96 bits


def load_root_key(path: Path, *, apart_from: Path | None = None) -> Secret | KeyFault:
    """The 32 bytes of ``path``: a regular file that others can neither read nor change, not inside ``apart_from``."""
    if apart_from is not None and path.resolve().is_relative_to(apart_from.resolve()):
        return KeyFault(f"key file {path}: lies in {apart_from}, beside what it seals; keep it on another volume")
    data = read_secret(path, KEY_BYTES)
    if isinstance(data, KeyFault):
        return data
    if len(data) != KEY_BYTES:
        found = "more" if len(data) > KEY_BYTES else str(len(data))
        return KeyFault(f"key file {path}: must be exactly {KEY_BYTES} bytes, is {found}")
    return Secret(data)


def create_key_file(path: Path, random: Random) -> Secret | KeyFault:
    """A new key in a new file (mode 0600, never over an existing one), durable when this returns."""
    key = random(KEY_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 — the descriptor carries mode and O_EXCL
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    except OSError as fault:
        words = "already exists" if fault.errno == errno.EEXIST else fault.strerror
        return KeyFault(f"key file {path}: {words}")
    return Secret(key)


def same_volume(key_file: Path, directory: Path) -> bool:
    """Whether who takes the journal's volume takes its key too; the runtime warns of it."""
    return key_file.stat().st_dev == directory.stat().st_dev


def key_id(root: Secret) -> bytes:
    """8 bytes that tell root keys apart and say nothing of them."""
    return hashlib.sha256(b"warden journal root key\0" + root.reveal()).digest()[:8]


def wrap(root: Secret, key: bytes, context: bytes, random: Random) -> bytes:
    """``key`` under ``root``, bound to ``context``. Random nonces: good for 2**32 segments (SP 800-38D §8.3)."""
    nonce = random(_NONCE)
    return nonce + AESGCM(root.reveal()).encrypt(nonce, key, context)


def unwrap(root: Secret, wrapped: bytes, context: bytes) -> bytes | None:
    """The segment's key; None where ``root``, ``wrapped`` or ``context`` is not what it was wrapped with."""
    if len(wrapped) != _NONCE + KEY_BYTES + OVERHEAD:
        return None
    try:
        return AESGCM(root.reveal()).decrypt(wrapped[:_NONCE], wrapped[_NONCE:], context)
    except InvalidTag:
        return None


class Sealer:
    """One segment's key. The nonce is the frame's index: the caller never seals two entries under one index."""

    __slots__ = ("_aead", "_segment")

    def __init__(self, key: bytes, segment: bytes) -> None:
        self._aead = AESGCM(key)
        self._segment = segment

    def seal(self, index: int, entry: bytes) -> bytes:
        nonce = index.to_bytes(_NONCE, "big")  # its last 8 bytes are the index as the context has it
        return self._aead.encrypt(nonce, entry, self._segment + nonce[_NONCE - 8 :])

    def open(self, index: int, sealed: bytes) -> bytes | None:
        """The entry; None where it was not sealed under this key, segment and index."""
        try:
            return self._aead.decrypt(index.to_bytes(_NONCE, "big"), sealed, self._segment + index.to_bytes(8, "big"))
        except InvalidTag:
            return None

"""Keeps the snapshot of keys and denials on disk, sealed, so that a pod can start while the database is away."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sidecar.core.model import Secret
from sidecar.identity.denials import Age, DenyList
from sidecar.identity.keyrow import KeyRow
from sidecar.identity.keys import Randomness
from sidecar.identity.keytable import KeyTable

MAX_BYTES: Final = 256 * 2**20  # of a snapshot: about a million keys
_MAGIC: Final = b"WDNID2\0\0"
_SALT: Final = 16  # bytes; a key of its own for every file, so that counting nonces never repeat under one key
_PIECE: Final = 250  # keys sealed at a time, about 0.3 ms
# Its group may do what it likes: Kubernetes gives every file of a volume to the pod's fsGroup, 0660. It is sealed, too.
_OTHERS: Final = 0o007
_MORE, _LAST = b"\0", b"\1"


class Stamp(msgspec.Struct, frozen=True):
    """When the database last confirmed the snapshot named ``of``."""

    of: bytes
    confirmed_at: float
    ahead: float


class _Head(msgspec.Struct, frozen=True):
    confirmed_at: float
    ahead: float
    tokens: int  # pieces of denied tokens, which come next; then come the keys
    tenants: dict[str, tuple[float, float]]
    gone: tuple[KeyRow, ...]


class Kept(msgspec.Struct, frozen=True):
    """What is on disk. ``gone``: keys that the database has no more, of which something had ended."""

    rows: KeyTable
    denied: DenyList
    age: Age
    gone: tuple[KeyRow, ...] = ()


_DENIED: Final = msgspec.msgpack.Decoder(list[tuple[tuple[str, str], float]])
_KEYS: Final = msgspec.msgpack.Decoder(list[KeyRow])


class SnapshotFile:
    """Two files: the snapshot, written when it changed, and beside it a stamp, written when it was confirmed again.

    Both are sealed under keys made of ``root``, and bound to ``context`` (environment and jurisdiction), so that
    nobody's snapshot is taken for another's. Raises ``OSError``.
    """

    def __init__(self, path: Path, root: Secret, context: str, randomness: Randomness) -> None:
        self._path = path
        self._stamp = path.with_name(path.name + ".stamp")
        self._root = root
        self._context = context.encode()
        self._randomness = randomness
        self._name: bytes | None = None  # of the snapshot on disk, once it is ours

    def save(self, kept: Kept, pause: Callable[[], object]) -> None:
        """Write the snapshot whole; a reader finds the old one or the new. ``pause`` is called between pieces."""
        salt = self._randomness(_SALT)
        age, denied = kept.age, kept.denied
        tokens = -(-len(denied.tokens) // _PIECE)
        head = _Head(age.confirmed_at, age.ahead, tokens, dict(denied.tenants), kept.gone)

        def pieces() -> Iterator[bytes]:
            yield msgspec.msgpack.encode(head)
            for left in (iter(denied.tokens.items()), iter(kept.rows.values())):
                while piece := list(islice(left, _PIECE)):
                    pause()
                    yield msgspec.msgpack.encode(piece)

        self._write(self._path, salt, b"snapshot", pieces())
        self._name = salt

    def confirm(self, age: Age) -> None:
        """The snapshot on disk still holds."""
        if self._name is not None:
            stamp = msgspec.msgpack.encode(Stamp(self._name, age.confirmed_at, age.ahead))
            self._write(self._stamp, self._randomness(_SALT), b"stamp", [stamp])

    def load(self) -> Kept | str | None:
        """What is there; None where there is nothing; in words what is wrong with it."""
        found = self._read(self._path, b"snapshot")
        if found is None or isinstance(found, str):
            return found
        name, pieces = found
        try:
            head = msgspec.msgpack.decode(pieces[0], type=_Head)
            behind = 1 + head.tokens
            tokens = {token: until for piece in pieces[1:behind] for token, until in _DENIED.decode(piece)}
            rows = KeyTable(row for piece in pieces[behind:] for row in _KEYS.decode(piece))
        except msgspec.MsgspecError as fault:
            return f"{self._path}: {fault}"
        age = Age(head.confirmed_at, head.ahead)
        stamp = self._read(self._stamp, b"stamp")
        if isinstance(stamp, tuple):
            said = msgspec.msgpack.decode(stamp[1][0], type=Stamp)
            if said.of == name and said.confirmed_at > age.confirmed_at:
                age = Age(said.confirmed_at, said.ahead)
        return Kept(rows, DenyList(tokens, head.tenants), age, head.gone)

    # --- sealing ---------------------------------------------------------------------------------------------------

    def _aead(self, salt: bytes, purpose: bytes) -> AESGCM:
        info = b"warden identity " + purpose
        return AESGCM(HKDF(SHA256(), 32, salt, info).derive(self._root.reveal()))

    def _bound(self, end: bytes) -> bytes:
        return self._context + b"\0" + end

    def _write(self, path: Path, salt: bytes, purpose: bytes, pieces: Iterable[bytes]) -> None:
        aead, partial = self._aead(salt, purpose), path.with_name(path.name + ".new")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(_MAGIC + salt)
            number = 0
            for number, piece in enumerate(pieces):
                sealed = aead.encrypt(number.to_bytes(12, "big"), piece, self._bound(_MORE))
                file.write(len(sealed).to_bytes(4, "big") + sealed)
            # A last, empty piece of its own kind: a file cut off between two pieces is not a shorter snapshot.
            end = aead.encrypt((number + 1).to_bytes(12, "big"), b"", self._bound(_LAST))
            file.write(len(end).to_bytes(4, "big") + end)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def _read(self, path: Path, purpose: bytes) -> tuple[bytes, list[bytes]] | str | None:
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_mode & _OTHERS:
                    mode = stat.S_IMODE(found.st_mode)
                    return f"{path}: mode {mode:04o}: not a file that others can neither read nor change"
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                return f"{path}: larger than {MAX_BYTES} bytes"
        except FileNotFoundError:
            return None
        except OSError as fault:
            return f"{path}: {fault.strerror}"
        salt = data[len(_MAGIC) : len(_MAGIC) + _SALT]
        if data[: len(_MAGIC)] != _MAGIC or len(salt) != _SALT:
            return f"{path}: not a snapshot"
        pieces = self._open(self._aead(salt, purpose), memoryview(data)[len(_MAGIC) + _SALT :])
        return (
            (salt, pieces) if pieces else f"{path}: cut off, changed, or sealed under another key or for another place"
        )

    def _open(self, aead: AESGCM, data: memoryview) -> list[bytes] | None:
        """Every piece; None where one is missing or was not sealed by us."""
        pieces: list[bytes] = []
        try:
            while data:
                size = int.from_bytes(data[:4], "big")
                sealed, data = bytes(data[4 : 4 + size]), data[4 + size :]
                nonce = len(pieces).to_bytes(12, "big")
                if not data:
                    aead.decrypt(nonce, sealed, self._bound(_LAST))
                    return pieces
                pieces.append(aead.decrypt(nonce, sealed, self._bound(_MORE)))
        except (InvalidTag, ValueError):
            return None
        return None

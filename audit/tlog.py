"""C2SP's formats for transparency logs: signed notes, checkpoints, cosignatures and proofs that travel by themselves.

c2sp.org/signed-note, /tlog-checkpoint, /tlog-cosignature, /tlog-proof. Pure: times and keys are passed in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.merkle import HASH_BYTES

__all__ = [
    "Checkpoint",
    "Note",
    "NoteError",
    "Proof",
    "Signer",
    "Verifier",
    "cosignature_time",
    "parse_checkpoint",
    "parse_note",
    "parse_proof",
    "parse_verifier",
]

_ED25519: Final = b"\x01"
_COSIGNATURE: Final = b"\x04"  # tlog-cosignature v1
_DASH: Final = "— "
_PROOF: Final = "c2sp.org/tlog-proof@v1"
NOTE_BYTES: Final = 1_000_000  # golang.org/x/mod/sumdb/note refuses more
SIGNATURES: Final = 100
PROOF_HASHES: Final = 63


class NoteError(ValueError):
    """These bytes are not of the format; the message says how."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """Whose signatures count: a name and an Ed25519 public key (``kind`` 1) or a witness's (``kind`` 4)."""

    name: str
    public: bytes
    kind: bytes = _ED25519

    @property
    def key_hash(self) -> bytes:
        """4 bytes: SHA-256(name ‖ LF ‖ kind ‖ key)."""
        return hashlib.sha256(self.name.encode() + b"\n" + self.kind + self.public).digest()[:4]

    @property
    def text(self) -> str:
        """``name+hash+key``, as it is handed to others."""
        return f"{self.name}+{self.key_hash.hex()}+{_b64(self.kind + self.public)}"

    def accepts(self, note: Note) -> bool:
        """Whether the note carries this key's signature, and each one it carries is right."""
        mine = [sig for name, sig in note.signatures if name == self.name and sig[:4] == self.key_hash]
        return bool(mine) and all(self._right(note.text, signature[4:]) for signature in mine)

    def _right(self, text: str, signature: bytes) -> bool:
        message = text.encode()
        if self.kind == _COSIGNATURE:
            if len(signature) != 8 + 64:
                return False
            message = b"cosignature/v1\ntime %d\n%b" % (int.from_bytes(signature[:8], "big"), message)
            signature = signature[8:]
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def cosignature_time(note: Note, witness: Verifier) -> int | None:
    """When the witness signed, in seconds since the UNIX epoch; None where its signature is absent or wrong."""
    if witness.kind != _COSIGNATURE or not witness.accepts(note):
        return None
    mine = next(sig for name, sig in note.signatures if name == witness.name and sig[:4] == witness.key_hash)
    return int.from_bytes(mine[4:12], "big")


class Signer:
    """An Ed25519 key with its name; signs note texts."""

    __slots__ = ("_key", "verifier")

    def __init__(self, name: str, seed: bytes, *, witness: bool = False) -> None:
        """``seed``: the 32 bytes of an Ed25519 private key. A ``witness`` cosigns checkpoints of others."""
        if not name or any(c in name for c in " +\n\t") or not name.isprintable():
            raise NoteError(f"{name!r} is no key name: no space and no plus may be in it")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verifier = Verifier(name, self._key.public_key().public_bytes_raw(), _COSIGNATURE if witness else _ED25519)

    def sign(self, text: str) -> str:
        """The note: ``text`` (ending in a line end), an empty line, the signature's line."""
        return f"{text}\n{self.line(text)}"

    def line(self, text: str, *, at: int | None = None) -> str:
        """One signature line over ``text``; a witness says ``at`` (s since the UNIX epoch)."""
        if not text.endswith("\n"):
            raise NoteError("a note's text ends in a line end")
        verifier, message, prefix = self.verifier, text.encode(), b""
        if verifier.kind == _COSIGNATURE:
            if at is None:
                raise NoteError("a cosignature says its time")
            prefix, message = at.to_bytes(8, "big"), b"cosignature/v1\ntime %d\n%b" % (at, message)
        signature = verifier.key_hash + prefix + self._key.sign(message)
        return f"{_DASH}{verifier.name} {_b64(signature)}\n"


def parse_verifier(text: str) -> Verifier:
    """``name+hash+key`` back into a verifier. Raises NoteError."""
    name, _, rest = text.strip().partition("+")
    hashed, _, key = rest.partition("+")
    data = _unb64(key)
    if not name or len(data) != 33 or data[:1] not in {_ED25519, _COSIGNATURE}:
        raise NoteError(f"{text!r} is no verifier key: it reads NAME+HASH+KEY, an Ed25519 key")
    found = Verifier(name, data[1:], data[:1])
    if found.key_hash.hex() != hashed:
        raise NoteError(f"the hash of {text!r} is not its key's")
    return found


@dataclass(frozen=True, slots=True)
class Note:
    """A text (it ends in a line end) and its signatures: name, and key hash with signature bytes."""

    text: str
    signatures: tuple[tuple[str, bytes], ...]


def parse_note(note: str) -> Note:
    """Reads a signed note; whether its signatures are right is for ``Verifier.accepts``. Raises NoteError."""
    if len(note) > NOTE_BYTES:
        raise NoteError(f"a note has at most {NOTE_BYTES} characters")
    if any(ord(c) < 0x20 and c != "\n" for c in note):
        raise NoteError("a note has no control characters")
    text, gap, tail = note.rpartition("\n\n")
    lines = tail.split("\n")
    if not gap or lines.pop() or not lines or len(lines) > SIGNATURES:
        raise NoteError("a note is a text, an empty line, and signature lines")
    return Note(text + "\n", tuple(map(_signature, lines)))


def _signature(line: str) -> tuple[str, bytes]:
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    data = _unb64(encoded)
    if not line.startswith(_DASH) or not name or "+" in name or len(data) < 5:
        raise NoteError(f"{line!r} is no signature line")
    return name, data


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A log's tree head: whose log, how many leaves, their root; ``extensions`` are further lines, not empty."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join((self.origin, str(self.size), _b64(self.root), *self.extensions)) + "\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """Reads a note's text as a checkpoint. Raises NoteError."""
    lines = text.split("\n")
    if len(lines) < 4 or lines.pop() or not all(lines):
        raise NoteError("a checkpoint has three lines or more, none of them empty")
    origin, size, root, *extensions = lines
    return Checkpoint(origin, _number(size), _hash(root), tuple(extensions))


@dataclass(frozen=True, slots=True)
class Proof:
    """That leaf ``index`` is in the tree of the signed ``checkpoint`` (a note); a file that stands by itself."""

    index: int
    path: tuple[bytes, ...]
    checkpoint: str
    extra: bytes = b""

    @property
    def text(self) -> str:
        extra = [f"extra {_b64(self.extra)}"] if self.extra else []
        return "\n".join((_PROOF, *extra, f"index {self.index}", *map(_b64, self.path), "", self.checkpoint))


def parse_proof(text: str) -> Proof:
    """Raises NoteError."""
    head, gap, checkpoint = text.partition("\n\n")
    lines = head.split("\n")
    if not gap or lines.pop(0) != _PROOF:
        raise NoteError(f"a proof begins with {_PROOF}")
    extra = _unb64(lines.pop(0).removeprefix("extra ")) if lines and lines[0].startswith("extra ") else b""
    if not lines or not lines[0].startswith("index "):
        raise NoteError("a proof names its leaf's index")
    index = _number(lines.pop(0).removeprefix("index "))
    if len(lines) > PROOF_HASHES:
        raise NoteError(f"a proof has at most {PROOF_HASHES} hashes")
    return Proof(index, _hashes(lines), checkpoint, extra)


def _hashes(lines: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(map(_hash, lines))


def _hash(line: str) -> bytes:
    found = _unb64(line)
    if len(found) != HASH_BYTES:
        raise NoteError(f"{line!r} is no hash")
    return found


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or (text[0] == "0" and text != "0"):
        raise NoteError(f"{text!r} is no number of leaves")
    return int(text)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unb64(text: str) -> bytes:
    """Strict: what decodes must encode to the same again."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise NoteError(f"{text!r} is not base64") from None
    if _b64(data) != text:
        raise NoteError(f"{text!r} is not canonical base64")
    return data

"""Makes, remembers and opens data keys, and seals what one record holds under keys derived from them."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.content import ContentError
from audit.keys import KeyAlteredError, KeyFaultError, KeyGoneError, KeyProvider, context_of
from audit.seal import KEY_BYTES, Random

__all__ = [
    "CUT_TERM", "KeyRow", "Opened", "RecordSealer", "Vault", "commitment", "open_column", "record_key", "terms",
]  # fmt: skip

REMEMBERED: Final = 8192  # data keys in memory: subjects × tenants × days under way at once
SALT_BYTES: Final = 32
_NONCE: Final = 12
_POOL: Final = 16_384
CUT_TERM: Final = 0  # stands for the words of a record that are more than its index may hold
_FORMAT: Final = b"\x03"  # under the record's key, the column as associated data
_BY_COLUMN: Final = b"\x02"  # as before: under a key of its own for each column
_RECORD: Final = b"warden record"
_ENCODER: Final = msgspec.msgpack.Encoder()
_CONTENT: Final = msgspec.msgpack.Decoder(tuple[bytes, list[bytes] | None])


class _Drawn:
    """Unpredictable bytes: AES-256 in counter mode under a key drawn anew for each 16 KiB, each used once.

    The system's own took eight times as long.
    """

    __slots__ = ("_at", "_pool", "_random")

    def __init__(self, random: Random) -> None:
        self._random, self._pool, self._at = random, b"", 0

    def __call__(self, nbytes: int) -> bytes:
        at, self._at = self._at, self._at + nbytes
        if self._at > len(self._pool):
            counting = Cipher(algorithms.AES(self._random(KEY_BYTES)), modes.CTR(bytes(16))).encryptor()
            self._pool, at, self._at = counting.update(bytes(max(_POOL, nbytes))), 0, nbytes
        return self._pool[at : self._at]


class KeyRow(msgspec.Struct, frozen=True, array_like=True):
    """A data key as the database keeps it. ``wrapped`` is None once it was destroyed; ``days``: the retention class."""

    id: str
    tenant: str
    days: int | None
    day: date
    version: int
    wrapped: bytes | None
    subject_sealed: bytes | None
    subject_mac: bytes | None

    @property
    def context(self) -> bytes:
        return context_of(("warden data key", self.tenant, self.id))


@dataclass(frozen=True, slots=True)
class _Live:
    row: KeyRow
    secret: bytes
    keyed: hashlib.blake2b  # ``record_key`` as far as it is the same for all records under this key


class Vault:
    """The data keys that one shipper seals under. Not for several threads at once."""

    def __init__(self, provider: KeyProvider, random: Random) -> None:
        self.provider, self.random = provider, _Drawn(random)
        self._live: OrderedDict[tuple[str, int | None, date, str, int], _Live] = OrderedDict()
        self._current: dict[str, int] = {}  # versions of master keys, as of the last ``refresh``
        self._made: dict[str, KeyRow] = {}

    def sealer(self, *, tenant: str, days: int | None, day: date, subject: str, call_id: str) -> RecordSealer:
        """For one record. Raises KeyFaultError."""
        version = self._current.get(tenant)
        if version is None:
            version = self._current[tenant] = self.provider.current(tenant)
        place = (tenant, days, day, subject, version)
        live = self._live.get(place)
        if live is None:
            live = self._live[place] = self._make(*place)
            if len(self._live) > REMEMBERED:
                self._live.popitem(last=False)
        else:
            self._live.move_to_end(place)
        keyed, named = live.keyed.copy(), call_id.encode("utf-8", "surrogatepass")
        keyed.update(b"%d:%b" % (len(named), named))  # as context_of
        return RecordSealer(live.row.id, live.secret, keyed.digest(), self.random)

    def made(self, ids: Iterable[str]) -> list[KeyRow]:
        """Those of ``ids`` that the database may not have yet."""
        return [self._made[key_id] for key_id in dict.fromkeys(ids) if key_id in self._made]

    def stored(self, rows: Iterable[KeyRow]) -> None:
        """The database has them."""
        for row in rows:
            self._made.pop(row.id, None)

    def refresh(self) -> None:
        """Ask again which master keys are current: once a batch, so an erased subject's next call has a new key."""
        self._current.clear()

    def _make(self, tenant: str, days: int | None, day: date, subject: str, version: int) -> _Live:
        secret, key_id = self.random(KEY_BYTES), self.random(16).hex()
        row = KeyRow(key_id, tenant, days, day, version, None, None, None)
        named = subject.encode("utf-8", "surrogatepass")
        try:
            wrapped = self.provider.wrap(tenant, version, secret, row.context)
            # Before anything is sealed under it: a provider that errs, or lies, would lose all of it.
            if not hmac.compare_digest(self.provider.unwrap(tenant, version, wrapped, row.context), secret):
                raise KeyFaultError(f"the provider of the master keys of {tenant!r} gives back another key")
            mac = self.provider.mac(tenant, version, named) if named else None
        except KeyGoneError as fault:  # renewed since: the next try asks which version is current
            self._current.pop(tenant, None)
            raise KeyFaultError(f"the master key of {tenant!r} changed: {fault}") from fault
        row = msgspec.structs.replace(
            row,
            wrapped=wrapped,
            subject_sealed=seal_subject(secret, key_id, named, self.random) if named else None,
            subject_mac=mac,
        )
        self._made[key_id] = row
        keyed = hashlib.blake2b(key=secret, digest_size=KEY_BYTES, person=_RECORD)
        keyed.update(context_of((tenant, key_id)))
        return _Live(row, secret, keyed)


def seal_subject(secret: bytes, key_id: str, subject: bytes, random: Random) -> bytes:
    """Whom a data key is of, for an erasure that must tell survivors by name under a new master key."""
    nonce = random(_NONCE)
    return nonce + AESGCM(_derived(secret, b"warden subject")).encrypt(nonce, subject, key_id.encode())


def open_subject(secret: bytes, row: KeyRow) -> bytes:
    """Raises ContentError."""
    if row.subject_sealed is None:
        return b""
    try:
        key = _derived(secret, b"warden subject")
        return AESGCM(key).decrypt(row.subject_sealed[:_NONCE], row.subject_sealed[_NONCE:], row.id.encode())
    except (InvalidTag, ValueError):
        raise ContentError("a data key's subject was altered") from None


@dataclass(frozen=True, slots=True)
class Opened:
    """A data key that could be unwrapped. Where not, it was ``destroyed``, or ``altered``, or it is merely not here."""

    secret: bytes | None
    destroyed: bool = False
    altered: bool = False


def unwrap(provider: KeyProvider, row: KeyRow) -> Opened:
    """From the database's copy, else from where survivors of an erasure are kept. Raises KeyFaultError."""
    altered = False
    for version, wrapped in _copies(provider, row):
        try:
            return Opened(provider.unwrap(row.tenant, version, wrapped, row.context))
        except KeyAlteredError:
            altered = True
        except KeyGoneError:
            continue
    if altered:
        return Opened(None, altered=True)
    return Opened(None, destroyed=row.wrapped is None or provider.destroyed(row.tenant, row.version))


def _copies(provider: KeyProvider, row: KeyRow) -> Iterator[tuple[int, bytes]]:
    """The survivors' is looked for only where the database's did not open: thousands are unwrapped by one search."""
    if row.wrapped is not None:
        yield row.version, row.wrapped
    survivor = provider.survivor(row.tenant, row.id)
    if survivor is not None:
        yield survivor


# --- one record ---------------------------------------------------------------------------------------------------


class RecordSealer:
    """Seals the columns of one record. What is disclosed of it (``record_key``) opens no other."""

    __slots__ = ("_aead", "_random", "_secret", "data_key")

    def __init__(self, data_key: str, secret: bytes, key: bytes, random: Random) -> None:
        """``key`` is the record's (``record_key``)."""
        self.data_key, self._secret, self._random = data_key, secret, random
        self._aead = AESGCM(key)

    def draw(self, nbytes: int) -> bytes:
        """Unpredictable bytes, for a salt."""
        return self._random(nbytes)

    def seal(self, column: str, plain: bytes) -> bytes:
        """format (1) ‖ nonce (12) ‖ ciphertext and tag; bound to record and column."""
        nonce = self._random(_NONCE)
        return b"".join((_FORMAT, nonce, self._aead.encrypt(nonce, plain, column.encode())))

    def content(self, column: str, digest: bytes, parts: list[bytes] | None) -> tuple[bytes, bytes]:
        """(sealed, commitment): the texts where they are kept, with the salt that their digest is published under."""
        drawn = self._random(SALT_BYTES + _NONCE)
        salt, nonce = drawn[:SALT_BYTES], drawn[SALT_BYTES:]
        sealed = self._aead.encrypt(nonce, _ENCODER.encode((salt, parts)), column.encode())
        return b"".join((_FORMAT, nonce, sealed)), commitment(salt, digest)

    def lookup(self, kind: str, text: str) -> bytes:
        """8 bytes by which who holds the data key finds equal texts; nothing once it is destroyed."""
        return lookup(self._secret, kind, text)

    def terms(self, words: Iterable[str], *, cut: bool) -> list[int]:
        """What finds the record by these words; in order of themselves, so that the text's own order is not told."""
        return sorted({*terms(self._secret, words), *((CUT_TERM,) if cut else ())})


def commitment(salt: bytes, digest: bytes) -> bytes:
    """SHA-256(salt ‖ SHA-256(text)): says nothing of the text, and whoever is given salt and text can check it.

    Over the digest, not the text: of a text that was cut, or is not kept, the journal holds no more than that.
    """
    return hashlib.sha256(salt + digest).digest()


def lookup(secret: bytes, kind: str, text: str) -> bytes:
    """See ``RecordSealer.lookup``."""
    key = _derived(secret, b"warden lookup", kind.encode())
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest()


def terms(secret: bytes, words: Iterable[str]) -> list[int]:
    """Each word as 64 bits, keyed under a data key: no dictionary finds it without that, and it dies with it."""
    keyed = hashlib.blake2b(key=_derived(secret, b"warden terms"), digest_size=8)
    found = []
    for word in words:
        one = keyed.copy()
        one.update(word.encode("utf-8", "surrogatepass"))
        found.append(int.from_bytes(one.digest(), "big", signed=True) or 1)
    return found


def record_key(secret: bytes, data_key: str, tenant: str, call_id: str) -> bytes:
    """32 bytes that open one record's columns and nothing else."""
    return _derived(secret, _RECORD, context_of((tenant, data_key, call_id)))


def open_column(key: bytes, column: str, sealed: bytes) -> bytes:
    """``key`` is the record's. Raises ContentError."""
    if len(sealed) < 1 + _NONCE or sealed[:1] not in {_FORMAT, _BY_COLUMN}:
        raise ContentError("not sealed content")
    own = key if sealed[:1] == _FORMAT else _derived(key, b"warden col", column.encode())
    try:
        return AESGCM(own).decrypt(sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :], column.encode())
    except InvalidTag:
        raise ContentError("altered, or belongs to another record") from None


def open_content(key: bytes, column: str, sealed: bytes) -> tuple[bytes, list[bytes] | None]:
    """(salt, texts). Raises ContentError."""
    try:
        return _CONTENT.decode(open_column(key, column, sealed))
    except msgspec.DecodeError:
        raise ContentError("sealed, but not content") from None


def _derived(key: bytes, purpose: bytes, place: bytes = b"") -> bytes:
    """BLAKE2b (RFC 7693), keyed: 1 µs, where OpenSSL's HMAC takes 5."""
    return hashlib.blake2b(place, key=key, digest_size=KEY_BYTES, person=purpose).digest()

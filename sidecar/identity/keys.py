"""API keys: their format, their keyed hash, and the in-memory ring that identifies a caller by one."""

from __future__ import annotations

import hmac
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sidecar.core.model import Denial, Principal, Secret
from sidecar.core.reasons import Reason
from sidecar.identity.denials import Age, too_old
from sidecar.identity.keyrow import KeyRow
from sidecar.identity.keytable import KeyTable

BASE62: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH: Final = 12  # 71 bits: a name, not a secret
SECRET_LENGTH: Final = 43  # 62**43 > 2**256
CRC_LENGTH: Final = 6  # 62**6 > 2**32
MIN_PEPPER: Final = 16  # bytes
MAX_PRINCIPALS: Final = 10_000  # of keys in use, kept so as not to be made once a call
MAX_LENGTH: Final = 4 + 12 + 1 + ID_LENGTH + 1 + SECRET_LENGTH + CRC_LENGTH

Randomness = Callable[[int], bytes]
"""n → n unpredictable bytes; ``secrets.token_bytes`` in production, passed in by whoever starts us."""

_KEY: Final = re.compile(rb"wdn_([a-z0-9]{1,12})_([0-9A-Za-z]{12})_([0-9A-Za-z]{43})([0-9A-Za-z]{6})")
_NO_MAC: Final = bytes(32)


def base62(value: int, length: int) -> bytes:
    """``value`` in exactly ``length`` base-62 digits, most significant first."""
    digits = bytearray()
    for _ in range(length):
        value, digit = divmod(value, 62)
        digits.append(BASE62[digit])
    return bytes(reversed(digits))


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key taken apart. ``secret`` is the 43-character part that is hashed, never stored."""

    environment: str
    id: str
    secret: Secret

    def text(self) -> str:
        """``wdn_<env>_<id>_<secret><crc>``, to be shown once."""
        head = b"wdn_%s_%s_%s" % (self.environment.encode(), self.id.encode(), self.secret.reveal())
        return (head + base62(zlib.crc32(head), CRC_LENGTH)).decode()


def generate(environment: str, randomness: Randomness) -> ApiKey:
    """A new key: 71 bits of id, 256 bits of secret."""
    key_id = base62(int.from_bytes(randomness(16), "big"), ID_LENGTH)
    secret = base62(int.from_bytes(randomness(32), "big"), SECRET_LENGTH)
    return ApiKey(environment, key_id.decode(), Secret(secret))


def parse(text: bytes) -> ApiKey | None:
    """The parts of a well-formed key; None where the shape or the CRC-32 is wrong (mistyped, cut off, a fake)."""
    match = _KEY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None or base62(zlib.crc32(text[:-CRC_LENGTH]), CRC_LENGTH) != match[4]:
        return None
    return ApiKey(match[1].decode(), match[2].decode(), Secret(match[3]))


def mac(pepper: Secret, secret: Secret) -> bytes:
    """HMAC-SHA-256 of the secret part: all that is ever stored. A keyed fast hash is enough for 256 random bits."""
    return hmac.digest(pepper.reveal(), secret.reveal(), "sha256")


def read_pepper(data: bytes) -> Secret | str:
    """The pepper in a file's content (line ends after it don't count), or in words why it is none."""
    value = data.rstrip(b"\r\n")
    return Secret(value) if len(value) >= MIN_PEPPER else f"shorter than {MIN_PEPPER} bytes"


_NOBODY: Final = KeyRow("", "", "", "", _NO_MAC)


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """All keys as one transaction saw them, by id. Never changed; replaced whole."""

    rows: KeyTable
    age: Age


@dataclass(frozen=True, slots=True)
class KeyState:
    """What the ring knows: the snapshot, when the database last confirmed it, and whether it answers now."""

    snapshot: KeySnapshot | None = None
    confirmed: Age = Age(0.0)  # noqa: RUF009 — frozen itself
    away: bool = True


class KeyRing:
    """Identifies callers by API key from the current snapshot; the refresher swaps the state whole, nobody waits.

    ``max_age`` bounds (in seconds) how long a snapshot is believed while the database is away; ``lag`` is after how
    long without a confirmation the database counts as away even though nobody said so (a refresher that hangs).
    ``region`` is where this sidecar is.
    """

    __slots__ = ("_environment", "_lag", "_max_age", "_pepper", "_principals", "_region", "_state", "_used")

    def __init__(self, pepper: Secret, environment: str, *, max_age: float, lag: float = 5.0, region: str = "") -> None:
        self._pepper = pepper
        self._environment = environment
        self._max_age = max_age
        self._lag = lag
        self._region = region
        self._state = KeyState()
        self._principals: dict[str, tuple[KeyRow, Principal]] = {}  # of the keys in use
        self._used: dict[str, float] = {}

    @property
    def state(self) -> KeyState:
        return self._state

    @property
    def max_age(self) -> float:
        return self._max_age

    def expect(self, every: float) -> None:
        """Confirmations will come every so many seconds: four that are missed count as an outage."""
        self._lag = max(self._lag, 4 * every)

    def install(self, snapshot: KeySnapshot, *, away: bool = False) -> None:
        """A snapshot just read, from the database or (``away``) from where it was kept for an outage."""
        self._state = KeyState(snapshot, snapshot.age, away)

    def confirm(self, age: Age) -> None:
        """The database says that the snapshot still holds."""
        self._state = KeyState(self._state.snapshot, age, away=False)

    def lost(self) -> None:
        """The database does not answer: what isn't in the snapshot can't be told any more."""
        self._state = KeyState(self._state.snapshot, self._state.confirmed, away=True)

    def age(self, at: float) -> float | None:
        """Seconds since the database last confirmed the snapshot; None before the first."""
        return None if self._state.snapshot is None else max(0.0, self._state.confirmed.at(at))

    def take_used(self) -> Mapping[str, float]:
        """The keys used since this was last asked, by id, each with when it last was (s since the epoch)."""
        used, self._used = self._used, {}
        return used

    def identify(self, text: bytes, at: float) -> Principal | Denial:
        """The key's principal. The work is the same for an unknown id as for a wrong secret."""
        key = parse(text)
        if key is None:
            return Denial(Reason.KEY_UNKNOWN, "it is mistyped or cut off: its checksum does not fit", rule="api-key")
        if key.environment != self._environment:
            return Denial(Reason.KEY_UNKNOWN, "it belongs to another environment", rule="api-key")
        state = self._state
        age = state.confirmed.at(at)
        if state.snapshot is None or too_old(age, self._max_age):
            return _unavailable("no snapshot" if state.snapshot is None else f"snapshot is {age:.0f} s old")
        row = state.snapshot.rows.get(key.id, _NOBODY)
        if not self._proves(row, key.secret, at) or row.environment != key.environment:
            if state.away or age > self._lag:
                return _unavailable("the database is away, so a key may have been issued or rotated since")
            return Denial(Reason.KEY_UNKNOWN, rule="api-key", internal=f"key id {key.id}")
        return self._standing(row, at) or self._principal(row, at)

    def _principal(self, row: KeyRow, at: float) -> Principal:
        self._used[row.id] = at
        known = self._principals.get(row.id)
        if known is not None and known[0] is row:
            return known[1]
        made = row.principal()
        if len(self._principals) >= MAX_PRINCIPALS:
            self._principals.clear()
        self._principals[row.id] = (row, made)
        return made

    def _proves(self, row: KeyRow, secret: Secret, at: float) -> bool:
        """Both secrets are always compared, each in constant time, so that time tells nothing of the row."""
        given = mac(self._pepper, secret)
        current = hmac.compare_digest(given, row.secret_mac)
        old = hmac.compare_digest(given, row.rotated_mac or _NO_MAC)
        graced = row.rotated_mac is not None and row.rotated_until is not None and at < row.rotated_until
        return row is not _NOBODY and (current or (old and graced))

    def _standing(self, row: KeyRow, at: float) -> Denial | None:
        """Why a proven key may not be used, told to its holder; None where it may."""
        internal = f"key id {row.id} of tenant {row.tenant}"
        if row.revoked_at is not None:  # whatever our clock says: who revoked it may have another
            return Denial(Reason.KEY_REVOKED, f"on {_day(row.revoked_at)}", rule="api-key", internal=internal)
        if row.expires_at is not None and row.expires_at <= at:
            return Denial(Reason.KEY_EXPIRED, f"on {_day(row.expires_at)}", rule="api-key", internal=internal)
        if row.not_before is not None and row.not_before > at:
            detail = f"the API key holds from {_day(row.not_before)}"
            return Denial(Reason.TOKEN_NOT_YET_VALID, detail, rule="key.not_before", internal=internal)
        if row.regions is not None and self._region not in row.regions:
            detail = "the API key is for other regions"
            return Denial(Reason.RESIDENCY_PROCESSING, detail, rule="key.regions", internal=internal)
        return None


def _unavailable(why: str) -> Denial:
    return Denial(Reason.KEYS_UNAVAILABLE, retry_after=1.0, rule="api-key", internal=why)


def _day(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):  # such as Postgres's own infinity
        return "a time beyond all calendars"

"""The keys that content is sealed under: one master key a tenant and version (KEK), and who keeps them.

KEK → data key (tenant, retention, day, subject) → record key (call) → column key. A provider keeps KEKs only; data keys
lie wrapped in the database. Destroying a KEK's version makes every data key wrapped under it unreadable, in every
copy of the database. Data keys that survive are wrapped anew first, and kept aside in ``survivors``: so a database
restored from before still opens for everybody but the erased.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from audit.spool import write_whole

__all__ = [
    "KeyAlteredError", "KeyFaultError", "KeyGoneError", "KeyMissingError", "KeyProvider", "KeyStore",
    "Marks", "Survivors",
]  # fmt: skip

_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
REMEMBERED: Final = 256  # tenants whose survivors are in memory
KNOWN: Final = 16_384  # tenants whose destroyed versions are in memory


class KeyFaultError(OSError):
    """The keys cannot be reached or are not what they should be; waiting or a person may help."""


class KeyMissingError(KeyFaultError):
    """Master keys that data keys are wrapped under are not where they should be, and nobody destroyed them."""


class KeyGoneError(Exception):
    """This version was destroyed, or never was here: what it wrapped stays sealed."""


class KeyAlteredError(KeyGoneError):
    """These bytes are not what was wrapped: somebody altered them, or they were wrapped elsewhere."""


class KeyStore(Protocol):
    """Who keeps the master keys. All raise KeyFaultError where the store cannot answer."""

    def latest(self, tenant: str) -> int | None:
        """The version to wrap under; None where the tenant has none."""
        ...

    def versions(self, tenant: str) -> list[int]:
        """Those whose key is here, oldest first; one whose destruction broke off half-way is among them."""
        ...

    def destroyed(self, tenant: str, version: int) -> bool:
        """Whether that version was destroyed here: not merely absent, and its key gone."""
        ...

    def wrap(self, tenant: str, version: int, key: bytes, context: bytes) -> bytes:
        """Raises KeyGoneError."""
        ...

    def unwrap(self, tenant: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        """Raises KeyGoneError, KeyAlteredError where these bytes are not what was wrapped."""
        ...

    def mac(self, tenant: str, version: int, text: bytes) -> bytes:
        """16 bytes by which equal texts are found while the version lives. Raises KeyGoneError."""
        ...

    def rotate(self, tenant: str) -> int:
        """A new current version, a tenant's first too; the old ones still unwrap."""
        ...

    def destroy(self, tenant: str, version: int, survivors: Mapping[str, tuple[int, bytes]]) -> None:
        """Make this and all older versions unusable for ever; first keep ``survivors`` (data key → version, wrapped).

        Broken off anywhere, it can be done again.
        """
        ...

    def give_up(self, tenant: str, versions: Collection[int]) -> None:
        """These are lost: never use their numbers again, nor their keys should a copy come back."""
        ...

    def survivor(self, tenant: str, key_id: str) -> tuple[int, bytes] | None:
        """A data key as it was wrapped last; None for one that was destroyed, or is as the database has it."""
        ...

    def where(self, tenant: str) -> str:
        """The place of a tenant's keys, for messages."""
        ...


class KeyProvider(KeyStore, Protocol):
    """A store that makes a tenant's first key where it may."""

    def current(self, tenant: str) -> int:
        """The version to wrap under; made where the tenant has none."""
        ...


class Survivors:
    """Data keys as they were wrapped last, in a file a tenant: a database restored from before still opens with them.

    They are wrapped, under a version that lives: who reads the file has nothing without the provider.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[tuple[int, int], dict[str, tuple[int, bytes]]]] = {}

    def keep(self, tenant: str, version: int, survivors: Mapping[str, tuple[int, bytes]]) -> None:
        """Durable when this returns. Raises KeyFaultError."""
        path = self._path(tenant)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, msgspec.msgpack.encode([version, dict(survivors)]))
        except OSError as fault:
            raise KeyFaultError(f"{path}: {fault.strerror}") from fault

    def find(self, tenant: str, key_id: str) -> tuple[int, bytes] | None:
        """Raises KeyFaultError."""
        path = self._path(tenant)
        try:
            told = path.stat()
            stamp = (told.st_ino, told.st_mtime_ns)  # two may be written within one tick of the file system's clock
            known = self._known.get(tenant)
            if known is None or known[0] != stamp:
                _, found = msgspec.msgpack.decode(path.read_bytes(), type=tuple[int, dict[str, tuple[int, bytes]]])
                known = self._known[tenant] = (stamp, found)
                bound(self._known, REMEMBERED)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as fault:
            raise KeyFaultError(f"{path}: {fault}") from fault
        return known[1].get(key_id)

    def _path(self, tenant: str) -> Path:
        return folder_of(self._directory, tenant) / "survivors"


@dataclass(frozen=True, slots=True)
class Ended:
    """Versions that were destroyed or given up: all until one, and ``others``. No number is ever used again."""

    until: int = 0
    others: frozenset[int] = frozenset()

    def __contains__(self, version: int) -> bool:
        return 0 < version <= self.until or version in self.others

    @property
    def last(self) -> int:
        return max(self.until, *self.others, 0)


class Marks:
    """Which versions were destroyed or given up, in a file a tenant beside its keys, or what is wrapped under them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[Ended, tuple[int, int]]] = {}

    def ended(self, tenant: str) -> Ended:
        """Raises KeyFaultError for a mark that says nothing: a number might be used again, a key come back."""
        path = f"{folder_of(self._directory, tenant)}/destroyed"  # no Path: it takes longer than to look
        try:
            told = os.stat(path)  # noqa: PTH116
            stamp = (told.st_ino, told.st_mtime_ns)
            known = self._known.get(tenant)
            if known is None or known[1] != stamp:
                until, *others = map(int, Path(path).read_text(encoding="ascii").split())
                known = self._known[tenant] = (Ended(until, frozenset(others)), stamp)
                bound(self._known, KNOWN)
        except FileNotFoundError:
            return Ended()
        except ValueError:
            raise KeyFaultError(f"{path}: does not say which versions were destroyed") from None
        except OSError as fault:
            raise KeyFaultError(f"{path}: {fault.strerror}") from fault
        return known[0]

    def mark(self, tenant: str, *, until: int = 0, others: Collection[int] = ()) -> None:
        """All versions ``until`` one, and ``others``; durable when this returns. Raises KeyFaultError."""
        ended = self.ended(tenant)
        numbers = [max(ended.until, until), *sorted(ended.others | frozenset(others))]
        path = folder_of(self._directory, tenant) / "destroyed"
        try:
            write_whole(path, " ".join(map(str, numbers)).encode())
        except OSError as fault:
            raise KeyFaultError(f"{path}: {fault.strerror}") from fault


def bound(known: dict[Any, Any], most: int) -> None:
    """Forget the oldest of more than ``most``."""
    while len(known) > most:
        known.pop(next(iter(known)), None)  # another thread may have


@functools.lru_cache(KNOWN)
def folder_of(directory: Path, tenant: str) -> Path:
    """One folder a tenant, whatever its name."""
    if _SAFE.fullmatch(tenant):
        return directory / f"t-{tenant}"
    return directory / f"x-{hashlib.sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()}"


def context_of(parts: Iterable[str]) -> bytes:
    """What a wrapped key is bound to; length-prefixed, so that no two places are the same."""
    found = b""
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        found += b"%d:%b" % (len(encoded), encoded)
    return found

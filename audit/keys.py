"""The keys that content is sealed under: one master key a tenant and version (KEK), from files that can be destroyed.

KEK → data key (tenant, retention, day, subject) → record key (call) → column key. A provider keeps KEKs only; data keys
lie wrapped in the database. Destroying a KEK's version makes every data key wrapped under it unreadable, in every
copy of the database. Data keys that survive are wrapped anew first, and kept aside in ``survivors``: so a database
restored from before still opens for everybody but the erased.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.seal import KEY_BYTES, Random
from audit.spool import write_whole

__all__ = ["FileKeys", "KeyAlteredError", "KeyFaultError", "KeyGoneError", "KeyProvider", "Survivors"]

_NONCE: Final = 12
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
REMEMBERED: Final = 256  # tenants whose survivors are in memory
_VERSION: Final = re.compile(r"([1-9][0-9]{0,8})\.key")


class KeyFaultError(OSError):
    """The keys cannot be reached or are not what they should be; waiting or a person may help."""


class KeyGoneError(Exception):
    """This version was destroyed, or never was here: what it wrapped stays sealed."""


class KeyAlteredError(KeyGoneError):
    """These bytes are not what was wrapped: somebody altered them, or they were wrapped elsewhere."""


class KeyProvider(Protocol):
    """Who keeps the master keys. All raise KeyFaultError where the provider cannot answer."""

    def current(self, tenant: str) -> int:
        """The version to wrap under; made where the tenant has none."""
        ...

    def versions(self, tenant: str) -> list[int]:
        """Those that can still unwrap, oldest first."""
        ...

    def destroyed(self, tenant: str, version: int) -> bool:
        """Whether that version was destroyed here, and is not merely absent."""
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
        """A new current version; the old ones still unwrap."""
        ...

    def destroy(self, tenant: str, version: int, survivors: Mapping[str, tuple[int, bytes]]) -> None:
        """Make a version unusable for ever; first keep ``survivors`` (data key → version, wrapped) beside the rest."""
        ...

    def survivor(self, tenant: str, key_id: str) -> tuple[int, bytes] | None:
        """A data key as it was wrapped last; None for one that was destroyed, or is as the database has it."""
        ...


class Survivors:
    """Data keys as they were wrapped last, in a file a tenant: a database restored from before still opens with them.

    They are wrapped, under a version that lives: who reads the file has nothing without the provider.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[int, dict[str, tuple[int, bytes]]]] = {}

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
            stamp = path.stat().st_mtime_ns
            known = self._known.get(tenant)
            if known is None or known[0] != stamp:
                _, found = msgspec.msgpack.decode(path.read_bytes(), type=tuple[int, dict[str, tuple[int, bytes]]])
                known = self._known[tenant] = (stamp, found)
                while len(self._known) > REMEMBERED:
                    self._known.pop(next(iter(self._known)))
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as fault:
            raise KeyFaultError(f"{path}: {fault}") from fault
        return known[1].get(key_id)

    def _path(self, tenant: str) -> Path:
        return folder_of(self._directory, tenant) / "survivors"


class FileKeys:
    """A directory with one folder a tenant and one file a version, shared by all who seal or open in a jurisdiction."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._directory, self._random = directory, random
        self._known: dict[tuple[str, int], tuple[bytes, tuple[int, int]]] = {}
        self._survivors = Survivors(directory)

    def current(self, tenant: str) -> int:
        found = self.versions(tenant)
        return found[-1] if found else self._make(tenant, self._last(tenant) + 1)

    def versions(self, tenant: str) -> list[int]:
        try:
            names = [path.name for path in self._folder(tenant).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise KeyFaultError(f"{self._folder(tenant)}: {fault.strerror}") from fault
        return sorted(int(match[1]) for name in names if (match := _VERSION.fullmatch(name)))

    def destroyed(self, tenant: str, version: int) -> bool:
        return 0 < version <= self._last(tenant)

    def wrap(self, tenant: str, version: int, key: bytes, context: bytes) -> bytes:
        nonce = self._random(_NONCE)
        return nonce + AESGCM(self._key(tenant, version)).encrypt(nonce, key, context)

    def unwrap(self, tenant: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        try:
            return AESGCM(self._key(tenant, version)).decrypt(wrapped[:_NONCE], wrapped[_NONCE:], context)
        except (InvalidTag, ValueError):
            raise KeyAlteredError(
                f"a data key of {tenant!r} was not wrapped by version {version}, or altered"
            ) from None

    def mac(self, tenant: str, version: int, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._key(tenant, version), digest_size=16, person=b"warden lookup").digest()

    def rotate(self, tenant: str) -> int:
        return self._make(tenant, max([*self.versions(tenant), self._last(tenant)]) + 1)

    def destroy(self, tenant: str, version: int, survivors: Mapping[str, tuple[int, bytes]]) -> None:
        folder = self._folder(tenant)
        try:
            self._survivors.keep(tenant, version, survivors)
            path = folder / f"{version}.key"
            with path.open("r+b") as file:  # its blocks too, where the file system writes in place
                file.write(bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            write_whole(folder / "destroyed", str(max(version, self._last(tenant))).encode())
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise KeyFaultError(f"{folder}: {fault.strerror}") from fault
        self._known.pop((tenant, version), None)

    def survivor(self, tenant: str, key_id: str) -> tuple[int, bytes] | None:
        return self._survivors.find(tenant, key_id)

    def _key(self, tenant: str, version: int) -> bytes:
        """Looked at each time: a key that was destroyed must not live on in a process that remembers it."""
        path = self._folder(tenant) / f"{version}.key"
        try:
            told = path.stat()
            stamp = (told.st_ino, told.st_mtime_ns)
            known = self._known.get((tenant, version))
            if known is not None and known[1] == stamp:
                return known[0]
            data = path.read_bytes()
        except FileNotFoundError:
            self._known.pop((tenant, version), None)
            raise KeyGoneError(f"version {version} of the key of {tenant!r} is gone") from None
        except OSError as fault:
            raise KeyFaultError(f"{path}: {fault.strerror}") from fault
        if len(data) != KEY_BYTES:
            raise KeyFaultError(f"{path}: must be exactly {KEY_BYTES} bytes")
        if data == bytes(KEY_BYTES):
            raise KeyGoneError(f"version {version} of the key of {tenant!r} is being destroyed")
        self._known[tenant, version] = (data, stamp)
        return data

    def _make(self, tenant: str, version: int) -> int:
        """Whole or not at all, and never over another's: several sidecars may make a tenant's first key at once."""
        folder = self._folder(tenant)
        part = folder / f".{self._random(8).hex()}.part"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(part, self._random(KEY_BYTES))
            os.link(part, folder / f"{version}.key")
            part.unlink()
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except FileExistsError:
            part.unlink(missing_ok=True)
        except OSError as fault:
            raise KeyFaultError(f"{folder}: {fault.strerror}") from fault
        return version

    def _last(self, tenant: str) -> int:
        """The highest version that was destroyed: a number is never used again."""
        try:
            return int((self._folder(tenant) / "destroyed").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return 0

    def _folder(self, tenant: str) -> Path:
        return folder_of(self._directory, tenant)


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

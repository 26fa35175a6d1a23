"""Master keys in files that can be destroyed: a folder a tenant, a file a version, wrapped by a KMS or not."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.keys import KeyAlteredError, KeyFaultError, KeyGoneError, Marks, Survivors, bound, folder_of
from audit.seal import KEY_BYTES, Random
from audit.spool import write_whole

__all__ = ["Cover", "FileKeys"]

COVER_SECONDS: Final = 900.0  # how long a key that was unwrapped is used before its cover is asked again
KNOWN: Final = 16_384  # keys in memory
_NONCE: Final = 12
_VERSION: Final = re.compile(r"([1-9][0-9]{0,8})\.key")


class Cover(Protocol):
    """Wraps master keys before they lie in files. All raise KeyFaultError."""

    @property
    def name(self) -> str:
        """Of the key that it wraps under now."""
        ...

    def close(self, plain: bytes, context: Mapping[str, str]) -> bytes:
        """Bound to ``context``."""
        ...

    def open(self, name: str, covered: bytes, context: Mapping[str, str]) -> bytes:
        """``name``: of the key that it was wrapped under."""
        ...


class Covered(msgspec.Struct, frozen=True):
    """A master key in its file, wrapped: under which key, and 8 bytes by which what comes back is known to be it."""

    under: str
    key: bytes
    check: bytes


_COVERED: Final = msgspec.msgpack.Decoder(Covered)


class FileKeys:
    """A directory with one folder a tenant and one file a version, shared by all who seal or open in a jurisdiction."""

    def __init__(
        self, directory: Path, random: Random, cover: Cover | None = None, monotonic: Callable[[], float] | None = None
    ) -> None:
        """``cover``: wraps them in their files; it is asked again for one that was unwrapped COVER_SECONDS ago."""
        self._directory, self._random, self.cover = directory, random, cover
        self._monotonic = monotonic or time.monotonic
        self._known: dict[tuple[str, int], tuple[bytes, tuple[int, int], float]] = {}
        self._marks = Marks(directory)
        self._survivors = Survivors(directory)

    def current(self, tenant: str) -> int:
        return self.latest(tenant) or self.rotate(tenant)

    def latest(self, tenant: str) -> int | None:
        ended = self._marks.ended(tenant)
        return max((version for version in self.versions(tenant) if version not in ended), default=None)

    def versions(self, tenant: str) -> list[int]:
        try:
            names = [path.name for path in self._folder(tenant).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise KeyFaultError(f"{self._folder(tenant)}: {fault.strerror}") from fault
        return sorted(int(match[1]) for name in names if (match := _VERSION.fullmatch(name)))

    def destroyed(self, tenant: str, version: int) -> bool:
        return version in self._marks.ended(tenant) and version not in self.versions(tenant)

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
        return self._make(tenant, max([*self.versions(tenant), self._marks.ended(tenant).last]) + 1)

    def destroy(self, tenant: str, version: int, survivors: Mapping[str, tuple[int, bytes]]) -> None:
        """First it is marked, so that no version is used of which a part may be gone; then the files end."""
        self._survivors.keep(tenant, version, survivors)
        self._marks.mark(tenant, until=version)
        for old in self.versions(tenant):
            if old <= version:
                self._end(tenant, old)

    def give_up(self, tenant: str, versions: Collection[int]) -> None:
        self._marks.mark(tenant, others=versions)

    def where(self, tenant: str) -> str:
        return str(self._folder(tenant))

    def survivor(self, tenant: str, key_id: str) -> tuple[int, bytes] | None:
        return self._survivors.find(tenant, key_id)

    def _key(self, tenant: str, version: int) -> bytes:
        """Looked at each time: a key that was destroyed must not live on in a process that remembers it."""
        path = f"{self._folder(tenant)}/{version}.key"  # a Path takes longer than to look
        if version in self._marks.ended(tenant):  # its file too, which may come back with a copy of the directory
            self._known.pop((tenant, version), None)
            raise KeyGoneError(f"version {version} of the key of {tenant!r} was destroyed")
        try:
            told = os.stat(path)  # noqa: PTH116
            stamp = (told.st_ino, told.st_mtime_ns)
            known = self._known.get((tenant, version))
            if known is not None and known[1] == stamp and (self.cover is None or self._monotonic() < known[2]):
                return known[0]
            data = Path(path).read_bytes()
        except FileNotFoundError:
            self._known.pop((tenant, version), None)
            raise KeyGoneError(f"version {version} of the key of {tenant!r} is gone") from None
        except OSError as fault:
            raise KeyFaultError(f"{path}: {fault.strerror}") from fault
        key = self._uncovered(tenant, version, Path(path), data)
        self._known[tenant, version] = (key, stamp, self._monotonic() + COVER_SECONDS)
        bound(self._known, KNOWN)
        return key

    def _uncovered(self, tenant: str, version: int, path: Path, data: bytes) -> bytes:
        """What is in a key's file, whether it is wrapped or not: those from before it was configured are not."""
        if data and not data.strip(b"\0"):
            raise KeyGoneError(f"version {version} of the key of {tenant!r} is being destroyed")
        if len(data) == KEY_BYTES:
            return data
        try:
            covered = _COVERED.decode(data)
        except msgspec.DecodeError:
            raise KeyFaultError(f"{path}: must be exactly {KEY_BYTES} bytes, or a wrapped key") from None
        if self.cover is None:
            raise KeyFaultError(f"{path}: wrapped under {covered.under}, but no such key is configured")
        try:
            key = self.cover.open(covered.under, covered.key, self._context(tenant, version))
        except KeyFaultError as fault:
            raise KeyFaultError(f"{path}: {fault}") from fault
        if not hmac.compare_digest(_check(key), covered.check):
            raise KeyFaultError(f"{path}: {covered.under} gives back another key than it was given")
        return key

    def _covered(self, tenant: str, version: int, key: bytes) -> bytes:
        """As it lies in its file. What cannot be unwrapped again is never written."""
        if self.cover is None:
            return key
        context = self._context(tenant, version)
        wrapped = self.cover.close(key, context)
        if not hmac.compare_digest(self.cover.open(self.cover.name, wrapped, context), key):
            raise KeyFaultError(f"{self.cover.name} gives back another key than it was given")
        return msgspec.msgpack.encode(Covered(self.cover.name, wrapped, _check(key)))

    def _context(self, tenant: str, version: int) -> dict[str, str]:
        """Told in the cover's own records too (CloudTrail): who asked for whose key."""
        return {"use": "triton-warden master key", "tenant": self._folder(tenant).name, "version": str(version)}

    def covers(self, tenant: str) -> dict[int, str]:
        """What each version that is here is wrapped under; "" where it is not wrapped."""
        found = {}
        for version in self.versions(tenant):
            path = self._folder(tenant) / f"{version}.key"
            try:
                data = path.read_bytes()
                if data.strip(b"\0") or not data:  # else its destruction broke off
                    found[version] = "" if len(data) == KEY_BYTES else _COVERED.decode(data).under
            except FileNotFoundError:
                continue
            except (OSError, msgspec.DecodeError) as fault:
                raise KeyFaultError(f"{path}: {fault}") from fault
        return found

    def cover_anew(self, tenant: str) -> list[int]:
        """Wrap those that are not wrapped, or under another key than now; their versions. Raises KeyFaultError.

        Their old bytes end where the file system writes in place.
        """
        name, done = "" if self.cover is None else self.cover.name, []
        for version, under in self.covers(tenant).items():
            if under == name or version in self._marks.ended(tenant):
                continue
            path = self._folder(tenant) / f"{version}.key"
            data = self._covered(tenant, version, self._key(tenant, version))
            try:
                with path.open("r+b") as old:
                    write_whole(path, data)
                    old.write(bytes(os.fstat(old.fileno()).st_size))
                    old.flush()
                    os.fsync(old.fileno())
            except OSError as fault:
                raise KeyFaultError(f"{path}: {fault.strerror}") from fault
            done.append(version)
        return done

    def _make(self, tenant: str, version: int) -> int:
        """Whole or not at all, and never over another's: several sidecars may make a tenant's first key at once."""
        folder = self._folder(tenant)
        part = folder / f".{self._random(8).hex()}.part"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(part, self._covered(tenant, version, self._random(KEY_BYTES)))
            os.link(part, folder / f"{version}.key")
            _sync(folder)
        except FileExistsError:
            pass
        except KeyFaultError:
            raise
        except OSError as fault:
            raise KeyFaultError(f"{folder}: {fault.strerror}") from fault
        finally:  # where the link fails, too: nobody who destroys keys would look there for one
            part.unlink(missing_ok=True)
        return version

    def _end(self, tenant: str, version: int) -> None:
        """Its blocks too, where the file system writes in place."""
        path = self._folder(tenant) / f"{version}.key"
        self._known.pop((tenant, version), None)
        try:
            with path.open("r+b") as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            _sync(path.parent)
        except FileNotFoundError:
            return
        except OSError as fault:
            raise KeyFaultError(f"{path}: {fault.strerror}") from fault

    def _folder(self, tenant: str) -> Path:
        return folder_of(self._directory, tenant)


def _check(key: bytes) -> bytes:
    """8 bytes that tell keys apart and say nothing of them."""
    return hashlib.sha256(b"warden master key\0" + key).digest()[:8]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Tenants' master keys in the transit engine of a Vault or OpenBao: they never leave it, and trimming ends them."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from audit.asking import ask
from audit.keys import KeyAlteredError, KeyFaultError, KeyGoneError, Marks, Survivors
from audit.secretfile import KeyFault, read_secret

__all__ = ["Transit", "TransitKeys"]

_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN_BYTES: Final = 4096
_ANSWER_BYTES: Final = 1 << 20
TIMEOUT: Final = 3.0  # seconds of one step on the network
WHOLE: Final = 10.0  # seconds of one answer, however it drips
# What the engine says of a version below min_decryption_version, and of bytes that are not what it made.
_GONE: Final = ("too old", "disallowed by policy", "no such version", "key version")
_ALTERED: Final = ("authentication failed", "invalid ciphertext", "illegal base64", "no prefix", "invalid nonce")


@dataclass(frozen=True, slots=True)
class Transit:
    """Where the engine is: ``address`` an https URL (or http on loopback), ``token_file`` read anew at each call."""

    address: str
    token_file: Path
    mount: str = "transit"
    prefix: str = "warden-"
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Key:
    """One key by its versions: the ``latest``, the first that is ``available`` at all, those ``usable`` to decrypt."""

    latest: int
    available: int
    usable: tuple[int, ...]


def _key(told: Any) -> _Key:
    """Raises whatever comes of it that it is none."""
    latest, available = int(told["latest_version"]), int(told.get("min_available_version", 0))
    if latest < 1:
        raise ValueError("no version")
    first = max(int(told.get("min_decryption_version", 1)), available)
    return _Key(latest, available, tuple(sorted(version for version in map(int, told["keys"]) if version >= first)))


class TransitKeys:
    """``audit.keys.KeyProvider`` over the engine. What is wrapped, and what was given up, is in ``directory``."""

    def __init__(self, place: Transit, directory: Path) -> None:
        self._place, self._survivors, self._marks = place, Survivors(directory), Marks(directory)
        url = urlsplit(place.address)
        self._host, self._port, self._secure = url.hostname or "", url.port, url.scheme == "https"
        self._context = ssl.create_default_context(cafile=place.ca_file) if self._secure else None

    def current(self, tenant: str) -> int:
        return self.latest(tenant) or self.rotate(tenant)

    def latest(self, tenant: str) -> int | None:
        found = self._read(tenant)
        return None if found is None or found.latest in self._marks.ended(tenant) else found.latest

    def versions(self, tenant: str) -> list[int]:
        found = self._read(tenant)
        return [] if found is None else list(found.usable)

    def destroyed(self, tenant: str, version: int) -> bool:
        found = self._read(tenant)
        trimmed = found is not None and 0 < version < found.available
        return trimmed or version in self._marks.ended(tenant)

    def wrap(self, tenant: str, version: int, key: bytes, context: bytes) -> bytes:
        told = {"plaintext": _b64(key), "associated_data": _b64(context), "key_version": version}
        return self._text(self._call("POST", f"encrypt/{self._name(tenant)}", told), "ciphertext").encode()

    def unwrap(self, tenant: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        if version in self._marks.ended(tenant):
            raise KeyGoneError(f"version {version} of the key of {tenant!r} was given up")
        if not wrapped.startswith(b"vault:v%d:" % version):
            raise KeyAlteredError(f"a data key of {tenant!r} was not wrapped by version {version}, or altered")
        told = {"ciphertext": wrapped.decode("ascii", "replace"), "associated_data": _b64(context)}
        text = self._text(self._call("POST", f"decrypt/{self._name(tenant)}", told), "plaintext")
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise KeyFaultError(f"{self._place.address}: what it calls a plaintext is not base64") from None

    def mac(self, tenant: str, version: int, text: bytes) -> bytes:
        told = {"input": _b64(hashlib.sha256(b"warden lookup\0" + text).digest()), "key_version": version}
        found = self._text(self._call("POST", f"hmac/{self._name(tenant)}", told), "hmac")
        if not found.startswith(f"vault:v{version}:"):
            raise KeyFaultError(f"{self._place.address}: made a MAC under another version than was asked for")
        try:
            mac = base64.b64decode(found.rpartition(":")[2], validate=True)[:16]
        except ValueError:
            mac = b""
        if len(mac) != 16:
            raise KeyFaultError(f"{self._place.address}: what it calls a MAC is none")
        return mac

    def rotate(self, tenant: str) -> int:
        """The engine numbers by itself, an empty one from 1: as often as it takes to be past what was given up."""
        made = self._renewed(tenant)
        while made <= self._marks.ended(tenant).last:
            made = self._renewed(tenant)
        return made

    def _renewed(self, tenant: str) -> int:
        before = self._read(tenant)
        if before is None:
            self._call("POST", f"keys/{self._name(tenant)}", {"type": "aes256-gcm96", "exportable": False})
        else:
            self._call("POST", f"keys/{self._name(tenant)}/rotate", {})
        found = self._read(tenant)
        if found is None or (before is not None and found.latest <= before.latest):
            raise KeyFaultError(f"{self._place.address}: a key that was just made is not there")
        return found.latest

    def destroy(self, tenant: str, version: int, survivors: Mapping[str, tuple[int, bytes]]) -> None:
        """The engine trims from the oldest on: what is older than ``version`` goes with it."""
        self._survivors.keep(tenant, version, survivors)
        name, least = self._name(tenant), version + 1
        self._call("POST", f"keys/{name}/config", {"min_decryption_version": least, "min_encryption_version": least})
        self._call("POST", f"keys/{name}/trim", {"min_available_version": least})
        if not self.destroyed(tenant, version):
            raise KeyFaultError(f"{self._place.address}: version {version} of {name} was to be destroyed, and is not")

    def give_up(self, tenant: str, versions: Collection[int]) -> None:
        self._marks.mark(tenant, others=versions)

    def where(self, tenant: str) -> str:
        return f"{self._place.address} {self._place.mount}/keys/{self._name(tenant)}"

    def survivor(self, tenant: str, key_id: str) -> tuple[int, bytes] | None:
        return self._survivors.find(tenant, key_id)

    # --- the wire -------------------------------------------------------------------------------------------------

    def _name(self, tenant: str) -> str:
        if _SAFE.fullmatch(tenant):
            return f"{self._place.prefix}t-{tenant}"
        return f"{self._place.prefix}x-{hashlib.sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()}"

    def _read(self, tenant: str) -> _Key | None:
        found = self._call("GET", f"keys/{self._name(tenant)}", None)
        if found is None:
            return None
        try:
            return _key(found["data"])
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            raise KeyFaultError(f"{self._place.address}: describes no key where one was asked for") from None

    def _text(self, found: dict[str, Any] | None, name: str) -> str:
        try:
            text = (found or {})["data"][name]
        except (KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise KeyFaultError(f"{self._place.address}: its answer has no {name}")
        return text

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any] | None:
        """The answer's JSON; None where there is no such key. Raises KeyFaultError, KeyGoneError, KeyAlteredError."""
        status, data = self._send(method, f"/v1/{self._place.mount}/{path}", body)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        try:
            found = json.loads(data) if data else {}
        except (ValueError, RecursionError):
            raise KeyFaultError(f"{self._place.address}: answers {status} with what is no JSON") from None
        if status < 300 and isinstance(found, dict):
            return found
        errors = found.get("errors") if isinstance(found, dict) else None
        words = " ".join(map(str, errors)) if isinstance(errors, list) else ""
        if status == http.HTTPStatus.BAD_REQUEST and any(sign in words for sign in _ALTERED):
            raise KeyAlteredError(f"{self._place.address}: {words[:200]}")
        if status == http.HTTPStatus.BAD_REQUEST and any(sign in words for sign in _GONE):
            raise KeyGoneError(f"{self._place.address}: {words[:200]}")
        raise KeyFaultError(f"{self._place.address}: answers {status} {words[:200]}".rstrip())

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        token = read_secret(self._place.token_file, _TOKEN_BYTES)
        if isinstance(token, KeyFault):
            raise KeyFaultError(token.detail)
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=self._context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        headers = {"X-Vault-Token": token.decode("ascii", "ignore").strip(), "Content-Type": "application/json"}
        try:
            told = None if body is None else json.dumps(body)
            status, data = ask(connection, method, path, told, headers, most=_ANSWER_BYTES, within=WHOLE)
        except (OSError, http.client.HTTPException) as fault:
            raise KeyFaultError(f"{self._place.address}: {fault or type(fault).__name__}") from None
        if len(data) > _ANSWER_BYTES:
            raise KeyFaultError(f"{self._place.address}: its answer is longer than {_ANSWER_BYTES} bytes")
        return status, data


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()

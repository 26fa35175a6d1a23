"""Wraps the tenants' master keys under one key of Google Cloud KMS; as audit.awskms does, and for the same reasons."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import google_crc32c

from audit.keys import KeyFaultError, context_of

__all__ = ["NAME", "GcpKey", "GcpKms"]

# A key's resource name. No version: Google wraps under the primary one, and knows which one wrapped what it unwraps.
NAME: Final = re.compile(
    r"projects/([a-z0-9:.-]{1,80})/locations/([a-z0-9-]{1,64})/keyRings/([A-Za-z0-9_-]{1,63})"
    r"/cryptoKeys/([A-Za-z0-9_-]{1,63})"
)
TIMEOUT: Final = 5.0  # seconds of one try
WHOLE: Final = 12.0  # of all tries of one call
_MOST: Final = 64 * 1024  # bytes of a ciphertext (Cloud KMS quotas: what is encrypted has at most 64 KiB)
_PAUSE: Final = 0.2  # seconds, doubled up to:
_PAUSE_MOST: Final = 2.0


@dataclass(frozen=True, slots=True)
class GcpKey:
    """Which key: ``name`` says its location. ``endpoint``: https (or http on loopback), where it isn't Google's own."""

    name: str
    endpoint: str | None = None

    @property
    def region(self) -> str:
        """Raises ValueError."""
        found = NAME.fullmatch(self.name)
        if found is None:
            raise ValueError(f"{self.name!r} is no projects/P/locations/L/keyRings/R/cryptoKeys/K")
        return found[2]


class GcpKms:
    """``audit.filekeys.Cover`` by a key of Cloud KMS. Credentials: Google's application default, renewed by themselves.

    Both ways carry CRC-32C sums that Google and we check: what was altered on the way is neither wrapped nor used.
    """

    def __init__(self, key: GcpKey) -> None:
        """Raises KeyFaultError where google-cloud-kms isn't installed."""
        self._key, self._lock = key, threading.Lock()
        self._client: Any = None
        try:
            from google.cloud import kms_v1  # noqa: PLC0415 — an extra: whoever has no key there needs none of it
        except ImportError:
            raise KeyFaultError("audit.keys.gcp needs google-cloud-kms: pip install 'triton-warden[gcp]'") from None
        self._kms = kms_v1

    @property
    def name(self) -> str:
        return self._key.name

    def close(self, plain: bytes, context: Mapping[str, str]) -> bytes:
        """Raises KeyFaultError."""
        bound = _bound(context)
        told = self._ask(
            "encrypt", self.name, plaintext=plain, plaintext_crc32c=_sum(plain), additional_authenticated_data=bound,
            additional_authenticated_data_crc32c=_sum(bound),
        )  # fmt: skip
        if not told.name.startswith(f"{self.name}/cryptoKeyVersions/"):
            raise KeyFaultError(f"{self.name}: encrypt was answered under another key, {told.name[:200]}")
        if not (told.verified_plaintext_crc32c and told.verified_additional_authenticated_data_crc32c):
            raise KeyFaultError(f"{self.name}: encrypt did not check what it was sent")
        return _whole(told.ciphertext, told.ciphertext_crc32c, self.name)

    def open(self, name: str, covered: bytes, context: Mapping[str, str]) -> bytes:
        """``name``: the key that wrapped it, which may be another of this location. Raises KeyFaultError."""
        found = NAME.fullmatch(name)
        if found is None or found[2] != self._key.region:
            raise KeyFaultError(f"wrapped under {name!r}, which is no key of {self._key.region}")
        bound = _bound(context)
        told = self._ask(
            "decrypt", name, ciphertext=covered, ciphertext_crc32c=_sum(covered), additional_authenticated_data=bound,
            additional_authenticated_data_crc32c=_sum(bound),
        )  # fmt: skip
        return _whole(told.plaintext, told.plaintext_crc32c, name)

    def _ask(self, act: str, name: str, **what: Any) -> Any:
        from google.api_core import exceptions, retry  # noqa: PLC0415 — as above
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

        again = retry.if_exception_type(exceptions.ServiceUnavailable, exceptions.ResourceExhausted)
        tries = retry.Retry(again, initial=_PAUSE, maximum=_PAUSE_MOST, timeout=WHOLE)
        try:
            return getattr(self._connected(), act)(request={"name": name, **what}, timeout=TIMEOUT, retry=tries)
        except exceptions.RetryError as fault:
            raise KeyFaultError(f"{name}: {act}: {_words(fault.cause or fault)}") from None
        except (exceptions.GoogleAPIError, GoogleAuthError, OSError, ValueError) as fault:
            raise KeyFaultError(f"{name}: {act}: {_words(fault)}") from None

    def _connected(self) -> Any:
        """Made when it is first needed, with the credentials that are there then. Safe for several threads."""
        with self._lock:
            if self._client is None:
                self._client = self._made()
            return self._client

    def _made(self) -> Any:
        client = self._kms.KeyManagementServiceClient
        if self._key.endpoint is None:
            return client()
        url = urlsplit(self._key.endpoint)
        if url.scheme == "https":
            return client(client_options={"api_endpoint": f"{url.hostname}:{url.port or 443}"})
        import grpc  # noqa: PLC0415 — on loopback only, without credentials: what stands there adds them

        transport = client.get_transport_class("grpc")
        return client(transport=transport(channel=grpc.insecure_channel(url.netloc)))


def _bound(context: Mapping[str, str]) -> bytes:
    return context_of(part for pair in sorted(context.items()) for part in pair)


def _sum(data: bytes) -> int:
    return int(google_crc32c.value(data))


def _whole(data: bytes, checksum: int, name: str) -> bytes:
    if not 0 < len(data) <= _MOST:
        raise KeyFaultError(f"{name}: its answer holds nothing that it was asked for")
    if checksum != _sum(data):
        raise KeyFaultError(f"{name}: its answer was altered on the way")
    return data


def _words(fault: BaseException) -> str:
    code = getattr(getattr(fault, "grpc_status_code", None), "name", "")
    return f"{code} {' '.join(str(fault).split())[:300]}".strip()

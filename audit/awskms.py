"""Wraps the tenants' master keys under one key of AWS KMS, so that a copy of their directory opens nothing by itself.

A KMS key for each tenant and version would never leave KMS either way, but each costs a month's price and counts in an
account's quota, its deletion takes a week at least, and a tenant's master key is renewed with each erasure and each day
of retention. So KMS has one key, and what it wraps are 32 bytes in a file, which end at once with the file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.keys import KeyFaultError

__all__ = ["ARN", "AwsKey", "AwsKms"]

# A key's own name. No alias, which can be pointed at another key; none of several regions (mrk-), which lies in each.
ARN: Final = re.compile(r"arn:(aws[a-z-]*):kms:([a-z0-9-]{1,64}):([0-9]{12}):key/([A-Za-z0-9][A-Za-z0-9-]{0,127})")
CONNECT: Final = 3.0  # seconds
READ: Final = 5.0  # seconds of silence
TRIES: Final = 3  # of one call: KMS throttles an account as a whole
_BLOB: Final = 6144  # bytes of a ciphertext (KMS API reference, Decrypt)


@dataclass(frozen=True, slots=True)
class AwsKey:
    """Which key: ``arn`` says its region. ``endpoint``: https (or http on loopback), where it isn't Amazon's own."""

    arn: str
    endpoint: str | None = None
    ca_file: Path | None = None

    @property
    def region(self) -> str:
        """Raises ValueError."""
        found = ARN.fullmatch(self.arn)
        if found is None:
            raise ValueError(f"{self.arn!r} is no arn:aws:kms:REGION:ACCOUNT:key/ID")
        return found[2]


class AwsKms:
    """``audit.filekeys.Cover`` by a key of AWS KMS. Credentials: what AWS's own tools find, renewed by themselves."""

    def __init__(self, key: AwsKey) -> None:
        """Raises KeyFaultError where botocore isn't installed."""
        self._key, self._lock = key, threading.Lock()
        self._client: Any = None
        try:
            import botocore.session  # noqa: PLC0415 — an extra: whoever has no key there needs none of it
        except ImportError:
            raise KeyFaultError("audit.keys.aws needs botocore: pip install 'triton-warden[aws]'") from None
        self._sessions = botocore.session

    @property
    def name(self) -> str:
        return self._key.arn

    def close(self, plain: bytes, context: Mapping[str, str]) -> bytes:
        """Raises KeyFaultError."""
        told = self._ask("encrypt", Plaintext=plain, EncryptionContext=dict(context))
        return _bytes(told, "CiphertextBlob", self.name)

    def open(self, name: str, covered: bytes, context: Mapping[str, str]) -> bytes:
        """``name``: the key that wrapped it, which may be another of this region. Raises KeyFaultError."""
        found = ARN.fullmatch(name)
        if found is None or found[2] != self._key.region:
            raise KeyFaultError(f"wrapped under {name!r}, which is no key of {self._key.region}")
        told = self._ask("decrypt", KeyId=name, CiphertextBlob=covered, EncryptionContext=dict(context))
        return _bytes(told, "Plaintext", name)

    def _ask(self, act: str, **what: Any) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 — as above

        named = what.setdefault("KeyId", self.name)
        try:
            told: Mapping[str, Any] = getattr(self._connected(), act)(**what)
        except ClientError as fault:
            error = fault.response.get("Error", {})
            words = f"{error.get('Code', 'no code')} {error.get('Message', '')}".strip()[:300]
            raise KeyFaultError(f"{named}: {act}: {words}") from None
        except (BotoCoreError, OSError, ValueError) as fault:
            raise KeyFaultError(f"{named}: {act}: {' '.join(str(fault).split())[:300]}") from None
        if told.get("KeyId") != named:
            raise KeyFaultError(f"{named}: {act} was answered under another key, {str(told.get('KeyId'))[:200]}")
        return told

    def _connected(self) -> Any:
        """Made when it is first needed: botocore reads its models for a tenth of a second. Safe for several threads."""
        from botocore.config import Config  # noqa: PLC0415 — as above

        with self._lock:
            if self._client is None:
                self._client = self._sessions.get_session().create_client(
                    "kms",
                    region_name=self._key.region,
                    endpoint_url=self._key.endpoint,
                    verify=str(self._key.ca_file) if self._key.ca_file else None,
                    config=Config(
                        connect_timeout=CONNECT,
                        read_timeout=READ,
                        retries={"total_max_attempts": TRIES, "mode": "standard"},
                        ignore_configured_endpoint_urls=True,  # no variable of the environment leads it elsewhere
                    ),
                )
            return self._client


def _bytes(told: Mapping[str, Any], field: str, name: str) -> bytes:
    found = told.get(field)
    if not isinstance(found, bytes) or not 0 < len(found) <= _BLOB:
        raise KeyFaultError(f"{name}: its answer has no {field}")
    return found

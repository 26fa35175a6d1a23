"""The one door from a credential to a principal (``ports.Identity``): in memory, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, assert_never

from sidecar.core.model import Credential, Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.identity.jwt import TokenVerifier
from sidecar.identity.keys import KeyRing

_NO_KEYS: Final = Denial(Reason.KEY_UNKNOWN, "API keys are not accepted here", rule="api-key")


# SPIFFE-ID §2: no escapes, no empty segments, and none of dots, by which one path would be read as another.
_SPIFFE_ID: Final = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+)*")
_LONGEST_ID: Final = 2048  # bytes


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """Client certificates whose URI fits the glob ``uri`` (``*`` fits ``/`` too) speak for ``tenant``."""

    uri: str
    tenant: str
    roles: tuple[str, ...] = ("tenant",)


class Identifier:
    """Implements ``ports.Identity``: JWTs by configured issuer, API keys by the ring (None: no keys are accepted),
    client certificates, which the wire has verified, by the first rule that fits, and calls on a listener bound to one
    principal by that listener's address.
    """

    __slots__ = ("_certificates", "_listeners", "_ring", "_tokens")

    def __init__(
        self,
        tokens: TokenVerifier,
        ring: KeyRing | None,
        certificates: Sequence[CertificateRule] = (),
        listeners: Mapping[str, Principal] = MappingProxyType({}),
    ) -> None:
        self._tokens = tokens
        self._ring = ring
        self._certificates = tuple(certificates)
        self._listeners = {address.encode(): principal for address, principal in listeners.items()}

    def identify(self, credential: Credential, at: float) -> Principal | Denial:
        """``at`` is in seconds since the UNIX epoch."""
        match credential.kind:
            case "jwt":
                return self._tokens.identify(credential.secret.reveal(), at)
            case "api_key":
                return _NO_KEYS if self._ring is None else self._ring.identify(credential.secret.reveal(), at)
            case "certificate":
                return self._certified(credential.secret.reveal().decode("utf-8", "replace"))
            case "listener":
                # A KeyError is a bug of ours: a wire names only listeners that the configuration has.
                return self._listeners[credential.secret.reveal()]
            case kind:
                assert_never(kind)

    def _certified(self, uri: str) -> Principal | Denial:
        if uri.startswith("spiffe:") and (len(uri) > _LONGEST_ID or not _SPIFFE_ID.fullmatch(uri)):
            detail = "the client certificate's URI is no SPIFFE ID"
            return Denial(Reason.CREDENTIAL_MISSING, detail, rule="certificate", internal=f"URI {uri[:256]!r}")
        for rule in self._certificates:
            if fnmatchcase(uri, rule.uri):
                return Principal(tenant=rule.tenant, name=uri, kind="certificate", roles=frozenset(rule.roles))
        detail = "the client certificate is not mapped to a tenant"
        return Denial(Reason.CREDENTIAL_MISSING, detail, rule="certificate", internal=f"URI {uri!r}")

"""The one door from a credential to a principal (``ports.Identity``): in memory, without I/O."""

from __future__ import annotations

from typing import Final, assert_never

from sidecar.core.model import Credential, Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.identity.jwt import TokenVerifier
from sidecar.identity.keys import KeyRing

_NO_KEYS: Final = Denial(Reason.KEY_UNKNOWN, "API keys are not accepted here", rule="api-key")


class Identifier:
    """Implements ``ports.Identity``: JWTs by configured issuer, API keys by the ring (None: no keys are accepted)."""

    __slots__ = ("_ring", "_tokens")

    def __init__(self, tokens: TokenVerifier, ring: KeyRing | None) -> None:
        self._tokens = tokens
        self._ring = ring

    def identify(self, credential: Credential, at: float) -> Principal | Denial:
        """``at`` is in seconds since the UNIX epoch."""
        match credential.kind:
            case "jwt":
                return self._tokens.identify(credential.secret.reveal(), at)
            case "api_key":
                return _NO_KEYS if self._ring is None else self._ring.identify(credential.secret.reveal(), at)
            case kind:
                assert_never(kind)

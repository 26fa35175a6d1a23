"""Reads the client certificate's URIs from x-forwarded-client-cert, as the Envoy that hosts us sets it."""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = "x-forwarded-client-cert"
# Exactly what our configuration makes Envoy write: its own certificate's URIs, the digest, the client's URIs, in that
# order. It quotes none of them, so a signed URI such as "spiffe://a/b;By=x" must not be read as "spiffe://a/b".
_WRITTEN: Final = re.compile(r'(?:By=[^;,"]*;)*Hash=[0-9A-Fa-f]{64}((?:;URI=[^;,"]*)+)')


def uris(value: str) -> tuple[str, ...]:
    """Every ``URI=`` of the one element there is; none where the value is not of that form."""
    match = _WRITTEN.fullmatch(value)
    return () if match is None else tuple(filter(None, match[1].split(";URI=")))

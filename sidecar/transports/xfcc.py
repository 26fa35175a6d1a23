"""Reads the client certificate's URIs from x-forwarded-client-cert, as the Envoy that hosts us sets it."""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = "x-forwarded-client-cert"
# key=value pairs between semicolons; a value with , ; or = stands in double quotes, a quote in it behind a backslash.
_PAIR: Final = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^;,"]*)(?:;|$)')


def uris(value: str) -> tuple[str, ...]:
    """Every ``URI=`` of the one element there is; none where the value is not of that form."""
    found: list[str] = []
    end = 0
    for match in _PAIR.finditer(value):
        if match.start() != end:
            return ()
        end = match.end()
        if match[1] == "URI" and match[2]:
            text = match[2]
            found.append(re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text)
    return tuple(found) if end == len(value) else ()

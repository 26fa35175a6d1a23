"""Triton's statuses told apart: UNAVAILABLE means four things there (facts/triton.md §6), one here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.core.reasons import REASONS, Code, Reason

# Substring of Triton's status text (2.51; the code is kept where none fits) → what it is called here.
_PATTERNS: Final[tuple[tuple[str, Reason], ...]] = (
    ("Exceeds maximum queue size", Reason.UPSTREAM_QUEUE_FULL),
    ("Request timeout expired", Reason.UPSTREAM_TIMEOUT),
    # So that a model that is absent and one that is another's read the same, byte for byte.
    ("Request for unknown model", Reason.MODEL_NOT_FOUND),
    ("This protocol is restricted", Reason.INTERNAL),
    # Envoy's own words where Triton cannot be reached: they name addresses, so they are never relayed.
    ("upstream connect error", Reason.UPSTREAM_UNAVAILABLE),
    ("no healthy upstream", Reason.UPSTREAM_UNAVAILABLE),
    ("upstream request timeout", Reason.UPSTREAM_TIMEOUT),
    # grpcio's words for the same, on the portable wire.
    ("failed to connect to all addresses", Reason.UPSTREAM_UNAVAILABLE),
    ("Connection reset by peer", Reason.UPSTREAM_UNAVAILABLE),
    ("Socket closed", Reason.UPSTREAM_UNAVAILABLE),
    ("recvmsg:", Reason.UPSTREAM_UNAVAILABLE),
)


@dataclass(frozen=True, slots=True)
class Translated:
    """An upstream status as the client shall see it; ``reason`` None: Triton's own code and text stand."""

    code: Code
    message: str
    reason: Reason | None


def translate(code: int, message: str) -> Translated:
    """``code`` is the upstream's gRPC code; one outside the specification reads as UNKNOWN."""
    for pattern, reason in _PATTERNS:
        if pattern in message:
            return Translated(REASONS[reason].code, REASONS[reason].public, reason)
    known = Code(code) if code in Code.__members__.values() else Code.UNKNOWN
    if known is Code.UNAVAILABLE and not message:
        return Translated(known, REASONS[Reason.UPSTREAM_UNAVAILABLE].public, Reason.UPSTREAM_UNAVAILABLE)
    return Translated(known, message, None)

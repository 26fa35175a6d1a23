"""Triton's statuses told apart: UNAVAILABLE means four things there (facts/triton.md §6), one here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sidecar.core.model import RESTRICTED
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.triton import errors
from sidecar.triton.errors import Said

__all__ = ["Translated", "translate", "translate_in_band"]

_UNAVAILABLE: Final = frozenset({Code.UNAVAILABLE})
_INVALID: Final = frozenset({Code.INVALID_ARGUMENT})
_EXPIRED: Final = _UNAVAILABLE | {Code.DEADLINE_EXCEEDED}

# What Triton's own words (2.51) begin with, and the codes they come with → what it is called here. Where none fits, the
# code stands: a model's own error may well speak of a connection that was reset, and none of ours was.
_TRITON: Final[tuple[tuple[str, frozenset[Code], Reason], ...]] = (
    ("Exceeds maximum queue size", _UNAVAILABLE, Reason.UPSTREAM_QUEUE_FULL),
    ("Request timeout expired", _UNAVAILABLE, Reason.UPSTREAM_TIMEOUT),
    # So that a model that is absent and one that is another's read the same, byte for byte. (3: with namespacing.)
    ("Request for unknown model", _UNAVAILABLE | _INVALID | {Code.NOT_FOUND}, Reason.MODEL_NOT_FOUND),
    ("requested model '", _INVALID, Reason.MODEL_NOT_FOUND),  # ModelStatistics' words for the same
    ("requested model version is not available for model '", _INVALID, Reason.MODEL_NOT_FOUND),
    ("This protocol is restricted", _UNAVAILABLE, Reason.INTERNAL),
    ("GRPC server is shutting down", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Server is stopping, scheduler for model", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Server not ready", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Server exiting", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
)
_TRANSPORT: Final[tuple[tuple[str, frozenset[Code], Reason], ...]] = (
    # Envoy's own words where Triton cannot be reached: they name addresses, so they are never relayed.
    ("upstream connect error", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("no healthy upstream", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("upstream request timeout", _EXPIRED, Reason.UPSTREAM_TIMEOUT),
    # grpcio's words for the same, on the portable wire.
    ("failed to connect to all addresses", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Connection reset by peer", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Socket closed", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("recvmsg:", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Stream removed (", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Transport closed", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("GOAWAY received", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Broken pipe", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("end of TCP stream", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
)
_PEER: Final = re.compile(r"^(?:ipv[46]|unix):\S+: ")  # grpcio puts whom it spoke to before its words
_NOT_TOLD: Final = "the model failed; its own words are in the record of call {call}"


@dataclass(frozen=True, slots=True)
class Translated:
    """An upstream status as the client shall see it; ``reason`` None: Triton's own code.

    ``words`` is what a record may say of it unsealed; ``rule`` names what alarms: ``RESTRICTED``.
    """

    code: Code
    message: str
    reason: Reason | None = None
    words: str = ""
    rule: str = ""


def translate(code: int, message: str, said: Said | None) -> Translated:
    """``code`` is the upstream's gRPC code; one outside the specification reads as UNKNOWN.

    ``said``: what the caller may read again. None: it may read all of Triton's words.
    """
    known = Code(code) if code in Code.__members__.values() else Code.UNKNOWN
    for table, own in ((_TRITON, errors.bare(message)), (_TRANSPORT, _PEER.sub("", message, count=1))):
        for beginning, codes, reason in table:
            if known in codes and own.startswith(beginning):
                return _ours(reason, beginning)
    if known is Code.UNAVAILABLE and not message:
        return _ours(Reason.UPSTREAM_UNAVAILABLE, "")
    return _told(known, message, said)


def translate_in_band(message: str, said: Said | None) -> Translated:
    """An error in a stream's message, whose code Triton leaves out."""
    own = errors.bare(message)
    for beginning, _, reason in _TRITON:
        if own.startswith(beginning):
            return _ours(reason, beginning)
    return _told(Code.UNKNOWN, message, said)


def _ours(reason: Reason, beginning: str) -> Translated:
    row = REASONS[reason]
    return Translated(row.code, row.public, reason, beginning, RESTRICTED if reason is Reason.INTERNAL else "")


def _told(code: Code, message: str, said: Said | None) -> Translated:
    if said is None:
        return Translated(code, message, words=message)
    text = errors.tell(message, said)
    if text is None:
        return Translated(code, _NOT_TOLD.format(call=said.call) if message else "")
    return Translated(code, text, words=text)

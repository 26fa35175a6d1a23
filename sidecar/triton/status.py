"""Triton's statuses told apart: UNAVAILABLE means four things there (facts/triton.md §6), one here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sidecar.core.reasons import REASONS, Code, Reason

_UNAVAILABLE: Final = frozenset({Code.UNAVAILABLE})

# Substring of Triton's status text (2.51) and the codes it comes with → what it is called here. Where none fits, code
# and text stand: a model's own error may well speak of a connection that was reset, and none of ours was.
_TRITON: Final[tuple[tuple[str, frozenset[Code], Reason], ...]] = (
    ("Exceeds maximum queue size", _UNAVAILABLE, Reason.UPSTREAM_QUEUE_FULL),
    ("Request timeout expired", _UNAVAILABLE, Reason.UPSTREAM_TIMEOUT),
    # So that a model that is absent and one that is another's read the same, byte for byte. (3: with namespacing.)
    (
        "Request for unknown model",
        _UNAVAILABLE | {Code.NOT_FOUND, Code.INVALID_ARGUMENT},
        Reason.MODEL_NOT_FOUND,
    ),
    ("This protocol is restricted", _UNAVAILABLE, Reason.INTERNAL),
)
_TRANSPORT: Final[tuple[tuple[str, frozenset[Code], Reason], ...]] = (
    # Envoy's own words where Triton cannot be reached: they name addresses, so they are never relayed.
    ("upstream connect error", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("no healthy upstream", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("upstream request timeout", _UNAVAILABLE | {Code.DEADLINE_EXCEEDED}, Reason.UPSTREAM_TIMEOUT),
    # grpcio's words for the same, on the portable wire.
    ("failed to connect to all addresses", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Connection reset by peer", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("Socket closed", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
    ("recvmsg:", _UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE),
)
# What Triton puts before its own words: the ensemble it was a step of, and the client's request id.
_BEFORE: Final = re.compile(r"(?:in ensemble '[^']*', )?(?:\[request id: [^\]]*\] )?")
# What tells of the server, not of the call: where a Python model raised, which inner model it was, and files' places.
_TRACEBACK: Final = re.compile(r"\n\nAt:|\bAt:[ \t]*\r?\n|\bTraceback \(most recent call last\)")
_INSTANCE: Final = re.compile(  # python_backend's words
    r"(?<=Failed to process the request\(s\)) for (?:the )?model(?: instance)? '[^']*'|(?<=Stub process) '[^']*'"
)
_PATH: Final = re.compile(r"(?:\bfile:/*|(?<![\w/]))/(?:[^\s/'\",;:()<>\[\]]+/)+[^\s/'\",;:()<>\[\]]+")


@dataclass(frozen=True, slots=True)
class Translated:
    """An upstream status as the client shall see it; ``reason`` None: Triton's own code and words (``tellable``)."""

    code: Code
    message: str
    reason: Reason | None


def translate(code: int, message: str) -> Translated:
    """``code`` is the upstream's gRPC code; one outside the specification reads as UNKNOWN."""
    known = Code(code) if code in Code.__members__.values() else Code.UNKNOWN
    for pattern, codes, reason in _TRITON + _TRANSPORT:
        if known in codes and pattern in message:
            return _ours(reason)
    if known is Code.UNAVAILABLE and not message:
        return _ours(Reason.UPSTREAM_UNAVAILABLE)
    return Translated(known, tellable(message), None)


def translate_in_band(message: str) -> Translated:
    """An error in a stream's message, whose code Triton leaves out: only what begins with words of its own is told."""
    own = message[_BEFORE.match(message).end() :]  # type: ignore[union-attr]  # it matches the empty text too
    for pattern, _, reason in _TRITON:
        if own.startswith(pattern):
            return _ours(reason)
    return Translated(Code.UNKNOWN, tellable(message), None)


def tellable(message: str) -> str:
    """Triton's words without traceback, inner models' names and absolute paths. The record keeps all of them."""
    found = _TRACEBACK.search(message)
    told = message if found is None else message[: found.start()].rstrip()
    return _PATH.sub("(a path)", _INSTANCE.sub("", told))


def _ours(reason: Reason) -> Translated:
    return Translated(REASONS[reason].code, REASONS[reason].public, reason)

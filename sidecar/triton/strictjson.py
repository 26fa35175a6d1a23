"""JSON that can be read one way only: one object, no duplicate key, no NaN or Infinity, shallow, small."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, Never

from sidecar.core.model import MalformedRequest
from sidecar.core.reasons import Reason

__all__ = ["DEPTH_MAX", "SIZE_MAX", "parse_object"]

SIZE_MAX: Final = 64 * 1024  # bytes of one document
DEPTH_MAX: Final = 16  # objects and arrays inside one another, the outermost included
# A string, or all that follows an unclosed one: without the last ``?`` each quote of a document could be tried anew.
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_OTHERS: Final = re.compile(r"[^{}\[\]]+")


class _DuplicateKeyError(ValueError):
    """Python takes the last of two equal keys, other readers the first."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(next(key for key in keys if keys.count(key) > 1))
    return found


def _constant(word: str) -> Never:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_finite)


def _deep(document: str) -> bool:
    """Whether brackets nest deeper than allowed; most documents haven't that many at all."""
    if document.count("{") + document.count("[") <= DEPTH_MAX:
        return False
    depth = 0
    for char in _OTHERS.sub("", _STRINGS.sub("", document)):
        if char in "{[":
            depth += 1
            if depth > DEPTH_MAX:
                return True
        else:
            depth -= 1
    return False


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The object that ``data`` holds, as Python's ``json.loads`` reads it too (which is what Triton's backends use).

    Raises ``MalformedRequest`` naming ``where``: AMBIGUOUS for duplicate keys, TOO_LARGE over 64 KiB, else MALFORMED.
    """
    if len(data) > SIZE_MAX:
        raise MalformedRequest(f"{where}: {len(data)} bytes of JSON, at most {SIZE_MAX}", Reason.REQUEST_TOO_LARGE)
    try:
        document = data.decode()
        if _deep(document):
            raise MalformedRequest(f"{where}: JSON nests deeper than {DEPTH_MAX}")
        value = _DECODER.decode(document)
    except _DuplicateKeyError as fault:
        key = str(fault)[:128]
        raise MalformedRequest(f"{where}: key {key!a} occurs twice", Reason.REQUEST_AMBIGUOUS) from None
    except ValueError as fault:  # JSON, UTF-8, or an integer of more than 4,300 digits
        raise MalformedRequest(f"{where}: not JSON: {str(fault)[:200]!a}") from None
    if not isinstance(value, dict):
        raise MalformedRequest(f"{where}: must be a JSON object")
    return value

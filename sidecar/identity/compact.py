"""Reads a compact JWS strictly, before any library sees it: what could be read two ways is not read (RFC 8725)."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Never

MAX_TOKEN: Final = 8 * 1024  # bytes of the whole token
MAX_DEPTH: Final = 16  # nested arrays and objects in header or payload

_PART: Final = re.compile(rb"[A-Za-z0-9_-]+")
# A text that nothing ends counts as one to the very end: else each escaped quote in it would be tried as a beginning.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
# Keys or key addresses chosen by the sender, and extensions that change what is signed (RFC 7515 §4.1, RFC 7797).
_REFUSED_HEADERS: Final = ("crit", "jwk", "jku", "x5u", "x5c", "b64", "zip", "enc")


@dataclass(frozen=True, slots=True)
class Compact:
    """A JWS in compact form: its header and payload as the one JSON reading there is."""

    header: Mapping[str, Any]
    payload: Mapping[str, Any]


class _Unreadable(Exception):  # noqa: N818 — control flow inside this module, never seen outside
    """Carries the fault out of nested readers."""


def parse(token: bytes) -> Compact | str:
    """The token's header and payload, or in words why it cannot be read. Never raises; reads at most 8 KiB."""
    if len(token) > MAX_TOKEN:
        return f"it is longer than {MAX_TOKEN} bytes"
    parts = token.split(b".")
    if len(parts) != 3:
        return f"it has {len(parts)} parts, not 3"
    try:
        header = _object(_base64url(parts[0], "header"), "header")
        payload = _object(_base64url(parts[1], "payload"), "payload")
        _base64url(parts[2], "signature")
        _check_header(header)
    except _Unreadable as fault:
        return str(fault)
    return Compact(header, payload)


def strict_json(data: bytes) -> Any:
    """JSON read the one way: UTF-8, no BOM, no duplicate keys, no NaN or infinity, depth ≤ 16; else ``ValueError``."""
    if _too_deep(data):
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_finite, parse_int=_integer
        )
        if "\\u" in text:  # a lone surrogate (\ud800) has no UTF-8 form, so only an escape can have made one
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeError, json.JSONDecodeError, RecursionError) as fault:
        raise ValueError("not JSON in UTF-8") from fault
    return value


def _base64url(part: bytes, where: str) -> bytes:
    """Strict base64url without padding: only the alphabet, a possible length, no stray bits in the last character."""
    if not _PART.fullmatch(part) or len(part) % 4 == 1:
        raise _Unreadable(f"its {where} is not base64url")
    data = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part:
        raise _Unreadable(f"its {where} is not canonical base64url")
    return data


def _object(data: bytes, where: str) -> Mapping[str, Any]:
    try:
        value = strict_json(data)
    except ValueError as fault:
        raise _Unreadable(f"its {where} is {fault}") from None
    if not isinstance(value, dict):
        raise _Unreadable(f"its {where} is not a JSON object")
    return value


def _check_header(header: Mapping[str, Any]) -> None:
    for name in _REFUSED_HEADERS:
        if name in header:
            raise _Unreadable(f"its header may not carry {name}")
    for name in ("alg", "kid", "typ", "cty"):
        if name in header and not isinstance(header[name], str):
            raise _Unreadable(f"its header's {name} is not text")
    if "alg" not in header:
        raise _Unreadable("its header names no alg")
    if "cty" in header:
        raise _Unreadable("nested tokens are not accepted")


def _too_deep(data: bytes) -> bool:
    """Whether brackets nest too deep outside strings; linear, and done before a recursive reader starts."""
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", data)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("JSON with a name given twice")
    return found


def _constant(_: str) -> Never:
    raise ValueError("JSON with NaN or infinity")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("JSON with a number out of range")
    return value


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("JSON with a number out of range")
    return int(digits)

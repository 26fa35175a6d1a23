"""What a pattern (RE2) tells of its matches without being run: how wide they may be, and which bytes may end them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from re import _constants as op  # type: ignore[attr-defined]  # what the parser below speaks in
from re import _parser  # type: ignore[attr-defined]  # the one that knows how long a match can be
from typing import Any, Final

__all__ = ["CONTEXT", "endings", "width"]

CONTEXT: Final = 1024  # bytes before a piece that are searched again with it: what is longer isn't found over pieces
_CHARACTER: Final = 4  # bytes of UTF-8
_BEYOND: Final = frozenset(range(0x80, 0x100))  # any byte of a character beyond ASCII
_ANY: Final = frozenset(range(0x100))
_WORD: Final = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")

_CATEGORIES: Final = {  # RE2's are ASCII's alone
    op.CATEGORY_DIGIT: frozenset(b"0123456789"),
    op.CATEGORY_WORD: _WORD,
    op.CATEGORY_SPACE: frozenset(b" \t\n\v\f\r"),
}


def width(pattern: str) -> int:
    """Bytes that a match may take, at most; of a pattern without bound, ``CONTEXT``.

    Python reads most of what RE2 does, and says so where it doesn't; what both read, but differently, is no longer
    than it is written.
    """
    tree = _parsed(pattern)
    if tree is None:
        return CONTEXT
    return min(4 * max(int(tree.getwidth()[1]), len(pattern)) + _CHARACTER, CONTEXT)


def endings(pattern: str) -> frozenset[int] | None:
    """The bytes with which a match may end, or rather more. None: that can't be told.

    A match that only the byte behind it completes (``\\b`` behind a blank) can't be told either, since who looks for
    its last byte would have passed it by. One that the text's end completes for now is seen there, in doubt.
    """
    tree = None if "{," in pattern else _parsed(pattern)  # ``x{,5}`` is a count to Python and plain text to RE2
    if tree is None:
        return None
    try:
        found, _ = _of(tree, ignoring=bool(tree.state.flags & re.IGNORECASE))
    except _UnknownError:
        return None
    return found


def _parsed(pattern: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return _parser.parse(pattern)
    except (re.error, ValueError, OverflowError, RecursionError, Warning):
        return None


class _UnknownError(Exception):
    """It isn't worth being told apart."""


def _of(items: Any, *, ignoring: bool) -> tuple[frozenset[int], bool]:
    """The bytes that may end a sequence of the parser's items, and whether it may be empty."""
    found: frozenset[int] = frozenset()
    rest = list(items)
    while rest:
        kind, value = rest.pop()
        if kind is op.AT:
            if value in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
                return found | _bounded(rest, value, ignoring=ignoring), False
            continue  # ``$``, ``^`` and their like hold at a text's end for now, or never
        ends, empty = _item(kind, value, ignoring=ignoring)
        found |= ends
        if not empty:
            return found, False
    return found, True


def _bounded(items: Any, boundary: Any, *, ignoring: bool) -> frozenset[int]:
    """Of a sequence before a word's boundary: one that holds at the text's end for now, or never."""
    ends, empty = _of(items, ignoring=ignoring)
    holds = ends <= _WORD if boundary is op.AT_BOUNDARY else ends.isdisjoint(_WORD)
    if empty or not holds:
        raise _UnknownError
    return ends


def _item(kind: Any, value: Any, *, ignoring: bool) -> tuple[frozenset[int], bool]:
    match kind:
        case op.LITERAL:
            return _character(value, ignoring=ignoring), False
        case op.IN:
            return frozenset().union(*_members(value, ignoring=ignoring)), False
        case op.ANY | op.NOT_LITERAL:
            return _ANY, False
        case op.SUBPATTERN:
            _, added, removed, inner = value
            if removed & re.IGNORECASE:
                raise _UnknownError
            return _of(inner, ignoring=ignoring or bool(added & re.IGNORECASE))
        case op.MAX_REPEAT | op.MIN_REPEAT:
            least, _, inner = value
            ends, empty = _of(inner, ignoring=ignoring)
            return ends, empty or least == 0
        case op.BRANCH:
            ways = [_of(way, ignoring=ignoring) for way in value[1]]
            return frozenset().union(*(ends for ends, _ in ways)), any(empty for _, empty in ways)
    raise _UnknownError


def _members(items: Sequence[Any], *, ignoring: bool) -> Iterator[frozenset[int]]:
    for kind, value in items:
        match kind:
            case op.LITERAL:
                yield _character(value, ignoring=ignoring)
            case op.RANGE:
                first, last = value
                yield from (_character(code, ignoring=ignoring) for code in range(first, min(last, 0x7F) + 1))
                if last > 0x7F:
                    yield _character(last, ignoring=ignoring)
            case op.CATEGORY:
                yield _CATEGORIES.get(value, _ANY)
                if ignoring:  # \\w
                    yield _BEYOND
            case _:  # turned round
                yield _ANY


def _character(code: int, *, ignoring: bool) -> frozenset[int]:
    if code > 0x7F:
        # Some letters beyond ASCII are, but for their case, K and s.
        return _BEYOND | frozenset(b"KkSs") if ignoring else _BEYOND
    if not ignoring:
        return frozenset({code})
    return frozenset({*chr(code).lower().encode(), *chr(code).upper().encode()}) | (
        _BEYOND if chr(code) in "KkSs" else frozenset()
    )

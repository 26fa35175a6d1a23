"""Takes personal identifiers out of a text: replaced, hashed or dropped, and counted."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import phonenumbers
import re2  # type: ignore[import-untyped]

from audit import identifiers
from audit.identifiers import CLASSES, Span
from sidecar.core.model import Redaction

__all__ = ["CUT", "PATTERN_CHARS", "Redacted", "Redactor", "compiled", "redactor", "rule_fault"]

_REGIONS: Final = frozenset(phonenumbers.SUPPORTED_REGIONS)  # whose ways of writing phone numbers are known
PATTERN_CHARS: Final = 256
_PATTERN_MEMORY: Final = 1 << 20  # bytes; a pattern that needs more runs slower, never longer than linear
_HASH_BYTES: Final = 8
_DROPPED: Final = "…"  # in a dropped one's place, so that what stood beside it doesn't join into another
_WORD: Final = r"[^\s,;\"'()<>\[\]{}]{0,64}[\d@][^\s,;\"'()<>\[\]{}]{0,64}"
_RAGGED: Final = re.compile(rf"(?<!\S){_WORD}(?: {_WORD}){{0,8}}\Z")
_RAGGED_CHARS: Final = 256
CUT: Final = "[cut]"


class Redacted(msgspec.Struct, frozen=True):
    """A text without the identifiers that were found in it, and how many of each class those were."""

    text: str
    counts: Counter[str]


def rule_fault(kind: str, pattern: str, regions: Sequence[str]) -> str | None:
    """Why there can't be such a ``Redaction``; None: there can."""
    unknown = sorted(set(regions) - _REGIONS)
    if pattern:
        return f"{kind} is a class of ours; a pattern needs a name of its own" if kind in CLASSES else _fault(pattern)
    if kind not in CLASSES:
        return f"no class {kind!r}; known are {', '.join(CLASSES)}; or give it a pattern"
    if regions and kind != "phone":
        return "regions are for phone numbers only"
    return f"no numbering plan is known of {', '.join(unknown)}" if unknown else None


def _fault(pattern: str) -> str | None:
    if len(pattern) > PATTERN_CHARS:
        return f"pattern: {len(pattern)} characters, at most {PATTERN_CHARS}"
    try:
        found = compiled(pattern)
    except re2.error as fault:
        words = fault.args[0] if fault.args else b""
        return f"pattern: not RE2: {words.decode(errors='replace') if isinstance(words, bytes) else words}"
    return "pattern: matches the empty text" if found.search("") is not None else None


@lru_cache(maxsize=8192)
def compiled(pattern: str) -> Any:
    """RE2, within its bounds. Raises ``re2.error``."""
    options = re2.Options()
    options.log_errors, options.max_mem = False, _PATTERN_MEMORY
    return re2.compile(pattern, options=options)


class Redactor:
    """The rules of one tenant, ready to use. ``key`` makes a hash that is the same for the same identifier."""

    def __init__(self, rules: Sequence[Redaction], key: bytes) -> None:
        self._key = key
        self._by: dict[str, str] = {rule.kind: rule.by for rule in rules}
        self._finders = [_finder(rule) for rule in rules]

    def text(self, text: str, *, open_end: bool = False) -> Redacted:
        """``open_end``: the text was cut off, so what might be the beginning of an identifier at its end goes too."""
        counts: Counter[str] = Counter()
        text, ragged = _split_ragged(text) if open_end else (text, "")
        plain = identifiers.plain(text)
        pieces: list[str] = []
        last = 0
        for span in _merged(span for find in self._finders for span in find(plain)):
            pieces += text[last : span.start], self._instead(span, text[span.start : span.end])
            counts[span.kind] += 1
            last = span.end
        pieces += text[last:], ragged
        return Redacted("".join(pieces), counts)

    def _instead(self, span: Span, found: str) -> str:
        match self._by[span.kind]:
            case "replace":
                return f"[{span.kind}]"
            case "drop":
                return _DROPPED
            case _:
                return f"[{span.kind}:{self._digest(found)}]"

    def _digest(self, found: str) -> str:
        """Of the identifier without how it was spaced and spelt, so that it can be told again."""
        same = "".join(char for char in identifiers.plain(found).casefold() if char.isalnum() or char in "@.+:_")
        return hashlib.blake2b(
            same.encode("utf-8", "surrogateescape"), key=self._key, digest_size=_HASH_BYTES
        ).hexdigest()


@lru_cache(maxsize=1024)
def redactor(rules: tuple[Redaction, ...], key: bytes) -> Redactor:
    """``Redactor``, kept: a tenant's rules are the same call after call."""
    return Redactor(rules, key)


def _finder(rule: Redaction) -> Callable[[str], Iterator[Span]]:
    if rule.pattern:
        pattern = compiled(rule.pattern)
        return lambda text: (
            Span(found.start(), found.end(), rule.kind) for found in pattern.finditer(text) if found.group()
        )
    if rule.kind not in CLASSES:
        raise ValueError(f"redaction of {rule.kind!r} is not known to this version")
    return lambda text: identifiers.find(text, rule.kind, rule.regions)


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """In order, those that overlap as one: of the class of the longest, and nothing of the others left over."""
    last: Span | None = None
    longest = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if last is None or span.start >= last.end:
            if last is not None:
                yield last
            last, longest = span, span.end - span.start
            continue
        kind = span.kind if span.end - span.start > longest else last.kind
        longest = max(longest, span.end - span.start)
        last = Span(last.start, max(last.end, span.end), kind)
    if last is not None:
        yield last


def _split_ragged(text: str) -> tuple[str, str]:
    """The text up to the words with digits (or an @) that it ends with, and what stands for those."""
    found = _RAGGED.search(text, max(0, len(text) - _RAGGED_CHARS))
    return (text, "") if found is None else (text[: found.start()], CUT)

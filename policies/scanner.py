"""Looks for patterns and identifiers in texts: for all of them in one pass, and carefully only where they may be."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]  # the one that knows how long a match can be
from typing import Any, Final, NamedTuple

import re2  # type: ignore[import-untyped]

from audit import identifiers
from audit.identifiers import Span
from audit.likely import LIKELY
from audit.redact import compiled

__all__ = ["CONTEXT", "INSTRUCTIONS", "NOTHING", "Look", "Scanner", "scanner"]

CONTEXT: Final = 1024  # bytes before a piece that are searched again with it: what is longer isn't found over pieces
_WITNESS: Final = 128  # bytes: no shape of LIKELY is longer
_TRIGGER: Final = re.compile(rb"[0-9@:\x80-\xff]")  # no shape of LIKELY is without one of these
_CHARACTER: Final = 4  # bytes of UTF-8
_REACH: Final = 256  # characters before a piece in which an identifier that ends in it begins, with what it needs
_PROBE: Final = "\x00 warden \x00"
INSTRUCTIONS: Final = 200_000  # of RE2's, all patterns of one scanner together: a fraction of a second to load
_SET_MEMORY: Final = 32 << 20  # bytes, which RE2 takes as it needs them


class Look(NamedTuple):
    """What one look found, by number. ``doubtful``: only if what comes next doesn't make something else of it.

    ``since``: where in the bytes looked at the first of the doubtful begins.
    """

    certain: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()
    since: int = 0


NOTHING: Final = Look()


class Scanner:
    """Numbers patterns from 0 on in their order, and behind them the classes in theirs. Immutable; any thread's.

    Raises ``ValueError`` where the patterns together need more memory than they may have.
    """

    def __init__(self, patterns: Sequence[str], classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self.size = len(patterns) + len(classes)
        self._patterns = [compiled(pattern) for pattern in patterns]
        size = sum(pattern.programsize for pattern in self._patterns)
        if size > INSTRUCTIONS:
            raise ValueError(f"the patterns together are {size} instructions of RE2's, at most {INSTRUCTIONS}")
        self._width = max(map(_width, patterns), default=0)
        self._likely = [LIKELY[kind] for kind in classes]
        self._set = _set_of(patterns) if patterns else None
        self._shapes = _set_of([likely.shape for likely in self._likely]) if classes else None

    def look(self, data: bytes, fresh: int, hot: dict[int, int], *, first: bool, last: bool) -> Look:
        """Search ``data``, which is new from ``fresh`` on. ``first``: nothing stands before it; ``last``: nor behind.

        ``hot`` is the caller's to keep between the looks of one text: of each class that may be under way, for how
        many characters more. A character that ``data`` ends in the middle of isn't looked at yet.
        """
        whole = len(data) if last else _whole(data)
        text = data if whole == len(data) else data[:whole]
        fresh = min(fresh, whole)
        if not last and not hot and self._nothing(text, fresh):
            return NOTHING
        certain: list[int] = []
        doubtful: list[int] = []
        since = len(data)
        for number, found, start in self._matches(text, fresh, hot, first=first, last=last):
            if found:
                certain.append(number)
            else:
                doubtful.append(number)
                since = min(since, start)
        return Look(tuple(certain), tuple(doubtful), since) if certain or doubtful else NOTHING

    def _nothing(self, data: bytes, fresh: int) -> bool:
        """Whether a glance says that nothing can be found: of most small pieces, and then nothing else is done."""
        if self._shapes is not None and _TRIGGER.search(data, max(0, fresh - _WITNESS)) is not None:
            return False
        return self._set is None or self._set.Match(data[max(0, fresh - self._width) :]) is None

    def _matches(
        self, data: bytes, fresh: int, hot: dict[int, int], *, first: bool, last: bool
    ) -> Iterator[tuple[int, bool, int]]:
        """Number, whether it is certain, and where it begins if it isn't."""
        if self._set is not None:
            cut = max(0, fresh - self._width)
            near = data[cut:] if cut else data
            for number in self._set.Match(near) or ():
                if number < len(self._patterns):
                    yield from self._pattern(number, data, 0 if first and not cut else _next(data, cut), last=last)
        if self._shapes is not None:
            kinds = self._under_way(data, fresh, hot)
            if kinds:
                cut = _character(data, max(0, fresh - _reach(data)))
                # What stands before the first character is not known, so nothing begins with that.
                begin = 0 if first and not cut else _next(data, cut)
                yield from self._identifiers(kinds, data, cut, begin, last=last)

    def _pattern(self, number: int, data: bytes, begin: int, *, last: bool) -> Iterator[tuple[int, bool, int]]:
        pattern = self._patterns[number]
        if last:
            if pattern.search(data, begin) is not None:
                yield number, True, 0
            return
        # RE2 sees past the end it is given: a match that ends before the last character is one whatever comes next.
        if pattern.search(data, begin, _last(data)) is not None:
            yield number, True, 0
        elif (found := pattern.search(data, begin)) is not None:
            yield number, False, found.start()

    def _under_way(self, data: bytes, fresh: int, hot: dict[int, int]) -> list[int]:
        """The classes of which an identifier may end in what is new, by their place among ours."""
        assert self._shapes is not None
        begin = _character(data, fresh) if fresh < len(data) else fresh
        new = identifiers.seen(data[begin:])
        characters = len(new) if new.isascii() else sum(byte & 0xC0 != 0x80 for byte in new)
        near = _before(data, begin) + new
        found = [place for place in self._shapes.Match(near) or () if place < len(self.classes)]
        kinds = set(found)
        for place in [*hot]:
            kinds.add(place)
            hot[place] -= characters
            if hot[place] <= 0:
                del hot[place]
        for place in found:
            hot[place] = self._likely[place].reach
        return sorted(kinds)

    def _identifiers(
        self, kinds: list[int], data: bytes, cut: int, begin: int, *, last: bool
    ) -> Iterator[tuple[int, bool, int]]:
        """What begins from ``begin`` on, in what stands from ``cut`` on."""
        written = data[cut:].decode("utf-8", "surrogateescape")
        text = identifiers.plain(written)
        skipped = len(data[cut:begin].decode("utf-8", "surrogateescape"))
        for place in kinds:
            number = len(self._patterns) + place
            doubtful: Span | None = None
            for span in identifiers.find(text, self.classes[place]):
                if span.start < skipped:
                    continue
                if last or identifiers.certain(text, span):
                    yield number, True, 0
                    break
                doubtful = doubtful or span
            else:
                if doubtful is not None:
                    yield number, False, cut + len(written[: doubtful.start].encode("utf-8", "surrogateescape"))


@lru_cache(maxsize=1024)
def scanner(patterns: tuple[str, ...], classes: tuple[str, ...]) -> Scanner:
    """``Scanner``, shared: ten thousand tenants have a few kinds of guards between them."""
    return Scanner(patterns, classes)


def _reach(data: bytes) -> int:
    """Bytes: ``_REACH`` characters of the kind ``data`` is of; all of it where there is more in it than one sees."""
    if data.isascii():
        return _REACH
    return len(data) if identifiers.hides(data) else _REACH * _CHARACTER


def _before(data: bytes, at: int) -> bytes:
    """So many bytes before ``at`` as a shape may have, not counting what nobody sees."""
    near = data[max(0, at - _WITNESS) : at]
    return identifiers.seen(data[:at])[-_WITNESS:] if identifiers.hides(near) else near


def _width(pattern: str) -> int:
    """Bytes that a match may take, at most; of a pattern without bound, ``CONTEXT``.

    Python reads most of what RE2 does, and says so where it doesn't; what both read, but differently, is no longer
    than it is written.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            most: int = _parser.parse(pattern).getwidth()[1]
    except (re.error, ValueError, OverflowError, RecursionError, Warning):
        return CONTEXT
    return min(4 * max(most, len(pattern)) + _CHARACTER, CONTEXT)


def _set_of(patterns: Sequence[str]) -> Any:
    """One automaton for all. With too little memory to run it finds nothing, so it is asked for a probe once."""
    options = re2.Options()
    options.log_errors, options.max_mem = False, _SET_MEMORY
    found = re2.Set.SearchSet(options)
    for pattern in patterns:
        found.Add(pattern)
    found.Add(_PROBE)
    try:
        found.Compile()
    except re2.error:
        raise ValueError("the patterns together are too large for RE2") from None
    if len(patterns) not in (found.Match(_PROBE.encode()) or ()):
        raise ValueError("the patterns together are too large for RE2")
    return found


def _next(data: bytes, at: int) -> int:
    """Where the first whole character behind the one at ``at`` begins."""
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))


def _character(data: bytes, at: int) -> int:
    """Where the character begins that ``at`` is in."""
    first = at
    while at > 0 and data[at] & 0xC0 == 0x80 and first - at < _CHARACTER - 1:
        at -= 1
    return at


def _last(data: bytes) -> int:
    """Where the last character begins."""
    at = len(data) - 1
    while at > 0 and data[at] & 0xC0 == 0x80 and len(data) - at < 4:
        at -= 1
    return max(at, 0)


_LENGTHS: Final = ((0xF0, 4), (0xE0, 3), (0xC0, 2))


def _whole(data: bytes) -> int:
    """Where the characters end that are there whole; bytes that are none at all count as whole."""
    at = _last(data)
    if at >= len(data) or data[at] < 0xC0:
        return len(data)
    wanted = next(length for least, length in _LENGTHS if data[at] >= least)
    return len(data) if len(data) - at >= wanted else at

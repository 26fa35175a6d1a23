"""Looks for patterns and identifiers in texts: for all of them in one pass, and carefully only where they may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2  # type: ignore[import-untyped]

from audit import identifiers
from audit.identifiers import Span
from audit.likely import LIKELY, SHAPE
from audit.redact import compiled
from policies.shape import CONTEXT, endings, width

__all__ = ["CONTEXT", "INSTRUCTIONS", "NOTHING", "Look", "Scanner", "scanner"]

_CHARACTER: Final = 4  # bytes of UTF-8
_WITNESS: Final = SHAPE * _CHARACTER  # bytes: no shape of LIKELY is longer
# With one of these each shape of LIKELY ends: in ASCII, and in every script.
_TRIGGER: Final = re.compile(rb"[0-9@:\x80-\xff]")
_TRIGGER_BEYOND: Final = re.compile("[\\d@:\uff20\uff1a]")
_AROUND: Final = 50  # characters before an identifier that say whether it is one
_REACH: Final = 256  # characters before a piece in which an identifier that ends in it begins, with what it needs
_NO_UTF8: Final = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of it
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
        self._width = max(map(width, patterns), default=0)
        self._ends = _one_of([endings(pattern) for pattern in patterns])
        self._likely = [LIKELY[kind] for kind in classes]
        self._set: Any = _set_of(patterns) if patterns else None
        self._shapes = _set_of([likely.shape for likely in self._likely]) if classes else None
        self._plain: Any = _set_of([likely.plain for likely in self._likely]) if classes else None

    def quiet(self, data: bytes, fresh: int) -> bool:
        """Whether nothing that is looked for can end in what is new from ``fresh`` on: then it needs no look.

        Of a text in which no identifier is under way (``hot``) and no match in doubt, and of which more follows.
        """
        may_end = self._set is not None and (self._ends is None or self._ends.search(data, fresh) is not None)
        if may_end and self._set.Match(data[max(0, fresh - self._width) :]) is not None:
            return False
        if self._shapes is None or _TRIGGER.search(data, fresh) is None:
            return True
        near = data[max(0, fresh - SHAPE) :]
        return self._plain.Match(near) is None if near.isascii() else self._quiet_beyond(data, fresh)

    def _quiet_beyond(self, data: bytes, fresh: int) -> bool:
        """``quiet``, of identifiers, where there is more than ASCII near."""
        try:
            near = data[_character(data, max(0, fresh - _WITNESS)) :].decode()
        except UnicodeDecodeError:
            return False
        new = len(data) - fresh
        if _TRIGGER_BEYOND.search(near, max(0, len(near) - new)) is None:
            return True
        near = near[-SHAPE - new :]
        return not identifiers.veils(near) and self._plain.Match(identifiers.plain(near).encode()) is None

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

    def nothing(self, text: bytes) -> bool:
        """Whether there is nothing in a whole ASCII text: as ``look`` would say, at half the cost; nearly always so."""
        return (self._set is None or self._set.Match(text) is None) and (
            self._plain is None or self._plain.Match(text) is None
        )

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
                yield from self._identifiers(kinds, data, (cut, begin, fresh), last=last)

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
        near, characters = data[max(0, begin - SHAPE) :], len(data) - begin
        if not near.isascii():
            new = identifiers.seen(data[begin:])
            characters = len(new.decode("utf-8", "surrogateescape")) if hot else 0
            near = _before(data, begin) + new
        found = self._shaped(near)
        kinds = set(found)
        for place in [*hot]:
            kinds.add(place)
            hot[place] -= characters
            if hot[place] <= 0:
                del hot[place]
        for place in found:
            hot[place] = self._likely[place].reach
        return sorted(kinds)

    def _shaped(self, near: bytes) -> list[int]:
        """The classes whose shape is in UTF-8 without what nobody sees, by their place among ours."""
        assert self._shapes is not None
        if not near.isascii():
            text = _readable(near)
            if not self._shapes.Match(text.encode()):
                return []
            near = identifiers.plain(text).encode()
        found = self._plain.Match(near)
        return [place for place in found if place < len(self.classes)] if found else []

    def _identifiers(
        self, kinds: list[int], data: bytes, places: tuple[int, int, int], *, last: bool
    ) -> Iterator[tuple[int, bool, int]]:
        """What begins from ``begin`` on in what stands from ``cut`` on, and may end in what is ``fresh``."""
        cut, begin, fresh = places
        written = data[cut:].decode("utf-8", "surrogateescape")
        text = identifiers.plain(written)
        skipped = len(data[cut:begin].decode("utf-8", "surrogateescape"))
        # A character that ``fresh`` is in the middle of wasn't looked at with what stands before it.
        since_when = _character(data, fresh) if fresh < len(data) else fresh
        known = len(data[cut : max(cut, since_when)].decode("utf-8", "surrogateescape"))
        hidden = identifiers.hides(data[cut:])  # then nobody knows how far back one begins
        for place in kinds:
            number = len(self._patterns) + place
            since = 0 if hidden else max(0, known - self._likely[place].back - _AROUND)
            doubtful: Span | None = None
            near = text[since:]
            first = max(skipped - since, _AROUND if since else 0)
            for span in identifiers.find(near, self.classes[place], begin=first, new=known - since):
                if span.start < first:
                    continue
                if last or identifiers.certain(near, span):
                    yield number, True, 0
                    break
                doubtful = doubtful or span
            else:
                if doubtful is not None:
                    at = since + doubtful.start
                    yield number, False, cut + len(written[:at].encode("utf-8", "surrogateescape"))


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


def _readable(data: bytes) -> str:
    """Each byte that is no UTF-8 as a character that is none of any kind: RE2 has no class that such a byte is in."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _NO_UTF8.sub("\ufffd", data.decode("utf-8", "surrogateescape"))


def _one_of(ends: Sequence[frozenset[int] | None]) -> re.Pattern[bytes] | None:
    """Finds a byte with which something may end; None: any may be one."""
    known = frozenset().union(*(each for each in ends if each is not None))
    if None in ends or len(known) == 256:
        return None
    return re.compile(b"[%s]" % b"".join(b"\\x%02x" % byte for byte in sorted(known))) if known else None


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

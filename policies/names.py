"""Names that patterns can tell apart: one for each way in which some of them fit it and the others don't."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

__all__ = ["MOST_STATES", "Pattern", "apart", "glob", "like", "literal"]

MOST_STATES: Final = 4096  # looked at for one set of patterns; a few dozen globs need a few hundred
MOST_CHARACTERS: Final = 256
_STAR: Final = "any text"
_ONE: Final = "any character"
_FILLERS: Final = "xyzwvukjq0123456789_"

Pattern = tuple[str, ...]  # characters, and the two above
_State = frozenset[tuple[int, int]]  # by pattern: how much of it fits what was read


def glob(text: str) -> Pattern:
    """``*`` is any text, ``?`` any character."""
    return tuple({"*": _STAR, "?": _ONE}.get(each, each) for each in text)


def literal(text: str) -> Pattern:
    return tuple(text)


def like(pattern: Iterable[Any]) -> Pattern:
    """The pattern of a ``like``, as Cedar's JSON has it."""
    return tuple(
        each
        for part in pattern
        for each in ((_STAR,) if part == "Wildcard" else tuple(part["Literal"]))
    )  # fmt: skip


def apart(patterns: Collection[Pattern], other: str) -> list[str]:
    """One name for every set of the patterns that some name fits exactly; ``other`` is a name that may fit none.

    Of patterns whose combinations are more than MOST_STATES some are not found; each alone has its examples all the
    same.
    """
    wanted = sorted(set(patterns))
    filler = _filler(wanted)
    found: dict[frozenset[int], str] = {}
    for name in (other, *_read(wanted, filler)):
        found.setdefault(_fitting(wanted, name), name)
    return sorted(set(found.values()))


def _fitting(patterns: list[Pattern], name: str) -> frozenset[int]:
    state = _start(patterns)
    for character in name:
        state = _next(patterns, state, character)
    return _accepted(patterns, state)


def _accepted(patterns: list[Pattern], state: _State) -> frozenset[int]:
    return frozenset(index for index, place in state if place == len(patterns[index]))


def _read(patterns: list[Pattern], filler: str) -> Iterator[str]:
    """A shortest name to every state of all patterns read side by side, and examples of each pattern."""
    for pattern in patterns:
        for instead in ("", filler):
            name = "".join({_STAR: instead, _ONE: filler}.get(each, each) for each in pattern)
            if name:
                yield name
    start = _start(patterns)
    seen, pending = {start}, deque([(start, "")])
    while pending and len(seen) < MOST_STATES:
        state, name = pending.popleft()
        if name:
            yield name
        if len(name) >= MOST_CHARACTERS:
            continue
        wanted = {patterns[index][place] for index, place in state if place < len(patterns[index])}
        for character in (filler, *sorted(wanted - {_STAR, _ONE})):
            follows = _next(patterns, state, character)
            if follows not in seen:
                seen.add(follows)
                pending.append((follows, name + character))
    yield from (name for _, name in pending if name)


def _start(patterns: list[Pattern]) -> _State:
    return _closed(patterns, ((index, 0) for index in range(len(patterns))))


def _next(patterns: list[Pattern], state: _State, character: str) -> _State:
    def steps() -> Iterator[tuple[int, int]]:
        for index, place in state:
            pattern = patterns[index]
            if place == len(pattern):
                continue
            if pattern[place] == _STAR:
                yield index, place
            elif pattern[place] in (_ONE, character):
                yield index, place + 1

    return _closed(patterns, steps())


def _closed(patterns: list[Pattern], places: Iterable[tuple[int, int]]) -> _State:
    """With what stands behind each ``*``, which may be nothing."""
    found: set[tuple[int, int]] = set()
    for index, place in places:
        pattern, last = patterns[index], place
        found.add((index, last))
        while last < len(pattern) and pattern[last] == _STAR:
            last += 1
            found.add((index, last))
    return frozenset(found)


def _filler(patterns: list[Pattern]) -> str:
    """A character that none of them names."""
    used = {each for pattern in patterns for each in pattern}
    candidates: tuple[str, ...] = (*_FILLERS, *map(chr, range(0xC0, 0x2000)))
    return next(each for each in candidates if each not in used and each.isalnum())

"""Follows one call's output as it streams: what guards find in it, and up to where it may be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidecar.core.model import Finding

if TYPE_CHECKING:
    from policies.scanner import Scanner

__all__ = ["DOUBT_NS", "SEQUENCES", "STEP", "Hold", "Judge", "Lens", "Watch"]

CONTEXT: Final = 1024  # bytes kept to be searched again with what follows (policies.scanner.CONTEXT)
STEP: Final = 2048  # bytes of output that guards which only tell are fed at once
DOUBT_NS: Final = 1_000_000_000  # how long output waits for what decides a match at its very end, at most
SEQUENCES: Final = 64  # outputs of one call that are followed apart; further ones are read as part of the last
_SURE: Final = 2**63


@dataclass(frozen=True, slots=True)
class Hold:
    """``nbytes``: the longest forbidden text of which no byte is sent; ``within_ns``: no token waits longer for it."""

    nbytes: int
    within_ns: int


# What to say of a call's output, of which so many characters and these numbers of the scanner's have been found.
Judge = Callable[[int, frozenset[int]], tuple[Finding, ...]]


@dataclass(frozen=True, slots=True)
class Lens:
    """What is looked for, and who judges it. ``counts``: the judge looks at the length."""

    scanner: Scanner
    judge: Judge
    counts: bool


class _Sequence:
    """One of the outputs of a call (n, beams): a text of its own."""

    __slots__ = ("doubt", "first", "fresh", "hot", "looked", "pieces", "tail")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.fresh = 0  # bytes of them
        self.looked = 0  # bytes that were looked at
        self.tail = b""
        self.first = True  # nothing stands before the tail
        self.hot: dict[int, int] = {}
        self.doubt = _SURE  # where the first match begins that what follows may unmake


class _Follower:
    """Looks through one lens at all outputs of a call; tells each finding once."""

    __slots__ = ("_characters", "_doubtful", "_found", "_lens", "_new", "_told", "sequences")

    def __init__(self, lens: Lens) -> None:
        self._lens = lens
        self.sequences: list[_Sequence] = []
        self._found: frozenset[int] = frozenset()
        self._doubtful: frozenset[int] = frozenset()
        self._characters = 0
        self._new = True  # something that wasn't judged yet
        self._told: set[str] = set()

    def add(self, texts: Sequence[bytes]) -> int:
        """The bytes not looked at yet, of the sequence that has most of them."""
        if len(texts) == 1 and self.sequences and not self._lens.counts:  # nearly always; a token costs no more
            (text,), sequence = texts, self.sequences[0]
            if text:  # a stream of empty ones would pile up unlooked at
                sequence.pieces.append(text)
                sequence.fresh += len(text)
            return sequence.fresh
        return max((self._add(index, text) for index, text in enumerate(texts) if text), default=0)

    def _add(self, index: int, text: bytes) -> int:
        index = min(index, SEQUENCES - 1)
        while len(self.sequences) <= index:
            self.sequences.append(_Sequence())
        sequence = self.sequences[index]
        sequence.pieces.append(text)
        sequence.fresh += len(text)
        if self._lens.counts:
            self._characters += len(text) if text.isascii() else sum(byte & 0xC0 != 0x80 for byte in text)
        return sequence.fresh

    def passed(self, texts: Sequence[bytes]) -> bool:
        """Whether a glance tells that nothing ends in them, so that they needn't be looked at: of most tokens."""
        if len(texts) != 1 or not self.sequences or self._lens.counts or self._new:
            return False
        sequence = self.sequences[0]
        if sequence.hot or sequence.fresh or sequence.doubt != _SURE:
            return False
        data = sequence.tail + texts[0]
        if not self._lens.scanner.quiet(data, len(sequence.tail)):
            return False
        sequence.looked += len(texts[0])
        if len(data) > 2 * CONTEXT:
            data, sequence.first = data[_character(data, len(data) - CONTEXT) :], False
        sequence.tail = data
        return True

    def look(self, *, last: bool = False) -> tuple[Finding, ...]:
        """What is found now; ``last``: nothing follows any more."""
        for sequence in self.sequences:
            if sequence.fresh or (last and sequence.doubt != _SURE):
                self._look(sequence, last=last)
        return self._judged()

    def decide(self) -> tuple[Finding, ...]:
        """What is in doubt counts as found: no answer is never a yes."""
        self._found |= self._doubtful
        self._new = True
        return self._judged()

    def _look(self, sequence: _Sequence, *, last: bool) -> None:
        data = sequence.tail + (sequence.pieces[0] if len(sequence.pieces) == 1 else b"".join(sequence.pieces))
        found = self._lens.scanner.look(data, len(sequence.tail), sequence.hot, first=sequence.first, last=last)
        sequence.looked += sequence.fresh
        sequence.pieces, sequence.fresh = [], 0
        sequence.doubt = _SURE
        if found.certain:
            self._found |= frozenset(found.certain)
            self._new = True
        if found.doubtful and not self._found.issuperset(found.doubtful):
            self._doubtful |= frozenset(found.doubtful)
            sequence.doubt = sequence.looked - len(data) + found.since
        if len(data) > CONTEXT:
            data, sequence.first = data[_character(data, len(data) - CONTEXT) :], False
        sequence.tail = data

    def _judged(self) -> tuple[Finding, ...]:
        if not (self._new or self._lens.counts):
            return ()
        self._new = False
        told = self._lens.judge(self._characters, self._found)
        new = tuple(each for each in told if each.guard not in self._told)
        self._told |= {each.guard for each in new}
        return new


class Watch:
    """One call's output. Implements ``ports.Watch``.

    ``denies`` sees each piece before it may be sent, or before it is let out of the hold; ``tells`` may be later.
    """

    __slots__ = ("_denies", "_hold", "_step", "_tells", "within_ns")

    def __init__(self, denies: Lens | None, tells: Lens | None, hold: Hold | None) -> None:
        self._denies = None if denies is None else _Follower(denies)
        self._tells = None if tells is None else _Follower(tells)
        self._hold = 0 if hold is None else hold.nbytes
        self._step = max(1, self._hold // 2)  # so many bytes at once are looked at, beyond those that are held anyway
        self.within_ns = DOUBT_NS if hold is None else hold.within_ns

    @property
    def holds(self) -> bool:
        """Whether messages may have to wait; else all that was fed, and found in nothing, may be sent."""
        return self._denies is not None

    def feed(self, texts: Sequence[bytes]) -> tuple[Finding, ...]:
        """What is found now that ``texts`` (one a sequence) follow all before them."""
        found: tuple[Finding, ...] = ()
        denies = self._denies
        if denies is not None and not (self._hold == 0 and denies.passed(texts)) and denies.add(texts) >= self._step:
            found = denies.look()
        if self._tells is not None and self._tells.add(texts) >= STEP:
            found += self._tells.look()
        return found

    def look(self) -> tuple[Finding, ...]:
        """What is found in all that was fed: it is time to send some of it."""
        return () if self._denies is None else self._denies.look()

    def decide(self) -> tuple[Finding, ...]:
        """What could be found only if nothing unmakes it, and may be waited for no longer."""
        return () if self._denies is None else self._denies.decide()

    def finish(self) -> tuple[Finding, ...]:
        """What is found now that the output has ended."""
        followers = [each for each in (self._denies, self._tells) if each is not None]
        return tuple(finding for each in followers for finding in each.look(last=True))

    def heard(self) -> tuple[int, ...]:
        """Bytes fed, of each sequence."""
        return () if self._denies is None else tuple([each.looked + each.fresh for each in self._denies.sequences])

    def cleared(self) -> tuple[int, ...]:
        """Bytes of each sequence that may be sent: all but the hold and what is in doubt."""
        if self._denies is None:
            return ()
        return tuple([min(each.looked - self._hold, each.doubt) for each in self._denies.sequences])

    def doubted(self) -> tuple[int, ...]:
        """Bytes of each sequence before the first that is in doubt."""
        return () if self._denies is None else tuple([each.doubt for each in self._denies.sequences])


def _character(data: bytes, at: int) -> int:
    """Where the character begins that ``at`` is in."""
    first = at
    while at > 0 and data[at] & 0xC0 == 0x80 and first - at < 3:
        at -= 1
    return at

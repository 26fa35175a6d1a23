"""Where an identifier may be: one quick look at bytes, before the careful one of ``audit.identifiers``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from audit.national import NATIONAL

__all__ = ["LIKELY", "SHAPE", "Likely"]

SHAPE: Final = 32


class Likely(NamedTuple):
    """``shape`` (RE2, over UTF-8): what no identifier of the class is without, however it is spaced and in any script.

    ``plain``: the same in ASCII alone, which says it more closely (RE2 and Python's alike). Both end with a digit, a
    colon or an at sign, in ASCII within ``SHAPE`` bytes. ``reach``: characters from there to the identifier's own end,
    and what must be seen behind it, at most. ``back``: from that to where it begins, at most.
    """

    shape: str
    plain: str
    reach: int
    back: int


_DIGIT: Final = r"\p{Nd}"
_GAP: Final = (
    r"[ \-\x{a0}\x{ad}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}\x{2010}-\x{2015}\x{2212}\x{fe58}\x{fe63}\x{ff0d}]"
)
_LETTER: Final = r"A-Za-z\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}"
_DOT: Final = r"[.\x{ff0e}]"
_COLON: Final = r"[:\x{ff1a}]"
_HEX: Final = r"[0-9A-Fa-f\p{Nd}\x{ff21}-\x{ff26}\x{ff41}-\x{ff46}]"

_LATER: Final = re.compile(
    r"(?: \?)?(?:-\?)?(?:\[[^]]*[A-Z][^]]*\](?:\?|\{\d\})?)+$"
)  # letters behind a number's last digit
_NEVER: Final = re.compile(r"\(\?![^)]*\)")


def _digits(shape: str) -> str:
    """A national number's shape up to its last digit, without what RE2 can't say."""
    return _LATER.sub("", _NEVER.sub("", shape))


_NATIONAL: Final = "|".join(dict.fromkeys(f"(?:{_digits(row.shape)})" for row in NATIONAL))
_PAIR: Final = r"(?:\d{1,3}\.){3}\d|:[0-9A-Fa-f]{0,4}:"

LIKELY: Final[dict[str, Likely]] = {
    "email": Likely(r"[@\x{ff20}]", "@", 140, 220),  # a label of 63, a dot, a top level
    "phone": Likely(
        rf"[+\x{{ff0b}}][^\p{{L}}{_DIGIT}\n]{{0,6}}{_DIGIT}(?:[^\p{{L}}{_DIGIT}\n]{{0,3}}{_DIGIT}){{5}}",
        r"\+[^A-Za-z0-9\n]{0,6}\d(?:[^A-Za-z0-9\n]{0,3}\d){5}",
        100,
        256,
    ),
    "iban": Likely(rf"[{_LETTER}]{{2}}{_DIGIT}{{2}}", r"(?:^|[^A-Za-z0-9])[A-Za-z]{2}\d{2}", 70, 80),
    "card": Likely(rf"{_DIGIT}(?:{_GAP}?{_DIGIT}){{11}}", r"\d(?:[ -]?\d){11}", 18, 28),
    "national_id": Likely(rf"{_DIGIT}(?:\P{{Nd}}{{0,3}}{_DIGIT}){{4}}", _NATIONAL, 40, 28),
    "ip": Likely(rf"(?:{_DIGIT}{{1,3}}{_DOT}){{3}}{_DIGIT}|{_COLON}{_HEX}{{0,4}}{_COLON}", _PAIR, 48, 64),
}

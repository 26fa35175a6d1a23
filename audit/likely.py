"""Where an identifier may be: one quick look at bytes, before the careful one of ``audit.identifiers``."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["LIKELY", "Likely"]


class Likely(NamedTuple):
    """``shape`` (RE2, over UTF-8): what no identifier of the class is without, however it is spaced and in any script.

    ``reach``: characters from that shape's end to the identifier's own, and what must be seen behind it, at most.
    """

    shape: str
    reach: int


_DIGIT: Final = r"\p{Nd}"
_GAP: Final = (
    r"[ \-\x{a0}\x{ad}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}\x{2010}-\x{2015}\x{2212}\x{fe58}\x{fe63}\x{ff0d}]"
)
_LETTER: Final = r"A-Za-z\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}"
_ALNUM: Final = rf"[{_LETTER}{_DIGIT}]"
_DOT: Final = r"[.\x{ff0e}]"
_COLON: Final = r"[:\x{ff1a}]"
_HEX: Final = r"[0-9A-Fa-f\p{Nd}\x{ff21}-\x{ff26}\x{ff41}-\x{ff46}]"

LIKELY: Final[dict[str, Likely]] = {
    "email": Likely(r"[@\x{ff20}]", 140),  # a label of 63, a dot, a top level
    "phone": Likely(
        rf"[+\x{{ff0b}}][^\p{{L}}{_DIGIT}\n]{{0,6}}{_DIGIT}(?:[^\p{{L}}{_DIGIT}\n]{{0,3}}{_DIGIT}){{5}}", 100
    ),
    "iban": Likely(rf"[{_LETTER}]{{2}}{_DIGIT}{{2}}(?:(?:{_GAP}|{_DOT})?{_ALNUM}){{11}}", 44),
    "card": Likely(rf"{_DIGIT}(?:{_GAP}?{_DIGIT}){{11}}", 18),
    "national_id": Likely(rf"{_DIGIT}(?:\P{{Nd}}{{0,3}}{_DIGIT}){{4}}", 40),
    "ip": Likely(rf"(?:{_DIGIT}{{1,3}}{_DOT}){{3}}{_DIGIT}|{_COLON}{_HEX}{{0,4}}{_COLON}", 48),
}

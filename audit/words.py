"""The words that a text is found by: whole ones without case, and pairs of characters where a script has no spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["MOST", "STOP", "holds", "sought", "words_of"]

MOST: Final = 1000  # different words of one record
CHARS: Final = 64  # of one word; the rest of a longer one does not count
READ_CHARS: Final = 2**20  # of one text; what comes after is not looked at
SOUGHT: Final = 16  # words of one question
_STOP: Final = (
    "a an and are as at be but by for from has have he i in is it its not of on or she that the they this to was we"
    " were will with you your"
)
STOP: Final = frozenset(_STOP.split())
# Scripts that write no spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Python's \w has no vowel signs; without them an Indic word falls into single letters.
_SIGNS: Final = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff"
_TOKEN: Final = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+(?:[\w{_SIGNS}](?<![{_UNSPACED}]))*")
_PAIRED: Final = re.compile(rf"[{_UNSPACED}]")


def words_of(texts: Iterable[str]) -> tuple[set[str], bool]:
    """The different words of some texts, at most MOST; and whether that is not all of them."""
    found: set[str] = set()
    cut = False
    for text in texts:
        cut = cut or len(text) > READ_CHARS
        for word in _words(text[:READ_CHARS]):
            if len(found) >= MOST and word not in found:
                return found, True
            found.add(word)
    return found, cut


def holds(texts: Iterable[str], words: Iterable[str]) -> bool:
    """Whether some texts, read whole, hold all these words."""
    left = set(words)
    for text in texts:
        for word in _words(text):
            left.discard(word)
            if not left:
                return True
    return not left


def sought(text: str) -> list[str] | None:
    """What a record's words must all hold for ``text`` to be found; None where nothing of it is a word that counts."""
    words = (word for word in _words(text[:READ_CHARS]) if len(word) > 1 or not _PAIRED.match(word))
    return list(dict.fromkeys(words))[:SOUGHT] or None


def _words(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(_plain(text)):
        if _PAIRED.match(token):
            yield from (token[at : at + 2] for at in range(max(len(token) - 1, 1)))
        elif len(token) > 1 and token not in STOP:
            yield token[:CHARS]
        elif not token.isascii():
            yield token


def _plain(text: str) -> str:
    """NFKC without case (Unicode's toNFKC_Casefold, but that ignorable characters stay)."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())

"""Finds personal identifiers in text: each class by its shape, and by its check digits where it has any."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import phonenumbers
import re2  # type: ignore[import-untyped]
from stdnum import iban as _iban
from stdnum import luhn

from audit.national import national_ids

__all__ = ["CLASSES", "Span", "certain", "find", "hides", "plain", "seen", "veils"]


class Span(NamedTuple):
    """``text[start:end]`` is an identifier of ``kind``."""

    start: int
    end: int
    kind: str


# --- one reading of the text --------------------------------------------------------------------------------------

_SPACES: Final = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"


@lru_cache(maxsize=4096)
def _plain(char: str) -> str:
    digit = unicodedata.decimal(char, None)
    if digit is not None:
        return str(digit)
    if char in _SPACES:
        return " "
    if char in _DASHES:
        return "-"
    wide = unicodedata.normalize("NFKC", char) if "\uff01" <= char <= "\uff5e" else char
    return wide if len(wide) == 1 else char


_UNLIKE: Final = re.compile(rf"[{_SPACES}{_DASHES}\uff01-\uff5e]|(?![0-9])\d")


def plain(text: str) -> str:
    """The text with digits, spaces and dashes of every script as ASCII's, character by character: offsets stay."""
    return text if text.isascii() else _UNLIKE.sub(lambda found: _plain(found.group()), text)


# What nobody sees, or sees as a mark on the character before: soft hyphens, joiners, signs of direction, variation
# selectors, tags, combining marks (an é may be written as two). No identifier is another for them.
_RANGES: Final = (
    (0xAD, 0xAD), (0x300, 0x36F), (0x61C, 0x61C), (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E),
    (0x2060, 0x206F), (0x20D0, 0x20FF), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xE0000, 0xE0FFF),
)  # fmt: skip
_UNSEEN: Final = re.compile("[{}]+".format("".join(f"{chr(first)}-{chr(last)}" for first, last in _RANGES)))
# RE2 looks through UTF-8 as it is, in a tenth of the time.
_HIDES: Final = re2.compile("[{}]".format("".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in _RANGES)))


def hides(data: bytes) -> bool:
    """Whether there is in UTF-8 what nobody sees."""
    return not data.isascii() and _HIDES.search(data) is not None


def veils(text: str) -> bool:
    """``hides``, of a short text."""
    return _UNSEEN.search(text) is not None


def seen(data: bytes) -> bytes:
    """UTF-8 without what nobody sees."""
    if not hides(data):
        return data
    return _UNSEEN.sub("", data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class _Seen:
    """A text without what nobody sees; ``place`` is where in the whole one of its characters stands."""

    __slots__ = ("_from", "_more", "text")

    def __init__(self, text: str) -> None:
        self._from, self._more = array("q"), array("q")
        left = 0
        pieces, last = [], 0
        for found in _UNSEEN.finditer(text):
            pieces.append(text[last : found.start()])
            self._from.append(found.start() - left)
            left += found.end() - found.start()
            self._more.append(left)
            last = found.end()
        self.text = "".join((*pieces, text[last:]))

    def place(self, at: int) -> int:
        before = bisect_right(self._from, at)
        return at + self._more[before - 1] if before else at


# --- the classes --------------------------------------------------------------------------------------------------

_BEHIND: Final = {"email": 0, "iban": 1, "card": 1, "national_id": 2, "ip": 2}  # characters that can unmake one
_LOCAL: Final = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}\Z")
_DOMAIN: Final = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}")
_NEAR: Final = 64  # characters of a local part (RFC 5321 §4.5.3.1.1)


def _emails(text: str, begin: int, _new: int) -> Iterator[tuple[int, int]]:
    at = text.find("@", begin)
    while at >= 0:
        local = _LOCAL.search(text, max(0, at - _NEAR), at)
        domain = _DOMAIN.match(text, at + 1)
        if local is not None and domain is not None:
            start = local.start() + len(local.group()) - len(local.group().lstrip(".'`{|}~/=*#!?&$^"))
            if start < at:
                yield start, domain.end()
        at = text.find("@", at + 1)


_IBAN: Final = re.compile(r"(?<![^\W_])[A-Za-z]{2}\d{2}(?=[ .-]?[A-Za-z0-9])")
_PARTS: Final = re.compile(r"(\d+)!")


@lru_cache(maxsize=512)
def _iban_length(country: str) -> int:
    """Of the whole IBAN (ISO 13616's registry, as stdnum carries it); 0: no such country."""
    known = _iban._ibandb.info(country)[0][1]  # noqa: SLF001 — the registry has no public door
    return 4 + sum(map(int, _PARTS.findall(known["bban"]))) if known else 0


def _ibans(text: str, begin: int, _new: int) -> Iterator[tuple[int, int]]:
    for head in _IBAN.finditer(text, begin):
        wanted, number, pos = _iban_length(head.group()[:2].upper()), head.group(), head.end()
        while len(number) < wanted and pos < len(text):
            if text[pos] in " .-" and pos + 1 < len(text) and text[pos + 1].isalnum():
                pos += 1
            if not (text[pos].isascii() and text[pos].isalnum()):
                break
            number, pos = number + text[pos], pos + 1
        ends = pos == len(text) or not text[pos].isalnum()
        if wanted and len(number) == wanted and ends and _iban.is_valid(number):
            yield head.start(), pos


_GROUPS: Final = re.compile(r"\d+")
_CARD_LAYOUTS: Final = frozenset({(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4)})
# Issuer identification numbers in use (ISO/IEC 7812-1), by the lengths they are issued with.
_ISSUERS: Final = (
    (re.compile(r"4"), frozenset({13, 16, 19})),
    (re.compile(r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), frozenset({16})),
    (re.compile(r"3[47]"), frozenset({15})),
    (re.compile(r"30[0-5]|309|36|3[89]"), frozenset(range(14, 20))),
    (re.compile(r"6011|64[4-9]|65|62|81"), frozenset(range(16, 20))),
    (re.compile(r"35(?:2[89]|[3-8])"), frozenset(range(16, 20))),
    (re.compile(r"50|5[6-9]|6[0-9]"), frozenset(range(12, 20))),
)


def _is_card(number: str) -> bool:
    issued = any(len(number) in lengths and prefix.match(number) for prefix, lengths in _ISSUERS)
    return issued and luhn.is_valid(number) and len(set(number)) > 1


_CARDLIKE: Final = re.compile(r"\d+(?:[ -]\d+)*")  # groups of digits of which some may be one number
_CARD_DIGITS: Final = 12  # of the shortest number
_CARD_GROUP: Final = 4  # digits that a number in groups begins with


def _cards(text: str, begin: int, new: int) -> Iterator[tuple[int, int]]:
    for region in _CARDLIKE.finditer(text, begin):
        if region.end() - region.start() >= _CARD_DIGITS and region.end() + _BEHIND["card"] >= new:
            yield from _cards_in(text, list(_GROUPS.finditer(text, *region.span())))


def _cards_in(text: str, groups: list[re.Match[str]]) -> Iterator[tuple[int, int]]:
    sizes = tuple(group.end() - group.start() for group in groups)
    at = 0
    while at < len(groups):
        if sizes[at] == _CARD_GROUP:
            counts = [n for n in (5, 4, 3) if len(sizes) - at >= n and sizes[at : at + n] in _CARD_LAYOUTS]
        else:
            counts = [1] if sizes[at] >= _CARD_DIGITS else []
        taken = next((n for n in counts if _is_alone(text, groups[at : at + n])), 0)
        if taken:
            yield groups[at].start(), groups[at + taken - 1].end()
        at += taken or 1


def _is_alone(text: str, groups: list[re.Match[str]]) -> bool:
    """Whether groups of digits are a card's number by themselves, whatever stands farther off on either side."""
    alone = _APART.match(text, groups[-1].end()) is not None and _BEGINS.match(text, groups[0].start()) is not None
    return alone and _is_card("".join(group.group() for group in groups))


_APART: Final = re.compile(r"(?!\w)")
_BEGINS: Final = re.compile(r"(?<![\w.])(?<!\D-)(?<!\A-)")  # a dash only behind another group


_V4: Final = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_V6: Final = re.compile(r"(?<![\w:])(?=[0-9A-Fa-f]{0,38}:)[0-9A-Fa-f:]{2,39}(?:\d{1,3}(?:\.\d{1,3}){3})?(?![\w:])")


def _addresses(text: str, begin: int, _new: int) -> Iterator[tuple[int, int]]:
    for found in _V4.finditer(text, begin):
        if _is_address(found.group()):
            yield found.span()
    for found in _V6.finditer(text, begin):
        address = found.group()
        if address.count(":") >= 2 and address.strip(":") and _is_address(address):
            yield found.span()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_PHONE: Final = re.compile(r"\d(?:[^\w\n]{0,3}\d){5}")  # fewer digits are no number anywhere
_INTERNATIONAL: Final = re.compile(r"[+\uff0b](?=[^\w\n]{0,6}\d(?:[^\w\n]{0,3}\d){5})")
_PHONE_CHARS: Final = 192  # of a number and its extension, however they are spaced


def _phones(text: str, regions: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """International numbers (+…), and those written as in ``regions`` (ISO 3166)."""
    for plus in _INTERNATIONAL.finditer(text):
        first = max(0, plus.start() - 2)  # what stands before tells whether it is a number at all
        near = text[first : plus.start() + _PHONE_CHARS]
        for found in phonenumbers.PhoneNumberMatcher(near, None, max_tries=65_535):
            if found.start <= plus.start() - first < found.end:
                yield first + found.start, first + found.end
    for region in regions if _PHONE.search(text) is not None else ():
        for found in phonenumbers.PhoneNumberMatcher(text, region, max_tries=65_535):
            yield found.start, found.end


# In a text from a place on; those that could be told when it was only so long yet, may be left out.
_FINDERS: Final[dict[str, Callable[[str, int, int], Iterator[tuple[int, int]]]]] = {
    "email": _emails,
    "iban": _ibans,
    "card": _cards,
    "ip": _addresses,
    "national_id": national_ids,
}
CLASSES: Final = ("email", "phone", "iban", "card", "national_id", "ip")


def find(text: str, kind: str, regions: tuple[str, ...] = (), *, begin: int = 0, new: int = 0) -> Iterator[Span]:
    """Every identifier of a class of ``CLASSES`` in ``text``, which ``plain`` has read; ``regions`` are for phones.

    Of those that begin before ``begin``, or that ``certain`` could tell when the text ended at ``new``, some are left
    out.
    """
    if text.isascii() or _UNSEEN.search(text) is None:
        return (Span(start, end, kind) for start, end in _found(text, kind, regions, begin, new))
    whole = _Seen(text)
    return (Span(whole.place(start), whole.place(end), kind) for start, end in _found(whole.text, kind, regions, 0, 0))


def _found(text: str, kind: str, regions: tuple[str, ...], begin: int, new: int) -> Iterator[tuple[int, int]]:
    return _phones(text, regions) if kind == "phone" else _FINDERS[kind](text, begin, new)


_ENDS_PHONE: Final = re.compile(r"[^\W\d]|\n")
_BEHIND_PHONE: Final = 40


def certain(text: str, span: Span) -> bool:
    """Whether it stays an identifier whatever comes behind ``text``: more digits can make another number of one."""
    text = text if text.isascii() else text[: span.end] + _UNSEEN.sub("", text[span.end :])
    behind = len(text) - span.end
    if span.kind == "phone":
        return behind >= _BEHIND_PHONE or _ENDS_PHONE.search(text, span.end) is not None
    return behind >= _BEHIND[span.kind]

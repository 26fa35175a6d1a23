"""policies.scanner: a text told in pieces is searched as the whole is."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
import re2  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from audit import identifiers
from audit.likely import LIKELY, SHAPE
from policies.scanner import CONTEXT, NOTHING, Scanner, scanner
from policies.shape import endings
from policies.watching import Hold, Lens, Watch
from sidecar.core.holdback import HoldBack
from sidecar.core.model import Finding

PATTERNS = (
    r"(?i)project\s+x",
    r"\bass\b",
    r"^start",
    r"end$",
    r"gehütet",
    r"[^a]b{2,4}\B",
    r"a.c",
    r"(?m)^line$",
    r"secret.*",
    r"\pL{3}9",
)
PLANTED = (
    "4111 1111 1111 1111", "4111111111111111", "378282246310005", "DE89 3704 0044 0532 0130 00",
    "GB82WEST12345698765432",
    "bob@example.com", "a.b+c@sub.example.co.uk", "+49 30 901820", "+1 (202) 555-0143", "10.0.0.1", "fe80::1",
    "2001:db8::8a2e:370:7334", "536-90-4399", "SSN 536904399", "12345678Z", "BSN 111222333", "RSSMRA85T10A562S",
    "4111-1111-1111-1111", "\u0664\u0661\u0661\u0661 1111 1111 1111", "Project  X", "ass", "assume", "start", "end",
    "line", "gehütet", "xbbb", "abc", "secret", "äöü9", "1", "12", " ", "-", ".", "/", ":", "\n", "line\n", "\u00a0",
    "\u3000", "，", "ß", "語", "😀", "word ", "x", "é", "@", "+", "a::b", "\u200b", "\u0301",
)  # fmt: skip
# In which something invisible may stand; and what that may be.
HIDDEN = {
    "card": "4111 1111 1111 1111", "iban": "DE89370400440532013000", "email": "bob.b@sub.example.com",
    "phone": "+49 30 901820", "ip": "10.20.30.40",
}  # fmt: skip
UNSEEN = ("\u200b", "\u00ad", "\u2060", "\ufeff", "\u0301", "\u20e3\ufe0f", "\U000e0041", "\u202e", "\u200b" * 9)
CLASSES = identifiers.CLASSES
TOOL = Scanner(PATTERNS, CLASSES)

texts = st.lists(st.sampled_from(PLANTED), min_size=1, max_size=24).map("".join)
raw = st.one_of(texts.map(str.encode), st.lists(st.one_of(texts.map(str.encode), st.binary(max_size=6))).map(b"".join))


def whole(data: bytes, tool: Scanner = TOOL) -> set[int]:
    return set(tool.look(data, 0, {}, first=True, last=True).certain)


def chunked(data: bytes, cuts: list[int], hold: Hold | None, tool: Scanner = TOOL) -> set[int]:
    """What a watch that holds back finds in ``data``, cut at ``cuts``."""
    found: set[int] = set()

    def judge(_length: int, numbers: frozenset[int]) -> tuple[Finding, ...]:
        found.update(numbers)
        return ()

    watch = Watch(Lens(tool, judge, counts=False), None, hold)
    places = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    for begin, end in pairwise(places):
        watch.feed([data[begin:end]])
    watch.finish()
    return found


@settings(max_examples=600, deadline=None)
@given(raw, st.lists(st.integers(0, 400), max_size=60), st.sampled_from([None, Hold(1, 1), Hold(24, 1), Hold(300, 1)]))
def test_pieces_and_the_whole_are_found_the_same(data: bytes, cuts: list[int], hold: Hold | None) -> None:
    """For any text and any cuts, a watch finds in the pieces exactly what one look finds in the whole."""
    data = data[: CONTEXT - 64]
    assert chunked(data, cuts, hold) == whole(data)


digits = st.lists(
    st.sampled_from([
        "4111", "1111", "1112", "1234567", "536", "90", "4399", "12345678", "Z", "78", "756", "9217", "0769", "85",
        "AB", "12", "3", ".", "-", " ", "/", "+49", "30", "901820", "10.0.0", "::", ":1", "DE89", "3704", "0044",
        "0532", "0130", "00", "SSN", "BSN", "111222333", "ü", "\u0664", "\u00a0", "\u200b", "x", "RSSMRA85T10A562S",
        "131052-308T", "8001015009087", "\n", ",",
    ]),
    min_size=1,
    max_size=40,
).map("".join)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(digits.map(str.encode), st.lists(st.integers(0, 300), max_size=60), st.integers(0, 12))
def test_numbers_in_pieces_and_the_whole_are_found_the_same(data: bytes, cuts: list[int], size: int) -> None:
    """As above, of texts in which nearly everything could be a part of a number; also cut evenly, as tokens are."""
    data = data[: CONTEXT - 64]
    tool = Scanner((), CLASSES)
    assert chunked(data, cuts, None, tool) == whole(data, tool)
    if size:
        assert chunked(data, list(range(0, len(data), size)), None, tool) == whole(data, tool)


def test_a_cut_in_the_middle_of_what_follows_a_number_loses_nothing() -> None:
    data = "SSN 536904399\U0001f600".encode()
    tool = Scanner((), CLASSES)
    assert whole(data, tool) == {CLASSES.index("national_id")}
    for at in range(len(data)):
        assert chunked(data, [at], None, tool) == whole(data, tool), at


def test_a_long_text_is_found_the_same_however_it_is_cut() -> None:
    """As above, over many times the context: each planted thing somewhere, all cuts of one length."""
    chance = random.Random(5)
    filler = ["lorem ipsum dolor ", "sit amet, 12 of 34; ", "äöü ß 語 ", "a-b 1-2-3 "]
    for planted in (*CLASSES, None):
        kind = [text for text in PLANTED if planted and any(identifiers.find(identifiers.plain(text), planted))]
        parts = [chance.choice(filler) for _ in range(400)]
        parts.insert(250, f" {chance.choice(kind)} " if kind else " ass ")
        data = "".join(parts).encode()
        expected = whole(data)
        assert expected
        for size in (1, 3, 16, 250, 5000):
            assert chunked(data, list(range(0, len(data), size)), None) == expected, (planted, size)


def test_a_long_name_beyond_ascii_is_one_name() -> None:
    data = f"write to b@{'ü' * 60}.example now".encode()
    assert whole(data) == {len(PATTERNS) + CLASSES.index("email")}
    assert chunked(data, list(range(len(data))), None) == whole(data)


@settings(max_examples=500, deadline=None)
@given(st.one_of(texts, digits))
def test_no_identifier_is_without_its_likely_shape(text: str) -> None:
    """Where ``identifiers.find`` finds a class, the quick looks at bytes find its shapes, not far before its end."""
    for kind in CLASSES:
        plain = identifiers.plain(identifiers.seen(text.encode()).decode())
        found = next(identifiers.find(plain, kind), None)
        if found is None:
            continue
        assert re2.search(LIKELY[kind].shape, identifiers.seen(text.encode())) is not None, kind
        near = re2.compile(LIKELY[kind].plain).finditer(plain)
        assert any(shape.end() <= found.end <= shape.end() + LIKELY[kind].reach for shape in near), kind


@settings(max_examples=400, deadline=None)
@given(raw)
@example(b"\x80DE89 3704 0044 0532 0130 00")
@example("gehütet ".encode() + b"\xe2\x80\x8b\x80DE89 3704 0044 0532 0130 00")
def test_bytes_that_are_no_characters_hide_no_identifier(data: bytes) -> None:
    """Whatever bytes stand around it, what a careful search finds in the text, a look finds in the bytes."""
    text = identifiers.plain(data.decode("utf-8", "surrogateescape"))
    there = {len(PATTERNS) + n for n, kind in enumerate(CLASSES) if any(identifiers.find(text, kind))}
    assert {number for number in whole(data) if number >= len(PATTERNS)} == there


@pytest.mark.parametrize("kind", CLASSES)
def test_a_likely_shape_ends_with_what_a_glance_looks_for(kind: str) -> None:
    likely = LIKELY[kind]
    assert endings(likely.plain) is not None
    assert (endings(likely.plain) or set()) <= set(b"0123456789@:")
    assert re._parser.parse(likely.plain).getwidth()[1] <= SHAPE  # type: ignore[attr-defined]  # as policies.shape


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(text, kind) for kind, text in HIDDEN.items()]),
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(UNSEEN)), min_size=1, max_size=30),
    st.lists(st.integers(1, 400), max_size=30),
)
def test_what_nobody_sees_hides_no_identifier(
    planted: tuple[str, str], marks: list[tuple[int, str]], cuts: list[int]
) -> None:
    """With invisible characters anywhere in it, an identifier is found all the same, in whatever pieces it comes."""
    text, kind = planted
    for at, mark in marks:
        text = text[:at] + mark + text[at:]
    data = f"words, {text}, words".encode()
    expected = {len(PATTERNS) + CLASSES.index(kind)}
    assert whole(data) >= expected
    assert chunked(data, [cut for cut in cuts if cut < len(data)], None) >= expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["ab ", "語", "se", "cret", "sec", "ret", "x" * 30, " "]), max_size=60), st.integers(1, 40)
)
def test_no_byte_of_a_short_forbidden_text_is_let_out(pieces: list[str], nbytes: int) -> None:
    """Of a match no longer than what is held, no byte is in a message that was let out before it was found."""
    watch = Watch(
        Lens(scanner(("secret",), ()), lambda _n, found: _told(found), counts=False), None, Hold(max(6, nbytes), 1)
    )
    held, out, found = HoldBack(watch), "", False
    for piece in pieces:
        found = found or bool(watch.feed([piece.encode()]))
        if found:
            break
        held.put(piece.encode(), 0)
        out += b"".join(held.cleared()).decode()
    at = "".join(pieces).find("secret")
    assert at < 0 or len(out) <= at
    if at < 0:
        assert not watch.finish()
        out += b"".join(held.all()).decode()
        assert out == "".join(pieces)


def _told(found: frozenset[int]) -> tuple[Finding, ...]:
    return (Finding("word", "output", "deny", "deny"),) if found else ()


@pytest.mark.parametrize(
    ("pattern", "most"),
    [("secret", 28), (r"x{,5}", 24), (r"\pL{3}", CONTEXT), (".*", CONTEXT), (r"a\z", CONTEXT), ("a{1,100}", 404)],
)
def test_how_much_of_what_came_before_a_pattern_needs(pattern: str, most: int) -> None:
    assert Scanner([pattern], [])._width == most


def test_patterns_that_are_too_large_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the patterns together are \d+ instructions of RE2's, at most 200000"):
        Scanner([rf"\pL{{9}}{n}" for n in range(20)], [])


@given(st.lists(st.sampled_from(("word ", *filter(str.isascii, PLANTED))), max_size=6).map("".join))
def test_where_nothing_is_said_to_be_a_look_finds_nothing(text: str) -> None:
    looks, data = scanner(PATTERNS, tuple(LIKELY)), text.encode()
    if looks.nothing(data):
        assert looks.look(data, 0, {}, first=True, last=True) == NOTHING


def test_nothing_is_in_plain_words_and_something_in_what_is_looked_for() -> None:
    looks = scanner(PATTERNS, tuple(LIKELY))
    assert looks.nothing(b"all work and no play")
    assert not looks.nothing(b"write to bob@example.com")
    assert not looks.nothing(b"about project  x")

"""policies.shape: what is told of a pattern holds for every match that RE2 finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.redact import compiled, rule_fault
from policies.shape import endings, width

ATOMS = (
    "a", "b", "k", "x", "é", "7", " ", ".", "[ab]", "[^a]", "[a-c]", "[é-ü]", r"\d", r"\w", r"\s", r"\W", r"\pL", r"\b",
    r"\B", "$", "^", "(?:ab)", "(a|b7)", "(?i:kS)", "(?-i:k)", "[[:alpha:]]", r"\.", r"\x41", "ass",
)  # fmt: skip
AFTER = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "{,2}", "*?", "+?")
FLAGS = ("", "", "(?i)", "(?s)", "(?m)")
patterns = st.builds(
    lambda flags, parts: flags + "".join(atom + after for atom, after in parts),
    st.sampled_from(FLAGS),
    st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(AFTER)), min_size=1, max_size=5),
)
texts = st.text(st.sampled_from("abckKsS7x é. ü\u212a\u017f\n{,2}A"), max_size=24)


@settings(max_examples=1500, deadline=None)
@given(patterns, texts)
def test_a_match_ends_as_told_and_is_no_wider(pattern: str, text: str) -> None:
    """For any pattern and text, the last byte of what RE2 finds is among ``endings``, and it is within ``width``.

    Whether a match stands there depends on no later byte: either the text up to it has it too, or it can't be told.
    """
    if rule_fault("word", pattern, ()) is not None:
        return
    data = text.encode()
    ends = endings(pattern)
    for found in compiled(pattern).finditer(data):
        if not found.group():
            continue
        assert len(found.group()) <= width(pattern)
        if ends is not None:
            assert found.group()[-1] in ends
            upto = compiled(pattern).search(data[: found.end()])
            assert upto is not None, "seen when its last byte comes"


@pytest.mark.parametrize(
    ("pattern", "ends"),
    [
        ("secret", b"t"), ("(?i)project x", b"xX"), (r"a\d?", b"a0123456789"), ("a7?", b"a7"), (r"\bass\b", b"s"),
        (r"a \b", None), (r"a\B", None), (r" \B", b" "), ("a(?:b|c*)", b"abc"), ("end$", b"d"), ("x{,5}", None),
        (r"\pL", None), ("[^a]", bytes(range(256))),
    ],
)  # fmt: skip
def test_with_what_a_match_may_end(pattern: str, ends: bytes | None) -> None:
    assert endings(pattern) == (None if ends is None else frozenset(ends))

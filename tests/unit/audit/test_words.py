"""audit.words: whole words without case, pairs where a script has no spaces, bounded, stop words left out."""

from __future__ import annotations

import pytest

from audit import words
from audit.words import MOST, holds, sought, words_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The quick Brown-fox, 42!", {"quick", "brown", "fox", "42"}),
        ("Straße ÄRGER cafe\u0301 CAFÉ", {"strasse", "ärger", "café"}),
        ("ﬁne ＷＩＤＥ", {"fine", "wide"}),
        ("東京タワー", {"東京", "京タ", "タワ", "ワー"}),
        ("GPU東京", {"gpu", "東京"}),
        ("हिन्दी में", {"हिन्दी", "में"}),
        ("ภาษา", {"ภา", "าษ", "ษา"}),
        ("a I of x", set()),
        ("ü", {"ü"}),
        ("x" * 100, {"x" * 64}),
        ("\ufffd\x00 \u200b", set()),
    ],
)
def test_words_of_a_text(text: str, found: set[str]) -> None:
    assert words_of([text]) == (found, False)


def test_what_is_more_than_an_index_takes_is_told() -> None:
    many = " ".join(f"w{n}" for n in range(MOST))
    assert len(words_of([many])[0]) == MOST
    assert words_of([many, "w1 w2"])[1] is False
    found, cut = words_of([many, "another"])
    assert (len(found), cut) == (MOST, True)
    assert words_of(["x" * (words.READ_CHARS + 1)])[1] is True


def test_a_question_is_read_like_a_text() -> None:
    assert sought("The Straße  straße") == ["strasse"]
    assert sought("of the a") is None
    assert sought("東") is None, "one character of a script without spaces is in no index"
    assert len(sought(" ".join(f"w{n}" for n in range(99))) or ()) == words.SOUGHT


def test_a_text_holds_words_wherever_they_stand() -> None:
    assert holds(["one two", "THREE"], ["three", "one"])
    assert not holds(["one two"], ["on"])
    assert holds([" ".join(f"w{n}" for n in range(MOST + 5))], [f"w{MOST + 4}"])

"""audit.redact: what stands in an identifier's place, and that nothing of it is left."""

from __future__ import annotations

import pytest

from audit.redact import CUT, Redactor, rule_fault
from sidecar.core.model import Redaction

KEY = b"k" * 32
CARD = "4111 1111 1111 1111"


def redact(text: str, *rules: Redaction, key: bytes = KEY, open_end: bool = False) -> str:
    return Redactor(rules, key).text(text, open_end=open_end).text


def test_each_way_of_taking_out() -> None:
    text = f"pay with {CARD}."
    assert redact(text, Redaction("card")) == "pay with [card]."
    assert redact(text, Redaction("card", "drop")) == "pay with …."
    hashed = redact(text, Redaction("card", "hash"))
    assert hashed.startswith("pay with [card:")
    assert CARD not in hashed


def test_a_hash_is_the_same_for_the_same_identifier_however_it_is_written_and_for_one_key_only() -> None:
    rule = Redaction("card", "hash")
    assert redact(CARD, rule) == redact(CARD.replace(" ", "-"), rule) == redact(CARD.replace(" ", ""), rule)
    assert redact(CARD, rule) != redact("5555 5555 5555 4444", rule)
    assert redact(CARD, rule) != redact(CARD, rule, key=b"x" * 32)


def test_it_counts_by_class() -> None:
    found = Redactor([Redaction("email"), Redaction("card")], KEY).text(f"a@b.com, c@d.org: {CARD}")
    assert found.counts == {"email": 2, "card": 1}
    assert found.text == "[email], [email]: [card]"


def test_what_overlaps_goes_whole() -> None:
    badge = Redaction("badge", "replace", r"[a-z]+@b")
    found = Redactor([badge, Redaction("email")], KEY).text("to alice@b.example now")
    assert found.text == "to [email] now"
    tail = Redaction("tail", "replace", r"example now")
    assert redact("to alice@b.example now", tail, Redaction("email")) == "to [email]"


def test_what_was_dropped_joins_nothing() -> None:
    middle = Redaction("middle", "drop", r"xx")
    assert "@b.com" not in redact("axx@b.com", middle, Redaction("email"))
    assert redact("4111 1111 xx1111 1111", middle, Redaction("card")) == "4111 1111 …1111 1111"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("it ends with alice@exam", f"it ends with {CUT}"),
        ("it ends with DE89 3704 0044", f"it ends with {CUT}"),
        ("it ends with words", "it ends with words"),
        ("12 apples and alice@example.com, she said", "12 apples and [email], she said"),
    ],
)
def test_the_beginning_of_an_identifier_at_a_cut_end_goes_too(text: str, kept: str) -> None:
    assert redact(text, Redaction("email"), Redaction("iban"), open_end=True) == kept


def test_what_a_rule_may_not_be() -> None:
    assert rule_fault("email", "", ()) is None
    assert rule_fault("badge", r"E-\d{6}", ()) is None
    assert "known are email, phone, iban, card, national_id, ip" in (rule_fault("emial", "", ()) or "")
    assert "a name of its own" in (rule_fault("email", "x", ()) or "")
    assert "not RE2: missing )" in (rule_fault("badge", "(x", ()) or "")
    assert "not RE2" in (rule_fault("badge", r"(?<=a)b", ()) or "")  # RE2 looks back at nothing: it stays linear
    assert "matches the empty text" in (rule_fault("badge", "x*", ()) or "")
    assert "at most 256" in (rule_fault("badge", "x" * 257, ()) or "")
    assert "numbering plan is known of XX" in (rule_fault("phone", "", ("DE", "XX")) or "")
    assert "phone numbers only" in (rule_fault("card", "", ("DE",)) or "")


def test_a_pattern_that_would_take_others_forever_takes_no_time() -> None:
    evil = Redaction("evil", "replace", r"(a+)+$b")
    assert redact("a" * 50_000, evil) == "a" * 50_000

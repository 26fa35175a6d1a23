"""policies.guards: what is found in prompts and in outputs as they stream."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from policies.document import GuardDoc
from policies.guards import PROMPT_CHARS, Guards, compile_guards
from policies.watching import CONTEXT, STEP, Hold, Watch
from sidecar.core.model import Finding, InferenceFacts

CARD = b"4111 1111 1111 1111"


def guards(*docs: dict[str, Any]) -> Guards:
    made = compile_guards([GuardDoc.model_validate({"then": "deny", **doc}) for doc in docs])
    assert made is not None
    return made


def asked(*prompts: bytes) -> InferenceFacts:
    return InferenceFacts(prompts=prompts)


def watch(*docs: dict[str, Any]) -> Watch:
    found = guards(*docs).watch(InferenceFacts())
    assert found is not None
    return found


def test_no_guards_are_nothing_at_all() -> None:
    assert compile_guards([]) is None


@pytest.mark.parametrize(
    ("prompt", "found"),
    [(b"pay with " + CARD, ["cards"]), (b"Project X is late", ["secret"]), (b"x" * 101, ["long"]), (b"hello", [])],
)
def test_a_prompt_is_searched_for_classes_patterns_and_length(prompt: bytes, found: list[str]) -> None:
    made = guards(
        {"id": "cards", "on": "prompt", "classes": ["card"]},
        {"id": "secret", "on": "prompt", "patterns": [r"(?i)project\s+x"]},
        {"id": "long", "on": "prompt", "longer_than": 100},
        {"id": "other", "on": "output", "patterns": ["."]},
    )
    assert [finding.guard for finding in made.prompt(asked(b"first", prompt))] == found


def test_what_a_guard_says_and_what_is_done_are_told_apart() -> None:
    rules = {"id": "a", "on": "prompt", "patterns": ["x"]}
    assert guards(rules).prompt(asked(b"x")) == (Finding("a", "prompt", "deny", "deny"),)
    assert guards({**rules, "shadow": True}).prompt(asked(b"x")) == (Finding("a", "prompt", "deny", "none"),)
    assert guards({**rules, "then": "flag"}).prompt(asked(b"x")) == (Finding("a", "prompt", "flag", "flag"),)


def test_a_prompt_too_long_to_be_searched_counts_as_found() -> None:
    made = guards({"id": "cards", "on": "prompt", "classes": ["card"]})
    assert made.prompt(asked(b"x" * PROMPT_CHARS)) == ()
    assert [finding.guard for finding in made.prompt(asked(b"x" * (PROMPT_CHARS + 1)))] == ["cards"]


def test_an_output_is_searched_over_its_chunks_and_found_once() -> None:
    found = watch({"id": "cards", "on": "output", "classes": ["card"]})
    assert [found.feed([CARD[n : n + 3]]) for n in range(0, 18, 3)] == [()] * 6
    assert found.feed([CARD[18:]]) == (), "more digits could make another number of it"
    assert found.feed([b" "]) == (Finding("cards", "output", "deny", "deny"),)
    assert found.feed([b"and again " + CARD + b" "]) == ()
    assert found.finish() == ()


def test_what_ends_an_output_is_found_when_it_ends() -> None:
    found = watch({"id": "word", "on": "output", "patterns": [r"\bass\b"]})
    assert found.feed([b"an ass"]) == ()
    assert found.cleared() == (3,), "the match that may be one is not sent"
    assert found.finish() == (Finding("word", "output", "deny", "deny"),)
    other = watch({"id": "word", "on": "output", "patterns": [r"\bass\b"]})
    assert other.feed([b"an ass"]) == ()
    assert other.feed([b"umption"]) == ()
    assert other.cleared() == (len(b"an assumption"),)
    assert other.finish() == ()


def test_a_doubt_that_may_not_last_counts_as_found() -> None:
    found = watch({"id": "word", "on": "output", "patterns": [r"\bass\b"]})
    assert found.feed([b"an ass"]) == ()
    assert found.decide() == (Finding("word", "output", "deny", "deny"),)


def test_a_character_split_over_two_chunks_is_one_character() -> None:
    found = watch({"id": "word", "on": "output", "patterns": ["geh\u00fctet!"]})
    whole = "geh\u00fctet!".encode()
    assert found.feed([whole[:4]]) == ()
    assert found.feed([whole[4:]]) == ()
    assert found.finish() != ()


def test_guards_that_only_tell_are_fed_in_large_pieces() -> None:
    found = watch({"id": "noted", "on": "output", "patterns": ["secret"], "then": "flag"})
    assert not found.holds
    assert found.feed([b"the secret "]) == ()
    assert found.feed([b"x" * STEP]) == (Finding("noted", "output", "flag", "flag"),)


def test_empty_texts_pile_up_nowhere() -> None:
    found = watch({"id": "noted", "on": "output", "patterns": ["secret"], "then": "flag"})
    for _ in range(100):
        assert found.feed([b""]) == ()
    assert found._tells is not None
    assert [each.pieces for each in found._tells.sequences] in ([], [[]])
    found.feed([b"a"])
    for _ in range(100):
        assert found.feed([b""]) == ()
    assert [each.pieces for each in found._tells.sequences] == [[b"a"]]


def test_the_outputs_of_one_call_are_texts_apart() -> None:
    rule = {"id": "word", "on": "output", "patterns": ["secret"]}
    apart = watch(rule)
    assert [apart.feed([b"sec", b"a "]), apart.feed([b"a ", b"ret"]), apart.finish()] == [()] * 3
    second = watch(rule)
    assert second.feed([b"a ", b"sec"]) == ()
    assert second.feed([b"a ", b"ret "]) != ()


def test_what_is_held_stays_behind_what_was_heard() -> None:
    doc = GuardDoc.model_validate({"id": "word", "on": "output", "patterns": ["secret"], "then": "deny"})
    made = compile_guards([doc], Hold(10, 10**9))
    assert made is not None
    found = made.watch(InferenceFacts())
    assert found is not None
    for _ in range(20):
        assert found.feed([b"ab "]) == ()
        assert found.heard()[0] - 10 - 5 - 3 < found.cleared()[0] <= found.heard()[0] - 10
    assert found.look() == ()
    assert found.cleared()[0] == found.heard()[0] - 10


def test_only_the_context_is_kept() -> None:
    found = watch({"id": "far", "on": "output", "patterns": ["(?s)begin.*end"]})
    assert found.feed([b"begin"]) == ()
    assert found.feed([b"x" * CONTEXT]) == ()
    assert found.feed([b"end "]) == ()


def test_one_huge_answer_is_searched_to_its_end() -> None:
    found = watch({"id": "cards", "on": "output", "classes": ["card"]})
    assert found.feed([b"x" * (3 * PROMPT_CHARS) + b" " + CARD + b" "]) != ()


def test_bytes_that_are_no_text_are_searched_all_the_same() -> None:
    assert guards({"id": "a", "on": "prompt", "patterns": ["secret"]}).prompt(asked(b"\xff\xfesecret\x00")) != ()


@pytest.mark.parametrize(
    ("doc", "words"),
    [
        ({"id": "a", "on": "prompt", "then": "deny"}, "looks for nothing"),
        ({"id": "a", "on": "output", "longer_than": 5, "then": "deny"}, "max_tokens"),
        ({"id": "a", "on": "prompt", "classes": ["emial"], "then": "deny"}, "no class 'emial'"),
        ({"id": "a", "on": "prompt", "patterns": ["("], "then": "deny"}, "not RE2"),
        ({"id": "a", "on": "prompt", "patterns": ["x*"], "then": "deny"}, "empty text"),
        ({"id": "A b", "on": "prompt", "patterns": ["x"], "then": "deny"}, "pattern"),
        ({"id": "a", "on": "both", "patterns": ["x"], "then": "deny"}, "prompt"),
    ],
)
def test_what_a_guard_may_not_be(doc: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GuardDoc.model_validate(doc)

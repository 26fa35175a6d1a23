"""Names apart: for each set of patterns that a name may fit, exactly one such name."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from policies.names import apart, glob, like, literal


def sets(globs: list[str]) -> dict[frozenset[str], str]:
    found = apart([glob(each) for each in globs], "(other)")
    by_set = {frozenset(each for each in globs if fnmatchcase(name, each)): name for name in found}
    assert len(by_set) == len(found), "no two names for the same"
    return by_set


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        ([], [set()]),
        (["chat"], [set(), {"chat"}]),
        (["*"], [{"*"}]),
        (["a*", "a?*"], [set(), {"a*"}, {"a*", "a?*"}]),  # "a" alone
        (["a*", "ax*"], [set(), {"a*"}, {"a*", "ax*"}]),
        (["a*", "*b"], [set(), {"a*"}, {"*b"}, {"a*", "*b"}]),  # as a tenant's and its key's
        (["a*", "*b", "*c"], [set(), {"a*"}, {"*b"}, {"*c"}, {"a*", "*b"}, {"a*", "*c"}]),
        (["a*", "a"], [set(), {"a*"}, {"a*", "a"}]),
        (["?", "??"], [set(), {"?"}, {"??"}]),
    ],
)
def test_one_of_each(globs: list[str], expected: list[set[str]]) -> None:
    assert set(sets(globs)) == set(map(frozenset, expected))


def test_a_cedar_pattern_and_a_text_with_a_star_in_it() -> None:
    pattern = like([{"Literal": "p"}, "Wildcard"])
    found = apart([pattern, literal("a*"), literal("phi")], "(other)")
    assert "a*" in found
    assert "phi" in found
    assert sum(name.startswith("p") for name in found) == 2, "phi, and another that begins so"


def test_patterns_without_bound_still_have_their_examples() -> None:
    globs = [f"*{letter}*" for letter in "abcdefghijklmnop"]  # 65,536 sets of them
    found = apart([glob(each) for each in globs], "(other)")
    assert all(any(fnmatchcase(name, each) for name in found) for each in globs)

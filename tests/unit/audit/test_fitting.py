"""audit.fitting: what a record needs to be fit for its columns, and that nothing is done to one that is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import fitting
from audit.assemble import CallRecord, Place
from audit.fitting import fitted
from audit.leaf import canonical_json
from audit.record import Content, Refused, Tensor
from tests.support.store import facts, settled

PLACE = Place("pod-1", "journal-1", "eu-west-1", "EU")
ODD = st.sampled_from(["", "a", "x\x00y", "é", "\ud800", "z" * 257, "z" * 5000])
NUMBER = st.sampled_from([0, 5, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1])


def record(end: dict[str, Any] | None, /, **changes: Any) -> CallRecord:
    """``end``: of its outcome; None: it was refused."""
    call = facts(**changes)
    ended = Refused(call, "X", 3, "told", "meant") if end is None else settled(call, b"answer", **end)
    return CallRecord(PLACE, 0, 1, call, ended, [])


@given(st.dictionaries(st.sampled_from(["principal", "model", "rule", "trace_id", "route_why"]), ODD), NUMBER, NUMBER)
def test_what_is_told_to_fit_at_once_is_what_cleaning_leaves_as_it_is(
    texts: dict[str, str], size: int, tokens: int
) -> None:
    """Invariant: the quick look lets no record by that would be altered."""
    given = record({"input_tokens": tokens}, request_bytes=size, **texts)
    if fitting._fits(given):
        assert fitting._cleaned(given, names=True) == (given, False)


@pytest.mark.parametrize(
    ("end", "changes", "column", "told"),
    [
        ({}, {"model": "m\x00"}, "model", "m\ufffd"),
        ({}, {"principal": "p" * 300}, "principal", "p" * 256),
        ({}, {"method": "m" * 5000}, "method", "m" * 4096),
        (None, {"prompt_tokens": 2**64 - 1}, "prompt_tokens", 2**63 - 1),
        ({}, {"tensors": [Tensor("\ud800", "BYTES", [1], 4)]}, "tensors", [Tensor("\ufffd", "BYTES", [1], 4)]),
        ({}, {"prompt": Content(2**64 - 1)}, "prompt", Content(2**63 - 1)),
    ],
)
def test_what_does_not_fit_is_made_to_and_told(
    end: dict[str, Any] | None, changes: dict[str, Any], column: str, told: object
) -> None:
    found, changed = fitted(record(end, **changes), names=True)
    assert changed
    assert getattr(found.facts, column) == told


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("kv_byte_ms", 2**64 - 1, 2**63 - 1),
        ("model_version", "\x00", "\ufffd"),
        ("first_response_ns", 2**63, 2**63 - 1),
    ],
)
def test_how_it_ended_is_made_to_fit_too(name: str, given: object, told: object) -> None:
    found, changed = fitted(record({name: given}), names=True)
    assert changed
    assert getattr(found.end, name) == told


def test_a_name_that_is_sealed_alone_stays_as_it_came() -> None:
    given = record({}, principal="p" * 300)
    assert fitted(given, names=False) == (given, False)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_INTEGER = st.integers(-(2**63), 2**64 - 1)


@given(st.lists(st.tuples(_TEXT, _TEXT, st.lists(_INTEGER), _INTEGER)))
def test_tensors_are_told_in_the_canonical_text(tensors: list[tuple[str, str, list[int], int]]) -> None:
    """Invariant: the quick encoder and the canonical one write the same text for arrays of texts and integers."""
    quick = msgspec.json.encode([Tensor(*each) for each in tensors]).decode()
    assert quick == canonical_json([list(each) for each in tensors])

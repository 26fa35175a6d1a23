"""audit.packing: the quick way makes what the plain way makes, which is what the columns and the leaf say."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.columns import CALL_COLUMNS
from audit.leaf import leaf_data
from audit.merkle import leaf_hash
from audit.packing import _KINDS, UnfitError, pack, pack_any, unpack

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NULL = frozenset({
    "retention_days", "conversation_mac", "prompt_sealed", "prompt_digest", "settled_at", "output_sealed",
    "output_digest", "ttft_ns", "model_digest", "error_sealed", "evidence_sealed",
})  # fmt: skip
_TEXT = st.text(max_size=6) | st.sampled_from(["", "acme", "x" * 256, "x" * 257, "nul\x00", "Zürich"])
_OF = {
    "text": _TEXT,
    "int8": st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "int4": st.integers(0, 400),
    "int2": st.integers(0, 16),
    "bool": st.booleans(),
    "time": st.integers(0, 2**52),
    "bytes": st.binary(max_size=40),
    "json": st.sampled_from(["[]", "{}", '[["text_input","BYTES",[1],400]]', '["é"]', '["\\u0000"]']),
}


def _column(place: int) -> st.SearchStrategy[Any]:
    of = _OF[_KINDS[place]]
    return of | st.none() if CALL_COLUMNS[place] in _NULL else of


def _plain(place: int) -> Any:
    """A value that says nothing."""
    if CALL_COLUMNS[place] in _NULL:
        return None
    return {"text": "", "bool": False, "bytes": b"", "json": "[]"}.get(_KINDS[place], 0)


ROWS = st.dictionaries(st.sampled_from(range(len(CALL_COLUMNS))), st.none(), max_size=len(CALL_COLUMNS)).flatmap(
    lambda some: st.tuples(*(_column(n) if n in some else st.just(_plain(n)) for n in range(len(CALL_COLUMNS))))
)


def _told(values: tuple[Any, ...]) -> list[Any]:
    return [
        _EPOCH + timedelta(microseconds=value) if kind == "time" and value is not None else value
        for kind, value in zip(_KINDS, values, strict=True)
    ]


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_both_ways_are_one_and_the_same(values: tuple[Any, ...]) -> None:
    """Invariant: a row is read back as it was, its leaf is that of the columns, and the quick way makes the same."""
    row, leaf = pack_any(values)
    assert unpack(row) == _told(values)
    assert leaf == leaf_hash(leaf_data("call", zip(CALL_COLUMNS, _told(values), strict=True)))
    try:
        found = pack(values)
    except UnfitError:
        return
    assert found == (row, leaf)


USUAL = {
    "started_at": 1_764_500_000_000_000, "decided_at": 1_764_500_000_000_030, "call_id": "0192e4a0", "sidecar": "pöd",
    "log": "pöd.1", "journal": "j", "position": 7, "first_sequence": 20, "sequence": 22, "tenant": "acme",
    "model": "chat", "outcome": "completed", "data_key": "k" * 32, "identity_sealed": b"i", "prompt_sealed": b"p" * 900,
    "prompt_digest": b"d" * 32, "settled_at": 1_764_500_000_900_000, "output_tokens": 5, "ttft_ns": 0,
}  # fmt: skip


def usual(**changes: Any) -> tuple[Any, ...]:
    told = {**USUAL, **changes}
    return tuple(told.get(name, _plain(place)) for place, name in enumerate(CALL_COLUMNS))


def test_what_calls_usually_hold_takes_the_quick_way() -> None:
    assert pack(usual()) == pack_any(usual())
    traced = usual(trace_id="a" * 32, span_id="b" * 16, sampled=True, detail="retry in 2 s", findings='[["g"]]')
    assert pack(traced) == pack_any(traced)


@pytest.mark.parametrize(
    "change",
    [
        {"call_id": "é"}, {"tenant": "n\x00"}, {"rule": "r" * 257}, {"tensors": '["\\u0000"]'}, {"detail": "ü"},
        {"input_tokens": 2**63}, {"internal": "\ud800"}, {"trace_id": "t" * 257},
    ],
    ids=str,
)  # fmt: skip
def test_what_may_not_fit_is_left_to_who_looks_closely(change: dict[str, Any]) -> None:
    with pytest.raises(UnfitError):
        pack(usual(**change))


def test_a_number_that_a_column_does_not_hold_is_named() -> None:
    with pytest.raises(OverflowError, match="status"):
        pack_any(usual(status=2**15))


def test_a_row_from_before_a_column_was_added_has_fewer() -> None:
    values = usual()[:-1]
    row, _ = pack_any(values)
    assert struct.unpack_from(">h", row) == (len(CALL_COLUMNS) - 1,)
    assert len(unpack(row)) == len(values)

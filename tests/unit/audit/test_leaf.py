"""audit.leaf: the same record gives the same leaf whether it was just made or read back, and no other record does."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.leaf import JSON, LeafShape, canonical_json, leaf_data
from audit.rows import CALL_COLUMNS, EVENT_COLUMNS

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8),
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), SCALARS, max_size=6))
def test_json_is_the_same_however_it_was_spelled(value: dict[str, Any]) -> None:
    """Read back with other key order and with numbers spelled as Postgres' numeric does, the text is the same."""
    told = canonical_json(value)
    assert canonical_json(json.loads(told)) == told
    shuffled = dict(reversed(list(value.items())))
    assert canonical_json(shuffled) == told


@pytest.mark.parametrize(
    ("one", "other"),
    [(1e300, 10**300 + (int(1e300) - 10**300)), (100.0, 100), (-0.0, 0), (1e-7, 0.0000001), ([1.0], [1])],
)
def test_numbers_that_are_equal_are_one_text(one: Any, other: Any) -> None:
    assert canonical_json({"n": one}) == canonical_json({"n": other})


def row(**changes: Any) -> list[tuple[str, Any]]:
    base = {
        "call_id": "c1", "started_at": datetime(2026, 11, 30, 1, 2, 3, 4, tzinfo=UTC), "reason": "", "status": 0,
        "tensors": "[]", "prompt_sealed": b"sealed", "ttft_ns": None, "sampled": False, "detail": "",
    }  # fmt: skip
    return list((base | changes).items())


def test_a_column_that_is_added_later_changes_no_older_leaf() -> None:
    old = leaf_data("call", row())
    assert leaf_data("call", [*row(), ("new_text", ""), ("new_count", 0), ("new_flag", False), ("new", None)]) == old
    assert leaf_data("call", row(tensors=[])) == old  # as it is read back


@pytest.mark.parametrize(
    "change",
    [
        {"call_id": "c2"},
        {"started_at": datetime(2026, 11, 30, 1, 2, 3, 5, tzinfo=UTC)}, {"reason": "x"}, {"status": 1},
        {"tensors": '[["a","INT32",[1],4]]'}, {"prompt_sealed": b"other"}, {"prompt_sealed": None}, {"ttft_ns": 0},
        {"sampled": True}, {"detail": "{}"}, {"detail": "[]"},
    ],
)  # fmt: skip
def test_whatever_is_changed_changes_the_leaf(change: dict[str, Any]) -> None:
    assert leaf_data("call", row(**change)) != leaf_data("call", row())


def test_a_call_is_no_event() -> None:
    assert leaf_data("call", []) != leaf_data("event", [])


NAMES = {"call": CALL_COLUMNS, "event": EVENT_COLUMNS}
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 — bounds


def values_of(kind: str, name: str) -> st.SearchStrategy[Any]:
    if name == "at" or name.endswith("_at"):
        return st.none() | TIMES
    if name in JSON[kind]:
        return st.sampled_from(["{}", "[]", {}, [], '{"a":1}', {"b": 2.0, "a": "x"}])
    if name.endswith(("_sealed", "_mac", "_digest")):
        return st.none() | st.binary(max_size=3)
    return st.none() | st.booleans() | st.integers(-3, 2**62) | st.text(max_size=3)


@pytest.mark.parametrize("kind", NAMES)
@settings(max_examples=30)
@given(data=st.data())
def test_a_shape_gives_the_leaf_of_its_pairs(kind: str, data: st.DataObject) -> None:
    """The quick way and the plain one agree on every row."""
    names = NAMES[kind]
    values = [data.draw(values_of(kind, name)) for name in names]
    assert LeafShape(kind, names).data(values) == leaf_data(kind, zip(names, values, strict=True))

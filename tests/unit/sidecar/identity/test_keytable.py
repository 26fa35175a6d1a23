"""Keys in many small tables are one mapping, and a changed table shares what did not change."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from sidecar.identity.keyrow import KeyRow
from sidecar.identity.keytable import PARTS, Going, KeyTable
from tests.support.identity import key_row

MAC = bytes(32)


def row(number: int, **changes: Any) -> KeyRow:
    return key_row(f"{number:012d}", MAC, **changes)


def test_it_is_the_mapping_of_its_rows() -> None:
    rows = [row(number) for number in range(2000)]
    table = KeyTable(rows)
    assert len(table) == 2000
    assert dict(table) == {each.id: each for each in rows}
    assert sorted(each.id for each in table.values()) == sorted(table)
    assert table["000000000007"] is rows[7]
    assert table.get("nobody") is None
    assert table.get("nobody", rows[0]) is rows[0]
    assert "000000000007" in table
    assert "nobody" not in table
    with pytest.raises(KeyError):
        table["nobody"]
    assert len(KeyTable()) == 0


def test_a_later_row_of_the_same_id_counts() -> None:
    assert KeyTable([row(1, name="a"), row(1, name="b")])["000000000001"].name == "b"


def test_an_updated_table_shares_what_stayed_and_leaves_the_old_one_alone() -> None:
    old = KeyTable(row(number) for number in range(5000))
    new = old.updated([row(7, name="changed"), row(9999)], lambda: None)
    assert (len(old), len(new)) == (5000, 5001)
    assert (old["000000000007"].name, new["000000000007"].name) == ("laptop", "changed")
    assert "000000009999" not in old
    shared = sum(mine is theirs for mine, theirs in zip(old.parts, new.parts, strict=True))
    assert shared >= PARTS - 2


def test_pauses_come_however_many_keys_change() -> None:
    pauses: list[int] = []
    KeyTable().updated((row(number) for number in range(10_000)), lambda: pauses.append(1))
    assert len(pauses) == 100


def test_no_part_is_large_enough_to_be_felt() -> None:
    """What is copied, grown or freed in one go is a part: of 100,000 keys a few hundred."""
    assert max(map(len, KeyTable(row(number) for number in range(100_000)).parts)) < 700


def test_a_table_on_its_way_out_is_freed_in_pieces() -> None:
    class Watched(dict[str, KeyRow]):
        pass

    table = KeyTable()
    table._parts[:] = [Watched() for _ in range(PARTS)]
    alive = [weakref.ref(part) for part in table.parts]
    going, left = Going(table), list[int]()
    del table
    going.let_go(lambda: left.append(sum(part() is not None for part in alive)))
    assert left == list(range(PARTS - 16, -1, -16))

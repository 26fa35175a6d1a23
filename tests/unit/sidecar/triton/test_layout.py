"""A message's parts at a glance: what is looked at is bounded, whatever comes."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.triton.layout import PARTS_MAX, layout
from sidecar.triton.request import RAW_TAG

NAME = b"\x0a\x01m"


class Watched(bytes):
    """Counts the bytes that are asked for one by one."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        self.looks += not isinstance(key, slice)
        return super().__getitem__(key)


def test_as_many_parts_as_a_message_may_have_are_found() -> None:
    found = layout(NAME + b"\x3a\x00" * (PARTS_MAX - 1), 0, len(NAME) + 2 * (PARTS_MAX - 1), RAW_TAG)
    assert found is not None
    assert (found.named, len(found.raws)) == (len(NAME), PARTS_MAX - 1)


@pytest.mark.parametrize("fields", [PARTS_MAX, 100_000])
def test_no_more_of_a_message_is_looked_at_than_it_may_have_parts(fields: int) -> None:
    data = Watched(NAME + b"\x3a\x00" * fields)
    assert layout(data, 0, len(data), RAW_TAG) is None
    assert data.looks <= 4 * PARTS_MAX

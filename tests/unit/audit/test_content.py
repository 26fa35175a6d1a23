"""audit.content: what is sealed opens under the same key, in the same place, and nowhere else."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from audit.content import ContentError, ContentSealer

ROOT = bytes(range(32))
PLACE: dict[str, Any] = {"tenant": "acme", "day": date(2026, 11, 30), "call_id": "c1", "column": "prompt"}
PARTS = [b"first", b"", b"\xff\x00 not text"]


def test_opens_what_it_sealed() -> None:
    sealer = ContentSealer(ROOT)
    assert ContentSealer(ROOT).open(sealer.seal(PARTS, **PLACE), **PLACE) == PARTS
    assert sealer.open(sealer.seal([], **PLACE), **PLACE) == []


def test_sealing_twice_gives_the_same_bytes_and_other_content_another_nonce() -> None:
    sealer = ContentSealer(ROOT)
    once = sealer.seal(PARTS, **PLACE)
    assert sealer.seal(PARTS, **PLACE) == once
    assert sealer.seal([b"other"], **PLACE)[9:21] != once[9:21]


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "birch"},
        {"day": date(2026, 12, 1)},
        {"call_id": "c2"},
        {"column": "output"},
        {"tenant": "acm", "call_id": "ec1"},
    ],
)
def test_another_place_opens_nothing(other: dict[str, Any]) -> None:
    sealer = ContentSealer(ROOT)
    with pytest.raises(ContentError, match="another record"):
        sealer.open(sealer.seal(PARTS, **PLACE), **PLACE | other)


def test_another_root_is_named() -> None:
    sealed = ContentSealer(ROOT).seal(PARTS, **PLACE)
    with pytest.raises(ContentError, match="another root key"):
        ContentSealer(b"x" * 32).open(sealed, **PLACE)


def test_every_changed_byte_is_noticed() -> None:
    sealer = ContentSealer(ROOT)
    sealed = sealer.seal([b"x"], **PLACE)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises(ContentError):
            sealer.open(changed, **PLACE)
    with pytest.raises(ContentError):
        sealer.open(sealed[:10], **PLACE)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ContentSealer(b"short")


def test_remembered_keys_are_bounded() -> None:
    sealer = ContentSealer(ROOT)
    for number in range(5000):
        sealer.seal([], **PLACE | {"tenant": str(number)})
    assert len(sealer._days) == 4096

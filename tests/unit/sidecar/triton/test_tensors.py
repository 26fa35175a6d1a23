"""Elements of the tensors that a contract reads."""

from __future__ import annotations

import struct

import pytest

from sidecar.core.model import MalformedRequest
from sidecar.triton.tensors import SCALARS_MAX, Tensor, flags, integers, strings
from tests.support.kserve import packed


def raw(datatype: str, elements: int, payload: bytes) -> Tensor:
    """The payload somewhere inside a message, at an odd place."""
    return Tensor("x", datatype, (elements,), elements, len(payload), b"abc" + payload + b"defg", 3, 3 + len(payload))


@pytest.mark.parametrize(
    ("datatype", "code", "values"),
    [
        ("INT8", "b", (-128, 127)),
        ("INT16", "h", (-(2**15), 5)),
        ("INT32", "i", (-(2**31), 2**31 - 1)),
        ("INT64", "q", (-(2**63), 2**63 - 1)),
        ("UINT8", "B", (0, 255)),
        ("UINT16", "H", (0, 2**16 - 1)),
        ("UINT32", "I", (0, 2**32 - 1)),
        ("UINT64", "Q", (0, 2**64 - 1)),
    ],
)
def test_integers_of_every_width(datatype: str, code: str, values: tuple[int, int]) -> None:
    assert integers(raw(datatype, 2, struct.pack(f"<2{code}", *values))) == values
    assert integers(Tensor("x", datatype, (2,), 2, 0, typed=values)) == values


@pytest.mark.parametrize(("datatype", "value"), [("INT8", 128), ("INT16", 65_537), ("UINT8", 256), ("UINT16", 65_536)])
def test_a_typed_number_that_triton_would_cut_is_refused(datatype: str, value: int) -> None:
    with pytest.raises(MalformedRequest, match=datatype):
        integers(Tensor("x", datatype, (1,), 1, 1, typed=[value]))


def test_strings() -> None:
    assert strings(raw("BYTES", 3, packed(b"a", b"", b"\xff\x00"))) == (b"a", b"", b"\xff\x00")
    assert strings(Tensor("x", "BYTES", (1,), 1, 5, typed=[b"a"])) == (b"a",)


def test_flags() -> None:
    assert flags(raw("BOOL", 3, b"\x00\x01\x02")) == (False, True, True)
    assert flags(Tensor("x", "BOOL", (1,), 1, 1, typed=[True])) == (True,)


@pytest.mark.parametrize("read", [integers, strings, flags])
def test_another_datatype_is_refused_by_name(read: object) -> None:
    with pytest.raises(MalformedRequest, match="input x: is FP32, must be"):
        read(raw("FP32", 1, bytes(4)))  # type: ignore[operator] # one of three functions


def test_no_more_than_a_batch_of_them() -> None:
    assert len(integers(raw("INT8", SCALARS_MAX, bytes(SCALARS_MAX)))) == SCALARS_MAX
    with pytest.raises(MalformedRequest, match="1025 elements"):
        integers(raw("INT8", SCALARS_MAX + 1, bytes(SCALARS_MAX + 1)))
    with pytest.raises(MalformedRequest, match="1025 elements"):
        flags(raw("BOOL", SCALARS_MAX + 1, bytes(SCALARS_MAX + 1)))

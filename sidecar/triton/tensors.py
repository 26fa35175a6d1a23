"""Tensors of a request or response: datatypes, sizes, and the elements of those that a contract reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sidecar.core.model import MalformedRequest

__all__ = [
    "BYTES_MAX",
    "DATATYPES",
    "DIMS_MAX",
    "SCALARS_MAX",
    "TYPED",
    "Tensor",
    "elements_of",
    "flags",
    "integers",
    "strings",
    "walk",
]

DIMS_MAX: Final = 32  # dimensions of one tensor; NumPy's own bound
BYTES_MAX: Final = 65_536  # strings in one message; their lengths are walked one by one, about 10 ms of one core
SCALARS_MAX: Final = 1_024  # elements of a tensor that a contract reads as a number or a flag
_ELEMENTS_MAX: Final = 2**63 - 1  # Triton counts elements in an int64

# KServe v2 datatype → bytes of one element; 0: BYTES, each element with its own length before it.
DATATYPES: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
    "BYTES": 0,
}

# The list of InferTensorContents that each datatype is written in; FP16 and BF16 have none (grpc_service.proto).
TYPED: Final[dict[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

_INTEGERS: Final = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
}
_LENGTH: Final = struct.Struct("<I")


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """One tensor whose payload matches its shape: raw at ``data[start:end]``, or in the ``typed`` list.

    ``nbytes`` is the payload as Triton keeps it: elements × datatype; for BYTES also 4 bytes of length an element.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    nbytes: int
    data: bytes = b""
    start: int = 0
    end: int = 0
    typed: Sequence[Any] | None = None


def elements_of(name: str, shape: Sequence[int]) -> int:
    """The product of the dimensions; raises ``MalformedRequest`` for a negative one or an overflow."""
    elements = 1
    for dim in shape:
        if dim < 0:
            raise MalformedRequest(f"input {name}: negative dimension {dim}")
        elements *= dim
        if elements > _ELEMENTS_MAX:
            raise MalformedRequest(f"input {name}: its shape overflows")
    return elements


def walk(name: str, data: bytes, start: int, end: int, elements: int) -> None:
    """Hold a raw BYTES payload to its shape: uint32 little-endian length and bytes, ``elements`` times, nothing after.

    The caller bounds ``elements`` (``BYTES_MAX``). Triton's own check overlooks a truncated last element, which then
    reaches the backend (facts §2).
    """
    pos, unpack = start, _LENGTH.unpack_from
    for index in range(elements):
        if end - pos < 4:
            raise MalformedRequest(f"input {name}: holds {index} strings, its shape says {elements}")
        pos += 4 + unpack(data, pos)[0]
        if pos > end:
            raise MalformedRequest(f"input {name}: string {index} runs past the end of the tensor")
    if pos != end:
        raise MalformedRequest(f"input {name}: {end - pos} bytes after the last of {elements} strings")


def strings(tensor: Tensor) -> tuple[bytes, ...]:
    """The elements of a BYTES tensor; raises ``MalformedRequest`` for another datatype."""
    if tensor.datatype != "BYTES":
        raise MalformedRequest(f"input {tensor.name}: is {tensor.datatype}, must be BYTES")
    if tensor.typed is not None:
        return tuple(tensor.typed)
    pos, data = tensor.start, tensor.data
    if tensor.elements == 1:  # its length was held against its shape
        return (data[pos + 4 : tensor.end],)
    found: list[bytes] = []
    for _ in range(tensor.elements):
        begin = pos + 4
        pos = begin + _LENGTH.unpack_from(data, pos)[0]
        found.append(data[begin:pos])
    return tuple(found)


def integers(tensor: Tensor) -> tuple[int, ...]:
    """The elements of a tensor of integers; raises ``MalformedRequest`` for another datatype or more than 1,024."""
    code = _INTEGERS.get(tensor.datatype)
    if code is None:
        raise MalformedRequest(f"input {tensor.name}: is {tensor.datatype}, must be of integers")
    _few(tensor)
    if tensor.typed is None:
        return struct.unpack_from(f"<{tensor.elements}{code}", tensor.data, tensor.start)
    # Triton keeps the low bytes of what doesn't fit: another number than the one read here.
    try:
        struct.pack(f"<{tensor.elements}{code}", *tensor.typed)
    except struct.error:
        raise MalformedRequest(f"input {tensor.name}: holds a number that is not {tensor.datatype}") from None
    return tuple(tensor.typed)


def flags(tensor: Tensor) -> tuple[bool, ...]:
    """The elements of a BOOL tensor; raises ``MalformedRequest`` for another datatype or more than 1,024."""
    if tensor.datatype != "BOOL":
        raise MalformedRequest(f"input {tensor.name}: is {tensor.datatype}, must be BOOL")
    _few(tensor)
    if tensor.typed is not None:
        return tuple(bool(value) for value in tensor.typed)
    return tuple(byte != 0 for byte in tensor.data[tensor.start : tensor.end])


def _few(tensor: Tensor) -> None:
    if tensor.elements > SCALARS_MAX:
        raise MalformedRequest(f"input {tensor.name}: {tensor.elements} elements, at most {SCALARS_MAX}")

"""Fields written behind a serialised ModelInferRequest: they change what it says without a copy of what it carries.

Of a singular field the last counts, of a map's entries with one key the last, and repeated fields go on where they
stopped (protobuf.dev/programming-guides/encoding, "Last One Wins"); Triton's parser does so too (tests/integration).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["input_flags", "integer_parameter", "output", "raw", "request_id", "string_parameter", "version"]

# ModelInferRequest: model_version 2, id 3, parameters 4, inputs 5, outputs 6, raw_input_contents 7.
_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 2, 3, 4, 5, 6, 7
_LENGTH: Final = 2  # wire type
_ID_HEAD: Final = bytes((_ID << 3 | _LENGTH,))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(payload)) + payload


def request_id(value: str) -> bytes:
    """Another ``id``."""
    payload = value.encode()
    return _ID_HEAD + bytes((len(payload),)) + payload if len(payload) < 0x80 else _field(_ID, payload)


def version(value: str) -> bytes:
    """Another ``model_version``."""
    return _field(_VERSION, value.encode())


def integer_parameter(name: str, value: int) -> bytes:
    """``parameters[name].int64_param``; ``value`` from 0 to 2^63 - 1."""
    return _field(_PARAMETERS, _field(1, name.encode()) + _field(2, b"\x10" + _varint(value)))


def string_parameter(name: str, value: str) -> bytes:
    """``parameters[name].string_param``."""
    return _field(_PARAMETERS, _field(1, name.encode()) + _field(2, _field(3, value.encode())))


def input_flags(name: str, shape: Sequence[int], *, typed: bool) -> bytes:
    """One more input, a BOOL tensor of this shape that is true throughout; not ``typed``: its payload is ``raw``'s."""
    elements = _elements(shape)
    tensor = _field(1, name.encode()) + _field(2, b"BOOL") + _field(3, b"".join(map(_varint, shape)))
    if typed:
        tensor += _field(5, _field(1, b"\x01" * elements))  # contents.bool_contents, packed
    return _field(_INPUTS, tensor)


def raw(shape: Sequence[int]) -> bytes:
    """The raw payload of such an input; payloads stand in the order of their inputs."""
    return _field(_RAW, b"\x01" * _elements(shape))


def output(name: str) -> bytes:
    """One more requested output."""
    return _field(_OUTPUTS, _field(1, name.encode()))


def _elements(shape: Sequence[int]) -> int:
    elements = 1
    for dim in shape:
        elements *= dim
    return elements

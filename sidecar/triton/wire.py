"""A scanner of protobuf's wire format: finds what a parser would merge or overlook, and copies no payload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, NoReturn

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from sidecar.core.model import MalformedRequest
from sidecar.core.reasons import Reason

__all__ = ["COST_MAX", "Field", "Found", "Spec", "check", "scan", "spec_of", "text"]

# What reading one message may cost: a field is 1, a message inside it 32, 64 bytes of packed varints 1 (protobuf may
# turn each byte into 8). So 65,536 strings in typed contents pass, or 256 inputs, outputs and parameters; the dearest
# message of all takes about 50 ms of one core, and 36 MB.
COST_MAX: Final = 70_000
_MESSAGE_COST: Final = 32
_PACKED_BYTES: Final = 64

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types (protobuf.dev/programming-guides/encoding)
_SCALARS: Final = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
}  # all others are varints


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. ``bit`` marks what may occur once: a singular field, or a whole oneof (0: repeated)."""

    number: int
    name: str
    bit: int
    text: bool
    packed: bool  # may be a run of varints
    message: Spec | None


@dataclass(frozen=True, slots=True)
class Spec:
    """A message's fields by the tag they may be written with (``number << 3 | wire type``)."""

    name: str
    tags: dict[int, Field]
    names: dict[int, str]
    entry: bool  # a map's entry: field 1 is the key


class Found(msgspec.Struct, frozen=True, gc=False):
    """One field as found: its tag at byte ``at``, its value at ``data[start:end]`` (a varint's value in ``value``)."""

    field: Field
    at: int
    start: int
    end: int
    value: int = 0


@cache  # bounded by the messages of the KServe protocol
def spec_of(descriptor: Descriptor) -> Spec:
    """The scanner's table for a protobuf message; KServe's messages don't contain themselves."""
    tags: dict[int, Field] = {}
    once: dict[str, int] = {}
    for field in descriptor.fields:
        repeated = field.is_repeated
        group = f"oneof {field.containing_oneof.name}" if field.containing_oneof is not None else field.name
        bit = 0 if repeated else once.setdefault(group, 1 << len(once))
        nested = spec_of(field.message_type) if field.type == FieldDescriptor.TYPE_MESSAGE else None
        kind = _SCALARS.get(field.type, _VARINT)
        packed = repeated and kind == _VARINT and field.type != FieldDescriptor.TYPE_BOOL
        row = Field(field.number, field.name, bit, field.type == FieldDescriptor.TYPE_STRING, packed, nested)
        tags[field.number << 3 | kind] = row
        if repeated and kind != _LENGTH:
            tags[field.number << 3 | _LENGTH] = row  # packed; both forms are valid proto3
    names = {field.number: field.name for field in descriptor.fields}
    return Spec(descriptor.name, tags, names, descriptor.GetOptions().map_entry)


def _malformed(spec: Spec, what: str, at: int) -> NoReturn:
    raise MalformedRequest(f"{spec.name}: {what} at byte {at}")


def _varint(data: bytes, pos: int, end: int, spec: Spec, *, longest: int) -> tuple[int, int]:
    """A varint of at most ``longest`` bytes: 5 for tags and lengths, 10 for values, as C++ reads them."""
    value = shift = 0
    for at in range(pos, min(end, pos + longest)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value >> (64 if longest == 10 else 32):
                _malformed(spec, "varint overflows", pos)
            return value, at + 1
    _malformed(spec, "varint truncated" if end - pos < longest else "varint too long", pos)


def _no_such_tag(spec: Spec, tag: int, at: int) -> NoReturn:
    number, kind = tag >> 3, tag & 7
    if number in spec.names:
        _malformed(spec, f"field {spec.names[number]} has wire type {kind}", at)
    _malformed(spec, f"unknown field {number}", at)


def scan(  # noqa: C901, PLR0912 — one loop on every request's path: a call for each branch would double its cost
    data: bytes, spec: Spec, start: int = 0, end: int | None = None, *, most: int = COST_MAX
) -> list[Found]:
    """The fields of the message ``data[start:end]``, one level deep; payloads are stepped over, not read.

    Raises ``MalformedRequest``: AMBIGUOUS for a singular field (or oneof) that occurs twice, TOO_LARGE for more than
    ``most`` fields, else MALFORMED, naming field and offset.
    """
    found: list[Found] = []
    tags, seen, pos = spec.tags, 0, start
    end = len(data) if end is None else end
    while pos < end:
        at, value = pos, 0
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            tag, pos = _varint(data, at, end, spec, longest=5)
        field = tags.get(tag)
        if field is None:
            _no_such_tag(spec, tag, at)
        kind = tag & 7
        if kind == _LENGTH:
            if pos < end and data[pos] < 0x80:
                size, begin = data[pos], pos + 1
            else:
                size, begin = _varint(data, pos, end, spec, longest=5)
            pos = begin + size
        elif kind == _VARINT:
            begin = pos
            if pos < end and data[pos] < 0x80:
                value, pos = data[pos], pos + 1
            else:
                value, pos = _varint(data, pos, end, spec, longest=10)
        else:
            begin, pos = pos, pos + (8 if kind == _FIXED64 else 4)
        if pos > end:
            _malformed(spec, f"field {field.name} runs past the end of its message", at)
        if field.bit:
            if seen & field.bit:
                raise MalformedRequest(
                    f"{spec.name}: field {field.name} occurs twice at byte {at}", Reason.REQUEST_AMBIGUOUS
                )
            seen |= field.bit
        found.append(Found(field, at, begin, pos, value))
        if len(found) > most:
            raise MalformedRequest(f"{spec.name}: more than {most} fields", Reason.REQUEST_TOO_LARGE)
    return found


def text(data: bytes, found: Found, spec: Spec) -> str:
    """The value of a string field; raises ``MalformedRequest`` for bytes that are not UTF-8."""
    try:
        return data[found.start : found.end].decode()
    except UnicodeDecodeError:
        _malformed(spec, f"field {found.field.name} is not UTF-8", found.start)


def check(data: bytes, spec: Spec, found: list[Found], *, most: int = COST_MAX) -> int:
    """Hold everything below ``found`` to the same rules, and map keys to being there once; what that cost.

    Raises as ``scan`` does, TOO_LARGE for a cost over ``most``. ``bytes`` and packed numbers are stepped over. The
    depth is the schema's own, 4 for a ModelInferRequest.
    """
    cost = len(found)
    keys: set[tuple[int, str]] = set()
    for item in found:
        field = item.field
        if field.text:
            text(data, item, spec)
        elif field.packed:
            cost += (item.end - item.start) // _PACKED_BYTES
        elif field.message is not None:
            cost += _MESSAGE_COST
            inner = scan(data, field.message, item.start, item.end, most=max(most - cost, 0))
            cost += check(data, field.message, inner, most=most - cost)
            if field.message.entry:
                _once(data, spec, item, inner, keys)
        if cost > most:
            raise MalformedRequest(
                f"{spec.name}: {field.name} at byte {item.at} is one too many; payloads belong in raw_input_contents",
                Reason.REQUEST_TOO_LARGE,
            )
    return cost


def _once(data: bytes, spec: Spec, entry: Found, inner: list[Found], keys: set[tuple[int, str]]) -> None:
    """Add a map entry's key to ``keys``, where it must not be yet."""
    assert entry.field.message is not None
    key = next((text(data, each, entry.field.message) for each in inner if each.field.number == 1), "")
    if (entry.field.number, key) in keys:
        raise MalformedRequest(
            f"{spec.name}: key {key[:128]!a} of {entry.field.name} occurs twice at byte {entry.at}",
            Reason.REQUEST_AMBIGUOUS,
        )
    keys.add((entry.field.number, key))

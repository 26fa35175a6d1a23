"""Requests changed at random, and three readings of each: protobuf's, the sidecar's, Triton's."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from sidecar.core.model import Denial, MalformedRequest, ModelProfile
from sidecar.triton.methods import KSERVE, lookup
from sidecar.triton.protos import ModelInferRequest, ModelInferResponse
from sidecar.triton.request import read_request
from sidecar.triton.tensors import strings
from tests.support.core import a_call
from tests.support.kserve import field as wire_field
from tests.support.kserve import number as wire_number
from tests.support.kserve import packed, request, typed, varint
from tests.support.models import described
from tests.support.reading import isolated, reader

INFER: Final = lookup(KSERVE + "ModelInfer")
_PROFILE: Final = ModelProfile("mirror")
_READER: Final = reader(described("mirror"))
_NUMPY: Final = {
    "BOOL": "bool", "INT8": "int8", "INT32": "int32", "INT64": "int64", "UINT16": "uint16", "FP16": "float16",
    "FP32": "float32", "FP64": "float64", "BYTES": "object",
}  # fmt: skip


def seeds() -> list[bytes]:
    """Well-formed requests to `mirror` of every kind."""
    made = [
        request("mirror", ("i32", "INT32", [2], struct.pack("<2i", 1, 2)), id="a", model_version="1"),
        request("mirror", ("text", "BYTES", [2], packed(b"x", b"")), ("flag", "BOOL", [1], b"\x01")),
        request("mirror", ("f64", "FP64", [1, 2], bytes(16)), ("f16", "FP16", [2], bytes(4)), ("i8", "INT8", [0], b"")),
        request("mirror", ("u16", "UINT16", [300], bytes(600)), ("i64", "INT64", [1], b"\xff" * 8), id="long " * 20),
        typed("mirror", "i32", "INT32", [3], int_contents=[1, -2, 3]),
        typed("mirror", "i8", "INT8", [2], int_contents=[1, 300]),
        typed("mirror", "text", "BYTES", [1], bytes_contents=[b"typed"]),
        typed("mirror", "f32", "FP32", [2], fp32_contents=[0.5, -1]),
        typed("mirror", "flag", "BOOL", [2], bool_contents=[True, False]),
    ]
    asked = request("mirror", ("i8", "INT8", [1], b"z"))
    for name in ("report", "extra"):
        asked.outputs.add(name=name)
    asked.parameters["temperature"].double_param = 0.25
    asked.parameters["who"].string_param = "né"
    asked.parameters["count"].int64_param = -3
    asked.parameters["yes"].bool_param = True
    asked.parameters["priority"].uint64_param = 1
    asked.parameters["timeout"].int64_param = 5_000_000
    sequence = request("mirror", ("i8", "INT8", [1], b"z"))
    sequence.parameters["sequence_id"].int64_param = 7
    sequence.parameters["sequence_start"].bool_param = True
    return [bytes(each.SerializeToString()) for each in (*made, asked, sequence)]


# --- changing -----------------------------------------------------------------------------------------------------

_PIECES: Final = (
    wire_field(1, b"mirror"), wire_field(1, b"echo"), wire_field(2, b"1"), wire_field(2, b"01"),
    wire_field(3, b"other"),
    wire_field(7, b"\x01\0\0\0"), wire_field(7, b""), wire_field(6, wire_field(1, b"report")), wire_number(3, 1),
    wire_field(4, wire_field(1, b"k") + wire_field(2, wire_number(2, 5))),
    wire_field(4, wire_field(1, b"k") + wire_field(2, wire_number(1, 1) + wire_number(2, 5))),
    wire_field(4, wire_field(2, wire_number(2, 5)) + wire_field(1, b"k")),
    wire_field(4, wire_field(1, b"sequence_id") + wire_field(2, wire_number(2, 9))),
    wire_field(4, wire_field(1, b"i32") + wire_field(2, b"")),
    wire_field(5, wire_field(1, b"i8") + wire_field(2, b"INT8") + wire_field(3, b"\x01")),
    wire_field(5, wire_field(1, b"i8") + wire_field(2, b"INT8") + wire_number(3, 1) + wire_number(3, 1)),
    wire_field(5, wire_field(1, b"i32") + wire_field(2, b"INT32") + wire_number(3, 1) + wire_field(5, b"\x10\x04")),
    wire_field(99, b"?"), b"\x0b\x0c", b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
)  # fmt: skip


def _fields(data: bytes) -> list[bytes]:
    """The length-delimited fields at the top, whole; the rest as one."""
    found, pos = [], 0
    while pos < len(data):
        try:
            _, after = _read(data, pos)
            size, begin = _read(data, after)
        except IndexError:
            break
        if data[pos] & 7 != 2 or begin + size > len(data):
            break
        found.append(data[pos : begin + size])
        pos = begin + size
    return [*found, data[pos:]] if pos < len(data) else found


def _read(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        pos, shift = pos + 1, shift + 7
        if byte < 0x80:
            return value, pos


def mutated(data: bytes, rng: random.Random) -> bytes:
    """``data`` after one to three changes."""
    for _ in range(rng.randint(1, 3)):
        data = _change(data, rng)
    return data


def _change(data: bytes, rng: random.Random) -> bytes:  # noqa: C901 — a case for each kind of change
    parts = [part for part in _fields(data) if part]
    at = rng.randrange(len(parts)) if parts else 0
    match rng.randrange(10):
        case 0:
            rng.shuffle(parts)
        case 1 if parts:
            parts.insert(rng.randrange(len(parts) + 1), parts[at])  # twice
        case 2 if parts:
            del parts[at]
        case 3:
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(_PIECES))
        case 4 if _framed(parts, at):  # the same, with a longer varint for its length
            size, begin = _read(parts[at], 1)
            parts[at] = parts[at][:1] + varint(size)[:-1] + bytes([varint(size)[-1] | 0x80, 0]) + parts[at][begin:]
        case 5 if parts and len(parts[at]) > 2:  # something inside one field
            inner = bytearray(parts[at])
            inner[rng.randrange(2, len(inner))] = rng.randrange(256)
            parts[at] = bytes(inner)
        case 6 if _framed(parts, at):  # changed within: its own fields
            size, begin = _read(parts[at], 1)
            body = _change(parts[at][begin : begin + size], rng)
            parts[at] = parts[at][:1] + varint(len(body)) + body
        case 7 if parts:
            other = rng.choice(seeds())
            parts.append(rng.choice(_fields(other)))
        case 8:
            return data[: rng.randrange(len(data) + 1)]
        case _:
            if data:
                raw = bytearray(data)
                raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
                return bytes(raw)
    return b"".join(parts)


def _framed(parts: list[bytes], at: int) -> bool:
    """Whether the part is one whole length-delimited field with a tag of one byte."""
    if not parts or parts[at][0] & 0x87 != 2:
        return False
    try:
        size, begin = _read(parts[at], 1)
    except IndexError:
        return False
    return begin + size == len(parts[at])


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How many went which way, and every difference that was found."""

    ways: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def compare(channel: grpc.Channel, data: bytes, tally: Tally) -> None:
    """Whatever the sidecar lets through is read by protobuf and by Triton as the sidecar read it."""
    try:
        head = _READER.head(INFER, data)
        facts = _READER.facts(INFER, data, _PROFILE)
        forward = isolated(_READER, a_call(method=INFER, message=data), _PROFILE)
    except MalformedRequest:
        tally.ways["refused"] += 1
        return
    if isinstance(forward, Denial):
        tally.ways["not allowed"] += 1
        return
    if head.model != "mirror":
        tally.ways["another model"] += 1
        return
    sent = forward.message + forward.suffix
    try:
        whole = ModelInferRequest.FromString(sent)
    except DecodeError:
        tally.differences.append(f"protobuf can't read {data!r}")
        return
    if (whole.model_name, whole.model_version) != (head.model, head.version) or facts.model != head.model:
        tally.differences.append(f"model or version of {data!r}")
    try:
        answer = ModelInferResponse.FromString(channel.unary_unary(INFER.path)(sent, timeout=60))
    except grpc.RpcError as refused:
        tally.ways[f"Triton refuses: {refused.code().name}"] += 1  # type: ignore[attr-defined]  # it is a grpc.Call too
        return
    reports = [
        raw for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True) if output.name == "report"
    ]
    if not reports:
        tally.ways["no report asked for"] += 1
        return
    tally.ways["compared"] += 1
    said, expected = json.loads(reports[0][4:]), _expected(data, facts, whole)
    seen = {key: said[key] for key in expected}
    if seen != expected:
        tally.differences.append(f"{data!r}: sidecar {expected}, Triton {seen}")


def _expected(data: bytes, facts: Any, whole: Any) -> dict[str, Any]:
    """The report that the sidecar's own reading makes one expect; ids are as they were sent."""
    own = {name: value for name, value in facts.parameters.items() if name not in _TRITONS}
    wanted = sorted(facts.outputs) or ["extra", "report"]
    sequence = whole.parameters["sequence_id"].int64_param if "sequence_id" in whole.parameters else 0
    return {
        "version": facts.version or "1",
        "id": whole.id,
        "sequence": sequence,
        "parameters": own,
        "outputs": wanted,
        "inputs": {name: _tensor(each) for name, each in read_request(data).tensors.items()},
    }


_TRITONS: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "triton_enable_empty_final_response"}
)


def _tensor(tensor: Any) -> list[Any]:
    """As `mirror` reports one."""
    kind, shape = _NUMPY[tensor.datatype], list(tensor.shape)
    if tensor.datatype == "BYTES":
        return [kind, shape, [each.hex() for each in strings(tensor)]]
    if tensor.typed is not None:
        # Triton keeps the low bytes of what doesn't fit, as NumPy does where it is cast.
        content = (
            np.array(list(tensor.typed), dtype=np.int64 if "INT" in tensor.datatype else kind).astype(kind).tobytes()
        )
    else:
        content = tensor.data[tensor.start : tensor.end]
    return [kind, shape, content.hex()]

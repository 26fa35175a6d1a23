"""The scanner against messages that protobuf would merge, skip or misread."""

from __future__ import annotations

import struct

import pytest

from sidecar.core.model import MalformedRequest
from sidecar.core.reasons import Reason
from sidecar.triton import wire
from sidecar.triton.protos import ModelInferRequest, descriptor
from tests.support.kserve import chat, field, number, varint

SPEC = wire.spec_of(descriptor("ModelInferRequest"))
M, A, L = Reason.REQUEST_MALFORMED, Reason.REQUEST_AMBIGUOUS, Reason.REQUEST_TOO_LARGE


def deep(data: bytes, *, most: int = wire.COST_MAX) -> int:
    return wire.check(data, SPEC, wire.scan(data, SPEC), most=most)


def fault(data: bytes) -> MalformedRequest:
    with pytest.raises(MalformedRequest) as caught:
        deep(data)
    return caught.value


def test_finds_the_fields_and_where_they_are() -> None:
    data = chat(b"hello", max_tokens=5).SerializeToString()
    found = wire.scan(data, SPEC)
    assert [each.field.name for each in found] == ["model_name"] + ["inputs"] * 3 + ["raw_input_contents"] * 3
    assert wire.text(data, found[0], SPEC) == "chat"
    assert data[found[4].start : found[4].end] == b"\x05\x00\x00\x00hello"
    assert b"".join(data[each.at : each.end] for each in found) == data
    assert deep(data) == 7 + 3 * (32 + 3)


def test_both_forms_of_a_repeated_number_are_read() -> None:
    shape = field(1, b"x") + number(3, 2) + field(3, varint(3) + varint(4))
    assert deep(field(5, shape)) == 1 + 32 + 3
    assert list(ModelInferRequest.FromString(field(5, shape)).inputs[0].shape) == [2, 3, 4]


AMBIGUOUS = {
    "model_name twice": field(1, b"a") + field(1, b"b"),
    "model_name twice, the same": field(1, b"a") + field(2, b"1") + field(1, b"a"),
    "model_name twice, once with a long tag": field(1, b"a") + b"\x8a\x00\x01b",
    "model_version twice": field(2, b"1") + field(2, b""),
    "id twice": field(3, b"1") + field(3, b"2"),
    "datatype twice": field(5, field(1, b"x") + field(2, b"INT8") + field(2, b"FP32")),
    "input name twice": field(5, field(1, b"x") + field(1, b"y")),
    "contents twice, to be merged": field(5, field(5, field(8, b"a")) + field(5, field(8, b"b"))),
    "output name twice": field(6, field(1, b"x") + field(1, b"y")),
    "the same parameter twice": field(4, field(1, b"k")) * 2,
    "the empty key, once spelt": field(4, field(1, b"")) + field(4, field(2, number(1, 1))),
    "the same parameter of an input twice": field(5, field(4, field(1, b"k")) * 2),
    "the same parameter of an output twice": field(6, field(2, field(1, b"k")) * 2),
    "a map entry's key twice": field(4, field(1, b"a") + field(1, b"b")),
    "a map entry's value twice": field(4, field(1, b"a") + field(2, number(1, 1)) + field(2, number(2, 1))),
    "a parameter with two values": field(4, field(1, b"a") + field(2, number(1, 1) + number(2, 7))),
    "a parameter with one value twice": field(4, field(1, b"a") + field(2, number(2, 1) + number(2, 7))),
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_protobuf_would_merge_is_ambiguous(data: bytes) -> None:
    ModelInferRequest.FromString(data)  # protobuf takes it
    assert fault(data).reason is A


MALFORMED = {
    "unknown field 9": (field(9, b"x"), "unknown field 9 at byte 0"),
    "unknown field 1000": (field(1, b"m") + field(1000, b"x"), "unknown field 1000 at byte 3"),
    "field 0": (b"\x02\x00", "unknown field 0 at byte 0"),
    "unknown field in an input": (field(5, field(1, b"x") + field(6, b"")), "InferInputTensor: unknown field 6 at"),
    "a varint where a string belongs": (number(1, 5), "field model_name has wire type 0 at byte 0"),
    "a group": (b"\x0b\x0c", "field model_name has wire type 3 at byte 0"),
    "wire type 7": (b"\x0f", "field model_name has wire type 7 at byte 0"),
    "a string where a shape belongs": (field(5, b"\x1d\x00\x00\x00\x00"), "field shape has wire type 5"),
    "truncated payload": (field(1, b"model")[:-1], "field model_name runs past the end"),
    "truncated length": (b"\x0a", "varint truncated at byte 1"),
    "truncated tag": (b"\x8a", "varint truncated at byte 0"),
    "an input that runs into its neighbour": (field(5, b"\x0a\x05") + field(3, b"abc"), "field name runs past the end"),
    "tag of six bytes": (b"\x8a\x80\x80\x80\x80\x00\x01a", "varint too long at byte 0"),
    "length of six bytes": (b"\x0a\x81\x80\x80\x80\x80\x00a", "varint too long at byte 1"),
    "length over 32 bits": (b"\x0a\xff\xff\xff\xff\x7f", "varint overflows at byte 1"),
    "value of eleven bytes": (field(5, b"\x18" + b"\x80" * 10 + b"\x00"), "varint too long"),
    "value over 64 bits": (field(5, b"\x18" + b"\xff" * 9 + b"\x02"), "varint overflows"),
    "not UTF-8": (field(3, b"\xff\xfe"), "field id is not UTF-8 at byte 2"),
    "half a character": (field(1, b"\xed\xa0\x80"), "field model_name is not UTF-8"),
    "a tensor's name that is not UTF-8": (field(5, field(1, b"\xc0\xaf")), "field name is not UTF-8"),
    "a key that is not UTF-8": (field(4, field(1, b"\xff")), "field key is not UTF-8"),
}


@pytest.mark.parametrize(("data", "says"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_this_message_is_malformed_and_named(data: bytes, says: str) -> None:
    caught = fault(data)
    assert caught.reason is M
    assert says in caught.detail


def test_a_scan_ends_at_its_bound() -> None:
    data = field(6, b"") * 11
    with pytest.raises(MalformedRequest) as caught:
        wire.scan(data, SPEC, most=10)
    assert caught.value.reason is L
    assert len(wire.scan(data, SPEC, most=11)) == 11


def test_the_bound_counts_nested_fields_too() -> None:
    data = field(5, number(3, 1) * 20) + field(5, number(3, 1) * 20)
    assert deep(data, most=2 + 2 * (32 + 20)) == 106
    with pytest.raises(MalformedRequest) as caught:
        deep(data, most=105)
    assert caught.value.reason is L


def test_packed_varints_are_not_free() -> None:
    data = field(5, field(3, bytes(6400)) + field(5, field(2, bytes(640)) + field(1, bytes(6400))))
    assert deep(data) == 1 + 32 + 2 + 100 + 32 + 2 + 10
    with pytest.raises(MalformedRequest, match="raw_input_contents"):
        deep(field(5, field(3, bytes(64 * wire.COST_MAX))))


def test_other_payloads_are_stepped_over() -> None:
    floats = struct.pack("<4f", *range(4)) * 250_000
    data = field(5, field(5, field(6, floats))) + field(7, b"\xff" * 1_000_000)
    assert deep(data) == 2 + 32 + 1 + 32 + 1

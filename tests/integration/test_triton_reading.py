"""The reader beside the real Triton: where the two could read one message differently, the reader refuses it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from sidecar.core.model import Contract, MalformedRequest, ModelProfile, ResponseFacts
from sidecar.triton.methods import KSERVE, lookup
from sidecar.triton.protos import ModelInferResponse
from tests.support.kserve import field, number, packed, request, typed
from tests.support.reading import answered, reader
from tests.support.stack import Triton

pytestmark = pytest.mark.integration

READER = reader()
INFER, STREAM = lookup(KSERVE + "ModelInfer"), lookup(KSERVE + "ModelStreamInfer")
VLLM = ModelProfile("slow", Contract.VLLM)


@pytest.fixture(scope="module")
def channel(triton: Triton) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(triton.grpc) as made:
        yield made


def reads(data: bytes) -> bool:
    try:
        READER.head(INFER, data)
        READER.facts(INFER, data, ModelProfile("echo"))
    except MalformedRequest:
        return False
    return True


def takes(channel: grpc.Channel, data: bytes) -> Any | None:
    """Triton's answer; None if it refuses."""
    try:
        return ModelInferResponse.FromString(channel.unary_unary(INFER.path)(data, timeout=30))
    except grpc.RpcError as error:
        if error.code() not in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}:  # it is a grpc.Call too
            raise
        return None


def echo(payload: bytes = packed(b"a"), shape: tuple[int, ...] = (1,), **fields: Any) -> Any:
    return request("echo", ("text", "BYTES", list(shape), payload), **fields)


ECHO = echo().SerializeToString()

GOOD = {
    "raw": ECHO,
    "typed strings": typed("echo", "text", "BYTES", [2], bytes_contents=[b"a", b"bc"]).SerializeToString(),
    "typed numbers": typed("echo", "tensor", "FP32", [2], fp32_contents=[1.0, 2.0]).SerializeToString(),
    "no strings": echo(b"", (0,)).SerializeToString(),
    "a version": echo(model_version="1").SerializeToString(),
    "an id": echo(id="tenant: 7/[x]").SerializeToString(),
    "defaults spelt out": field(3, b"") + ECHO + field(2, b""),
}

# Triton 2.51 takes each of these, by a reading of its own: the last of two names, the number before the letters.
TAKEN = {
    "two models": field(1, b"slow") + ECHO,
    "two names of an input": field(1, b"echo")
    + field(5, field(1, b"tensor") + field(1, b"text") + field(2, b"BYTES") + number(3, 1))
    + field(7, packed(b"a")),
    "more payloads than inputs": ECHO + field(7, b"more"),
    "an output twice": ECHO + field(6, field(1, b"text")) * 2,
    "an unknown field": ECHO + field(99, b"x"),
    **{
        f"version {version!r}": echo(model_version=version).SerializeToString()
        for version in ("01", "+1", " 1", "1abc", "1.9")
    },
}

# Both refuse these.
BAD = {
    "a lying length": echo(packed(b"a", b"bcd")[:-1], (2,)),
    "a trailing byte": echo(packed(b"a") + b"\x00"),
    "a cut length": echo(packed(b"a") + b"\x01\x00", (2,)),
    "too few bytes": request("echo", ("tensor", "FP32", [2], bytes(7))),
    "a negative dimension": echo(shape=(-1,)),
    "an input twice": request("echo", ("text", "BYTES", [1], packed(b"a")), ("text", "BYTES", [1], packed(b"b"))),
    "two typed lists": typed("echo", "tensor", "FP32", [1], fp32_contents=[1.0], int_contents=[3]),
    "version -1": echo(model_version="-1"),
    "version 0x1": echo(model_version="0x1"),
}


@pytest.mark.parametrize("data", GOOD.values(), ids=GOOD)
def test_what_triton_reads_one_way_the_reader_reads(channel: grpc.Channel, data: bytes) -> None:
    assert reads(data)
    answer = takes(channel, data)
    assert answer is not None
    assert READER.head(INFER, data).model == answer.model_name == "echo"
    facts = READER.facts(INFER, data, ModelProfile("echo"))
    assert [(each.name, each.datatype, each.shape) for each in facts.inputs] == [
        (each.name, each.datatype, tuple(each.shape)) for each in answer.outputs
    ]
    assert [each.nbytes for each in facts.inputs] == [len(each) for each in answer.raw_output_contents]
    assert facts.request_id == answer.id


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN)
def test_what_triton_reads_its_own_way_the_reader_refuses(channel: grpc.Channel, data: bytes) -> None:
    assert takes(channel, data) is not None
    assert not reads(data)


@pytest.mark.parametrize("message", BAD.values(), ids=BAD)
def test_what_triton_refuses_the_reader_refuses_first(channel: grpc.Channel, message: Any) -> None:
    data = message.SerializeToString()
    assert takes(channel, data) is None
    assert not reads(data)


def answers(channel: grpc.Channel, message: Any, profile: ModelProfile = VLLM) -> list[ResponseFacts]:
    data = message.SerializeToString()
    assert READER.head(STREAM, data).model == message.model_name
    stream = channel.stream_stream(STREAM.path)(iter([data]), timeout=30)
    return [answered(READER, STREAM, each, profile) for each in stream]


def test_a_streams_answers(channel: grpc.Channel) -> None:
    got = answers(
        channel,
        request(
            "slow",
            ("text_input", "BYTES", [1], packed(b"a b c")),
            ("return_num_input_tokens", "BOOL", [1], b"\x01"),
            ("return_num_output_tokens", "BOOL", [1], b"\x01"),
            ("count", "INT32", [1], struct.pack("<i", 2)),
            id="q",
        ),
    )
    assert [each.texts for each in got] == [(b"word0 ",), (b"word1 ",), (b"",)]
    assert [each.final for each in got] == [False, False, True]
    assert [each.output_tokens for each in got] == [1, 1, 0]
    assert {(each.request_id, each.model, each.model_version, each.input_tokens) for each in got} == {
        ("q", "slow", "1", 3)
    }


def test_an_error_before_the_model_has_no_flag_and_is_final(channel: grpc.Channel) -> None:
    (got,) = answers(channel, request("nope", ("x", "INT8", [1], b"a"), id="u"))
    assert (got.request_id, got.final, got.empty, got.model) == ("u", True, True, "")
    assert "nope" in (got.error or "")


def test_an_error_of_the_model_comes_after_its_answers(channel: grpc.Channel) -> None:
    got = answers(
        channel,
        request(
            "failing_stream",
            ("code", "BYTES", [1], packed(b"INTERNAL")),
            ("after", "INT32", [1], struct.pack("<i", 1)),
            id="e",
        ),
    )
    assert [(each.error, each.final, each.empty) for each in got] == [
        (None, False, False),
        ("as asked for", True, True),
    ]


def test_a_unary_model_on_a_stream_answers_once(channel: grpc.Channel) -> None:
    (got,) = answers(channel, echo(id="n"), ModelProfile("echo"))
    assert (got.request_id, got.final, got.texts, got.error) == ("n", True, (), None)

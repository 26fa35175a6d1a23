"""What an answer says; nothing that Triton could send makes the reader raise."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sidecar.core.model import Contract, ModelProfile, ResponseFacts
from sidecar.triton.methods import KSERVE, lookup
from sidecar.triton.protos import ModelInferResponse
from tests.support.kserve import field, packed, response, streamed
from tests.support.reading import answered, reader

READER = reader()
UNARY, STREAM = lookup(KSERVE + "ModelInfer"), lookup(KSERVE + "ModelStreamInfer")
VLLM, TRTLLM, GENERIC = (ModelProfile("chat", contract) for contract in Contract)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def tokens(*texts: bytes, counts: tuple[int, ...] = (1,), prompt: int = 7, **fields: Any) -> Any:
    return response(
        ("text_output", "BYTES", [len(texts)], packed(*texts)),
        ("num_input_tokens", "UINT32", [1], u32(prompt)),
        ("num_output_tokens", "UINT32", [len(counts)], u32(*counts)),
        **fields,
    )


def test_a_streamed_token() -> None:
    data = streamed(tokens(b" hello", id="7"), final=False)
    assert answered(READER, STREAM, data, VLLM) == ResponseFacts(
        request_id="7",
        model="chat",
        model_version="1",
        texts=(b" hello",),
        input_tokens=7,
        output_tokens=1,
        nbytes=len(data),
        message=data,
    )


def test_several_sequences_add_up() -> None:
    got = answered(READER, STREAM, streamed(tokens(b"a", b"b", counts=(2, 3))), VLLM)
    assert (got.texts, got.output_tokens) == ((b"a", b"b"), 5)


def test_final_and_empty() -> None:
    got = answered(READER, STREAM, streamed(response(id="7"), final=True), VLLM)
    assert (got.final, got.empty, got.request_id, got.texts) == (True, True, "7", ())
    assert not answered(READER, STREAM, streamed(tokens(b"a")), VLLM).final
    assert answered(READER, STREAM, streamed(tokens(b"a"), final=True), VLLM).final


@pytest.mark.parametrize(("flag", "final"), [(None, True), (True, True), (False, False)])
def test_an_error_in_band_is_final_unless_it_says_not(flag: bool | None, final: bool) -> None:
    got = answered(READER, STREAM, streamed(response(id="7"), error="Request for unknown model", final=flag), VLLM)
    assert (got.error, got.final, got.request_id) == ("Request for unknown model", final, "7")


def test_a_unary_answer_is_final() -> None:
    data = tokens(b"hello world", counts=(2,)).SerializeToString()
    got = answered(READER, UNARY, data, VLLM)
    assert (got.final, got.texts, got.output_tokens, got.error) == (True, (b"hello world",), 2, None)


@pytest.mark.parametrize(("datatype", "code"), [("INT32", "i"), ("UINT32", "I"), ("INT64", "q"), ("UINT64", "Q")])
def test_counts_of_any_width(datatype: str, code: str) -> None:
    message = response(("num_output_tokens", datatype, [2], struct.pack(f"<2{code}", 5, 6)))
    assert answered(READER, UNARY, message.SerializeToString(), TRTLLM).output_tokens == 11


@pytest.mark.parametrize("counts", [(2**40 + 1,), (2**64 - 1,), (2**40, 1)])
@pytest.mark.parametrize("raw", [True, False])
def test_a_count_that_no_call_can_have_is_none(counts: tuple[int, ...], raw: bool) -> None:
    message = response(("num_output_tokens", "UINT64", [len(counts)], struct.pack(f"<{len(counts)}Q", *counts)))
    if not raw:
        message.ClearField("raw_output_contents")
        message.outputs[0].contents.uint64_contents.extend(counts)
    assert answered(READER, UNARY, message.SerializeToString(), TRTLLM).output_tokens is None


def test_typed_contents_are_read_too() -> None:
    message = ModelInferResponse(model_name="chat")
    message.outputs.add(name="text_output", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hi")
    message.outputs.add(name="num_output_tokens", datatype="UINT32", shape=[1]).contents.uint_contents.append(4)
    got = answered(READER, UNARY, message.SerializeToString(), VLLM)
    assert (got.texts, got.output_tokens) == ((b"hi",), 4)


def test_a_generic_models_outputs_are_not_text() -> None:
    got = answered(READER, UNARY, tokens(b"hello").SerializeToString(), GENERIC)
    assert (got.texts, got.input_tokens, got.output_tokens, got.model_version) == ((), None, None, "1")


@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_a_large_answer_reads_like_a_small_one(method: Any) -> None:
    text = b"x" * 200_000
    message = tokens(text, counts=(50_000,), id="7")
    data = streamed(message, final=True) if method.streaming else message.SerializeToString()
    got = answered(READER, method, data, VLLM)
    assert (got.texts, got.output_tokens, got.request_id, got.final) == ((text,), 50_000, "7", True)
    newer = data + field(99, b"of a newer Triton")
    assert answered(READER, method, newer, VLLM).texts == (text,)


def test_a_large_error_is_read() -> None:
    got = answered(READER, STREAM, streamed(error="x" * 100_000), VLLM)
    assert (got.error, got.final, got.empty) == ("x" * 100_000, True, True)


ODD = {
    "nothing": b"",
    "not protobuf": b"\xff\xff\xff",
    "text of numbers": response(("text_output", "INT32", [1], bytes(4))),
    "cut text": response(("text_output", "BYTES", [2], packed(b"ab")[:-1] + b"")),
    "a lying length": response(("text_output", "BYTES", [1], b"\xff\xff\xff\xffab")),
    "counts of text": response(("num_output_tokens", "BYTES", [1], packed(b"5"))),
    "counts of floats": response(("num_output_tokens", "FP32", [1], bytes(4))),
    "an odd count": response(("num_output_tokens", "UINT32", [1], b"\x01\x02")),
    "no count": response(("num_output_tokens", "UINT32", [0], b"")),
    "a negative count": response(("num_output_tokens", "INT32", [1], struct.pack("<i", -1))),
    "no payload": ModelInferResponse.FromString(field(5, field(1, b"num_output_tokens") + field(2, b"UINT32"))),
}


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
@pytest.mark.parametrize("large", [False, True])
def test_odd_answers_are_met_with_silence(message: Any, large: bool) -> None:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    if large:
        data += field(6, bytes(70_000))
    for profile in (VLLM, TRTLLM, GENERIC):
        got = answered(READER, UNARY, data, profile)
        assert (got.nbytes, got.output_tokens, got.final) == (len(data), None, True)
        answered(READER, STREAM, data, profile)
        answered(READER, STREAM, field(2, data), profile)


def test_answers_of_other_methods_have_their_length() -> None:
    assert answered(READER, lookup(KSERVE + "ModelReady"), b"\x08\x01", GENERIC) == ResponseFacts(
        final=True, nbytes=2, message=b"\x08\x01"
    )

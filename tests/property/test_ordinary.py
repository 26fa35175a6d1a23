"""A message read at a glance says what it says read whole: an answer to protobuf, a request field by field."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.core.model import Contract, InferenceFacts, MalformedRequest, ModelProfile, ResponseFacts, Undo
from sidecar.triton.chat import read_chat
from sidecar.triton.layout import layout
from sidecar.triton.methods import KSERVE, lookup
from sidecar.triton.ordinary import read_ordinary
from sidecar.triton.protos import ModelInferResponse, ModelStreamInferResponse
from sidecar.triton.request import RAW_TAG, Request, _read_fields, read_request
from sidecar.triton.responses import read_whole
from tests.support.kserve import chat, field, packed, request, response, streamed, with_sampling
from tests.support.reading import reader

METHODS = {False: lookup(KSERVE + "ModelInfer"), True: lookup(KSERVE + "ModelStreamInfer")}
SENT = "f" * 32
READER = reader()
CHAT = ModelProfile("chat", Contract.VLLM)

_texts = st.lists(st.binary(max_size=200), max_size=3)
_counts = st.lists(st.integers(0, 2**31), max_size=3)
_output = st.one_of(
    st.tuples(st.sampled_from(["text_output", "other"]), st.just("BYTES"), _texts.map(lambda each: packed(*each))),
    st.tuples(
        st.sampled_from(["num_input_tokens", "num_output_tokens"]),
        st.sampled_from(["UINT32", "INT32"]),
        _counts.map(lambda each: struct.pack(f"<{len(each)}I", *each)),
    ),
    st.tuples(st.sampled_from(["text_output", "num_output_tokens"]), st.sampled_from(["FP32", "BYTES"]), st.binary()),
)
_undo = st.builds(
    Undo,
    request_id=st.sampled_from([None, "mine", "ä" * 100]),
    strip=st.frozensets(st.sampled_from(["num_input_tokens", "num_output_tokens", "text_output"])),
    sent=st.just(SENT),
    beams=st.integers(0, 2),
)


@st.composite
def answers(draw: st.DrawFn) -> Any:
    made = response(
        *((name, datatype, [1], raw) for name, datatype, raw in draw(st.lists(_output, max_size=4))),
        id=draw(st.sampled_from(["", SENT, "another's", "x" * 300])),
    )
    flag = draw(st.sampled_from([None, True, False]))
    if flag is not None:
        made.parameters["triton_final_response"].bool_param = flag
    return made


def read_both(data: bytes, contract: Contract, undo: Undo | None, *, streaming: bool) -> ResponseFacts | None:
    glance = read_ordinary(data, contract, undo, streaming=streaming)
    if glance is not None:
        whole = read_whole(METHODS[streaming], data, contract, undo)
        assert replace(glance, message=b"") == replace(whole, message=b"")
        parse = ModelStreamInferResponse.FromString if streaming else ModelInferResponse.FromString
        assert parse(glance.message) == parse(whole.message)
    return glance


@given(answers(), st.sampled_from(Contract), st.none() | _undo, st.booleans())
@example(
    response(("text_output", "BYTES", [1], packed(b"x" * 40_000)), id=SENT), Contract.VLLM, Undo("a", sent=SENT), True
)
def test_a_glance_is_enough_for_what_triton_sends(
    made: Any, contract: Contract, undo: Undo | None, streaming: bool
) -> None:
    data = streamed(made) if streaming else made.SerializeToString()
    assert read_both(data, contract, undo, streaming=streaming) is not None


@given(answers(), st.data(), st.booleans())
def test_whatever_else_it_is_it_isn_t_read_otherwise(made: Any, data: st.DataObject, streaming: bool) -> None:
    written = bytearray(streamed(made) if streaming else made.SerializeToString())
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(written) - 1), st.integers(0, 255)), max_size=3)):
        written[at] = byte
    read_both(bytes(written), Contract.VLLM, None, streaming=streaming)


def test_what_is_not_laid_out_as_usual_is_left_to_the_parser() -> None:
    plain = response(("text_output", "BYTES", [1], packed(b"hi")), id=SENT)
    typed = ModelInferResponse(model_name="chat")
    typed.outputs.add(name="text_output", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hi")
    written = plain.SerializeToString()
    for odd in (
        typed.SerializeToString(),  # a payload in the header
        written + b"\x0a\x01m",  # a name behind the payloads
        written + b"\x32\x00",  # more payloads than outputs
        written[:-1],
        written + b"\x9a\x06\x00",  # a field of a newer Triton
        b"",
    ):
        assert read_ordinary(odd, Contract.VLLM, None, streaming=False) is None
    for told in (streamed(plain, error="no"), streamed(error="no"), b"\x12", b"\x12\x80"):
        assert read_ordinary(told, Contract.VLLM, None, streaming=True) is None


# --- requests -----------------------------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A chat, and what a hostile client makes of it."""
    sampling = draw(st.dictionaries(st.sampled_from(["max_tokens", "n"]), st.integers(1, 9)))
    prompt = draw(st.binary(max_size=300))
    made = chat(prompt, stream=True, **sampling)
    if draw(st.booleans()):  # without a stream tensor
        made = with_sampling(
            request("chat", ("text_input", "BYTES", [1], packed(prompt))), json.dumps(sampling).encode()
        )
    made.id = draw(st.sampled_from(["", "7", "x" * 129, "two\nlines"]))
    written = bytearray(made.SerializeToString())
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(written) - 1), st.integers(0, 255)), max_size=2)):
        written[at] = byte
    more = st.sampled_from([b"", field(1, b"m"), field(3, b"8"), field(7, packed(b"x")), field(9, b"?"), b"\x3a\x05"])
    return bytes(written) + draw(more)


def read(reading: Any, data: bytes) -> Request | str:
    try:
        found: Request = reading(data)
    except MalformedRequest as fault:
        return fault.detail
    return found


def facts(data: bytes, *, known: bool) -> InferenceFacts | str:
    try:
        head = READER.head(METHODS[False], data)
        return READER.facts(METHODS[False], data, CHAT, head if known else replace(head, parts=None))
    except MalformedRequest as fault:
        return fault.detail


@given(requests())
def test_its_facts_are_the_same_whether_its_layout_is_known_or_not(data: bytes) -> None:
    assert facts(data, known=True) == facts(data, known=False)


@pytest.mark.parametrize("names", [("text_input", "sampling_parameters"), ("sampling_parameters", "text_input")])
def test_the_plain_chat_is_read_from_its_layout(names: tuple[str, str]) -> None:
    said = {"text_input": b"hello", "sampling_parameters": b'{"max_tokens": 7, "n": 2, "lora_name": "a"}'}
    made = request("chat", *((name, "BYTES", [1, 1], packed(said[name])) for name in names), id="7")
    made.parameters["priority"].int64_param = 3
    data = made.SerializeToString()
    found = layout(data, 0, len(data), RAW_TAG)
    assert found is not None
    chat = read_chat(data, found, CHAT)
    assert chat is not None
    assert chat == facts(data, known=False)
    assert (chat.prompts, chat.requested_tokens, chat.sequences, chat.loras) == ((b"hello",), 7, 2, ("a",))


@given(requests())
def test_a_request_is_read_or_refused_in_the_same_words(data: bytes) -> None:
    assert read(read_request, data) == read(_read_fields, data)

"""The backend counts wherever it can, and the client sees its answer as if nobody had asked it to."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sidecar.core.model import Contract, Forward, ModelProfile, ResponseFacts
from sidecar.triton.knowledge import Knowledge, ModelBook, ModelFacts
from sidecar.triton.methods import KSERVE, lookup
from sidecar.triton.protos import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from sidecar.triton.reader import TritonReader
from tests.support.core import a_call
from tests.support.kserve import chat, packed, request, response, streamed
from tests.support.models import ENSEMBLE, VLLM, described
from tests.support.reading import answered, isolated, isolation, reader

CHAT, TRTLLM = ModelProfile("chat", Contract.VLLM), ModelProfile("t", Contract.TRTLLM)
MODEL, BATCHED = described("chat", VLLM), described("t", ENSEMBLE)
FLAGS = ["return_num_input_tokens", "return_num_output_tokens"]
COUNTS = ["num_input_tokens", "num_output_tokens"]
UNARY, STREAM = lookup(KSERVE + "ModelInfer"), lookup(KSERVE + "ModelStreamInfer")


def sent(message: Any, profile: ModelProfile = CHAT, model: ModelFacts | None = MODEL) -> tuple[Any, Forward]:
    """What Triton is sent, whole, and the forward it is of."""
    reading = reader(model) if model is not None else TritonReader(isolation(complete=False))
    forward = isolated(reading, a_call(method=UNARY, message=message.SerializeToString()), profile)
    assert isinstance(forward, Forward)
    return ModelInferRequest.FromString(forward.message + forward.suffix), forward


def stripped(forward: Forward) -> frozenset[str]:
    return frozenset() if forward.undo is None else forward.undo.strip


def flag(message: Any, name: str, value: bytes) -> Any:
    message.inputs.add(name=name, datatype="BOOL", shape=[1])
    message.raw_input_contents.append(value)
    return message


def test_the_backend_is_asked_and_the_message_not_copied() -> None:
    message = chat(b"hello", max_tokens=5)
    got, forward = sent(message)
    data = message.SerializeToString()
    assert forward.message == data
    assert [each.name for each in got.inputs][-2:] == FLAGS
    assert list(got.raw_input_contents)[-2:] == [b"\x01", b"\x01"]
    assert [list(each.shape) for each in got.inputs][-2:] == [[1], [1]]
    assert not got.outputs  # all are given already
    assert stripped(forward) == set(COUNTS)


def test_outputs_that_are_listed_are_listed_with_ours() -> None:
    message = chat()
    message.outputs.add(name="text_output")
    message.outputs.add(name="num_input_tokens")
    got, forward = sent(message)
    assert [each.name for each in got.outputs] == ["text_output", "num_input_tokens", "num_output_tokens"]
    assert stripped(forward) == {"num_output_tokens"}


def test_what_the_client_asks_for_itself_it_keeps() -> None:
    message = flag(flag(chat(), FLAGS[0], b"\x01"), FLAGS[1], b"\x01")
    got, forward = sent(message)
    assert got == message
    assert forward.undo is None
    message.outputs.add(name="text_output")  # asked to count, but not to tell
    got, forward = sent(message)
    assert [each.name for each in got.outputs] == ["text_output", *COUNTS]
    assert stripped(forward) == set(COUNTS)


@pytest.mark.parametrize("raw", [True, False])
def test_who_declines_is_counted_all_the_same_and_not_told(raw: bool) -> None:
    message = flag(chat(), FLAGS[1], b"\x00")
    if not raw:
        for tensor, payload in zip(message.inputs, message.raw_input_contents, strict=True):
            if tensor.datatype == "BOOL":
                tensor.contents.bool_contents.append(payload == b"\x01")
            else:
                tensor.contents.bytes_contents.append(payload[4:])
        message.ClearField("raw_input_contents")
    got, forward = sent(message)
    index = [each.name for each in got.inputs].index(FLAGS[1])
    assert (got.raw_input_contents[index] if raw else bytes(got.inputs[index].contents.bool_contents)) == b"\x01"
    assert [each.name for each in got.inputs].count(FLAGS[1]) == 1
    assert stripped(forward) == set(COUNTS)


def test_a_batch_has_a_flag_for_each_prompt() -> None:
    most = ("max_tokens", "INT32", [3, 1], struct.pack("<3i", 1, 1, 1))
    got, _ = sent(request("t", ("text_input", "BYTES", [3, 1], packed(b"a", b"b", b"c")), most), TRTLLM, BATCHED)
    assert list(got.inputs[-1].shape) == [3, 1]
    assert got.raw_input_contents[-1] == b"\x01\x01\x01"


@pytest.mark.parametrize(
    ("profile", "model"),
    [
        (CHAT, described("chat", VLLM.replace("return_num", "other"))),  # it can't be asked
        (CHAT, described("chat", VLLM.replace('"num_', '"other_'))),  # it would not say
        (ModelProfile("chat"), MODEL),  # models.yaml says that it has no tokens
        (CHAT, None),  # what it is isn't known yet
    ],
)
def test_where_it_cannot_count_nothing_is_asked(profile: ModelProfile, model: ModelFacts | None) -> None:
    message = chat()
    got, forward = sent(message, profile, model)
    assert (got, forward.suffix, forward.undo) == (message, b"", None)


# --- taking it out again ------------------------------------------------------------------------------------------


def told(*, text: bytes = b"hi", request_id: str = "", extra: bool = True) -> Any:
    outputs = [("text_output", "BYTES", [1], packed(text))]
    if extra:
        outputs.insert(0, ("num_input_tokens", "UINT32", [1], struct.pack("<I", 7)))
        outputs.append(("num_output_tokens", "UINT32", [1], struct.pack("<I", 3)))
    return response(*outputs, id=request_id)


def read(message: Any, *, streaming: bool = False, request_id: str = "", error: str = "") -> ResponseFacts:
    asked = chat()
    asked.id = request_id
    _, forward = sent(asked)
    method = STREAM if streaming else UNARY
    if forward.undo is not None and request_id:
        message.id = forward.undo.sent
        error = error.replace("SENT", forward.undo.sent)
    data = streamed(message, error=error, final=not error) if streaming else message.SerializeToString()
    facts = answered(reader(MODEL), method, data, CHAT, forward=forward)
    assert facts.nbytes == len(data)
    return facts


@pytest.mark.parametrize("text", [b"hi", b"x" * 200_000], ids=["small", "large"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("request_id", ["", "mine"])
def test_counts_and_ids_are_the_clients_own_again(text: bytes, streaming: bool, request_id: str) -> None:
    facts = read(told(text=text), streaming=streaming, request_id=request_id)
    assert (facts.texts, facts.input_tokens, facts.output_tokens) == ((text,), 7, 3)
    expected = told(text=text, request_id=request_id, extra=False)
    if streaming:
        got = ModelStreamInferResponse.FromString(facts.message)
        assert got == ModelStreamInferResponse.FromString(streamed(expected, final=True))
    else:
        assert ModelInferResponse.FromString(facts.message) == expected


def test_typed_answers_lose_their_counts_too() -> None:
    message = ModelInferResponse(model_name="chat")
    message.outputs.add(name="num_output_tokens", datatype="UINT32", shape=[1]).contents.uint_contents.append(4)
    message.outputs.add(name="text_output", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hi")
    facts = read(message)
    assert (facts.texts, facts.output_tokens) == ((b"hi",), 4)
    assert [each.name for each in ModelInferResponse.FromString(facts.message).outputs] == ["text_output"]


def test_an_answer_whose_payloads_match_no_output_is_left_alone() -> None:
    message = told()
    message.raw_output_contents.append(b"one too many")
    facts = read(message, request_id="mine")
    message.id = "mine"
    assert ModelInferResponse.FromString(facts.message) == message


def test_an_error_names_the_clients_own_request() -> None:
    message = ModelInferResponse()
    facts = read(message, streaming=True, request_id="mine", error="[request id: SENT] out of memory")
    assert facts.error == "[request id: mine] out of memory"
    got = ModelStreamInferResponse.FromString(facts.message)
    assert (got.error_message, got.infer_response.id) == (facts.error, "mine")


def test_an_id_that_triton_was_not_given_stands() -> None:
    _, forward = sent(request("chat", ("text_input", "BYTES", [1], packed(b"x")), id="mine"))
    message = told(request_id="another")
    facts = answered(reader(MODEL), UNARY, message.SerializeToString(), CHAT, forward=forward)
    assert ModelInferResponse.FromString(facts.message).id == "another"


# --- the prompt among the output ----------------------------------------------------------------------------------

SAYS_SO = 'parameters { key: "exclude_input_in_output" value { string_value: "false" } }'


@pytest.mark.parametrize(
    ("said", "excluded", "streaming", "output"),
    [
        ("", None, False, 30),
        (SAYS_SO, None, False, 16),
        (SAYS_SO, True, False, 30),
        ("", False, False, 16),
        ("", False, True, 30),
    ],
)
def test_prompts_are_not_counted_as_output(said: str, excluded: bool | None, streaming: bool, output: int) -> None:
    """Two beams of a prompt of 7 tokens; 30 tokens were counted."""
    known = [
        described("t", ENSEMBLE + " model_transaction_policy { decoupled: true }"),
        described("tensorrt_llm", said),
    ]
    book = ModelBook(Knowledge.of(known))
    message = request(
        "t",
        ("text_input", "BYTES", [1, 1], packed(b"x")),
        ("max_tokens", "INT32", [1, 1], struct.pack("<i", 8)),
        ("beam_width", "INT32", [1, 1], struct.pack("<i", 2)),
        ("stream", "BOOL", [1, 1], b"\x01" if streaming else b"\x00"),
    )
    if excluded is not None:
        flag(message, "exclude_input_in_output", b"\x01" if excluded else b"\x00")
    reading = reader()
    reading.models.current = book.current
    forward = isolated(reading, a_call(method=UNARY, message=message.SerializeToString()), TRTLLM)
    assert isinstance(forward, Forward)
    answer = response(
        ("num_input_tokens", "INT32", [1], struct.pack("<i", 7)),
        ("num_output_tokens", "INT32", [1], struct.pack("<i", 30)),
    )
    facts = answered(reading, UNARY, answer.SerializeToString(), TRTLLM, forward=forward)
    assert (facts.input_tokens, facts.output_tokens) == (7, output)

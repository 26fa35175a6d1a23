"""What a request asks for, by contract."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from sidecar.core.model import Contract, MalformedRequest, ModelProfile
from sidecar.core.reasons import Reason
from sidecar.triton.contracts import SEQUENCES_MAX, Asked, ask, estimate_tokens
from sidecar.triton.request import read_request
from tests.support.kserve import chat, packed, request, with_sampling

VLLM = ModelProfile("chat", Contract.VLLM, default_tokens=16, max_tokens=4096)
TRTLLM = ModelProfile("trt", Contract.TRTLLM, default_tokens=32, max_tokens=2048)


def asked(message: Any, profile: ModelProfile = VLLM) -> Asked:
    return ask(read_request(message.SerializeToString()), profile)


def fault(message: Any, profile: ModelProfile = VLLM) -> MalformedRequest:
    with pytest.raises(MalformedRequest) as caught:
        asked(message, profile)
    return caught.value


def test_every_contract_is_read() -> None:
    message = request("m", ("text_input", "BYTES", [1], packed(b"hello")))
    prompts = {contract: asked(message, ModelProfile("m", contract)).prompts for contract in Contract}
    assert prompts == {Contract.VLLM: (b"hello",), Contract.TRTLLM: (b"hello",), Contract.GENERIC: ()}


def test_generic_asks_for_no_tokens() -> None:
    assert asked(chat(max_tokens=9), ModelProfile("m")) == Asked()


@pytest.mark.parametrize(("prompt", "tokens"), [(b"", 1), (b"a", 1), (b"abcd", 1), (b"abcde", 2), (b"x" * 1024, 256)])
def test_an_estimate_is_a_quarter_of_the_bytes(prompt: bytes, tokens: int) -> None:
    assert estimate_tokens(prompt) == tokens
    got = asked(chat(prompt))
    assert (got.prompt_tokens, got.prompt_tokens_exact) == (tokens, False)


# --- vLLM ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "requested"),
    [
        ({}, 16),
        ({"temperature": 0.5}, 16),
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 4096}, 4096),
        ({"max_tokens": 5000}, 5000),  # refused later, by isolation
        ({"max_tokens": None}, 4096),
    ],
)
def test_vllm_requested_tokens(sampling: dict[str, Any], requested: int) -> None:
    assert asked(with_sampling(chat(), json.dumps(sampling).encode())).requested_tokens == requested


def test_a_default_never_exceeds_the_bound() -> None:
    assert asked(chat(), ModelProfile("m", Contract.VLLM, default_tokens=16, max_tokens=8)).requested_tokens == 8


@pytest.mark.parametrize("value", [0, -1, 1.0, 5e2, True, False, "5", [5], {}])
@pytest.mark.parametrize("name", ["max_tokens", "n", "best_of"])
def test_vllm_counts_are_positive_integers(name: str, value: Any) -> None:
    assert f"{name}: must be a positive integer" in fault(chat(**{name: value})).detail


@pytest.mark.parametrize(
    ("sampling", "sequences"),
    [({"n": 3}, 3), ({"best_of": 4}, 4), ({"n": 2, "best_of": 5}, 5), ({"n": None, "best_of": None}, 1), ({"x": 1}, 1)],
)
def test_vllm_sequences(sampling: dict[str, Any], sequences: int) -> None:
    assert asked(chat(**sampling)).sequences == sequences


def test_sequences_are_bounded() -> None:
    assert asked(chat(n=SEQUENCES_MAX)).sequences == SEQUENCES_MAX
    assert "1025" in fault(chat(n=SEQUENCES_MAX + 1)).detail


def test_vllm_streaming() -> None:
    assert asked(chat(stream=True)).streaming
    assert not asked(chat(stream=False)).streaming
    assert not asked(request("m", ("text_input", "BYTES", [1], packed(b"x")))).streaming


def test_vllm_prompt_in_any_shape_and_form() -> None:
    batched = request("m", ("text_input", "BYTES", [2, 1], packed(b"one", b"two!!")))
    assert asked(batched).prompts == (b"one", b"two!!")
    assert (asked(batched).prompt_tokens, asked(batched).sequences) == (3, 2)
    written = request("m")
    written.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(b"\xff")
    assert asked(written).prompts == (b"\xff",)


def test_vllm_without_a_prompt_is_malformed() -> None:
    assert "text_input: is missing" in fault(request("m")).detail
    assert "must be BYTES" in fault(request("m", ("text_input", "UINT8", [1], b"x"))).detail


def test_vllm_request_parameters_stand_in_for_the_tensor() -> None:
    message = chat()
    message.parameters["max_tokens"].int64_param = 77
    message.parameters["temperature"].double_param = 0.5
    message.parameters["sequence_id"].int64_param = 5
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    got = asked(message)
    assert (got.requested_tokens, got.sampling) == (77, {"max_tokens": 77, "temperature": 0.5})
    message.parameters["max_tokens"].string_param = "77"
    assert "max_tokens: must be a positive integer" in fault(message).detail


def test_vllm_request_parameters_are_not_read_beside_the_tensor() -> None:
    message = chat(temperature=0.1)
    message.parameters["max_tokens"].int64_param = 4000
    assert asked(message).requested_tokens == 16


@pytest.mark.parametrize("name", ["triton_enable_empty_final_response", "sequence_id", "sequence_end", "priority"])
def test_vllm_sampling_stands_for_no_request_parameter(name: str) -> None:
    assert f"key '{name}' is a request parameter's" in fault(chat(**{name: True})).detail


def test_vllm_sampling_is_recorded() -> None:
    got = asked(chat(temperature=0.7, max_tokens=5, ignore_eos=True, stop=["\n", "é"], seed=None, guide="x" * 5000))
    assert got.sampling == {
        "temperature": 0.7,
        "max_tokens": 5,
        "ignore_eos": True,
        "stop": '["\\n","\\u00e9"]',
        "seed": "null",
        "guide": "x" * 5000,
    }
    assert len(str(asked(chat(stop=["x" * 5000])).sampling["stop"])) == 1024


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b'{"max_tokens": 1, "max_tokens": 4096}', Reason.REQUEST_AMBIGUOUS),
        (b'{"temperature": NaN}', Reason.REQUEST_MALFORMED),
        (b'{"a/b": 1}', Reason.REQUEST_MALFORMED),
        (b'{"": 1}', Reason.REQUEST_MALFORMED),
        (b'{"seed": 18446744073709551616}', Reason.REQUEST_MALFORMED),
        (b'{"stop": "\\ud800"}', Reason.REQUEST_MALFORMED),
        (b"[" * 40_000, Reason.REQUEST_MALFORMED),
        (json.dumps({f"k{n}": n for n in range(257)}).encode(), Reason.REQUEST_MALFORMED),
        (b" " * 70_000 + b"{}", Reason.REQUEST_TOO_LARGE),
    ],
)
def test_vllm_sampling_that_can_be_misread(document: bytes, reason: Reason) -> None:
    for _ in range(2):  # a refusal is not remembered as anything else
        assert fault(with_sampling(chat(), document)).reason is reason


def test_vllm_has_one_sampling_document() -> None:
    message = chat()
    message.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[2])
    message.raw_input_contents.append(packed(b"{}", b'{"max_tokens": 9}'))
    assert "2 strings, must be 1" in fault(message).detail


# --- TensorRT-LLM -------------------------------------------------------------------------------------------------


def ints(name: str, *values: int, datatype: str = "INT32", shape: list[int] | None = None) -> Any:
    code = {"INT32": "i", "INT64": "q", "UINT64": "Q"}[datatype]
    return (name, datatype, shape or [1, len(values)], struct.pack(f"<{len(values)}{code}", *values))


def ensemble(*more: Any, prompts: tuple[bytes, ...] = (b"hello",)) -> Any:
    return request("trt", ("text_input", "BYTES", [len(prompts), 1], packed(*prompts)), *more)


def test_trtllm_ensemble() -> None:
    got = asked(ensemble(ints("max_tokens", 64), ("stream", "BOOL", [1, 1], b"\x01")), TRTLLM)
    assert (got.prompts, got.prompt_tokens, got.requested_tokens, got.sequences, got.streaming) == (
        (b"hello",),
        2,
        64,
        1,
        True,
    )


def test_trtllm_default_and_names_of_other_releases() -> None:
    assert asked(ensemble(), TRTLLM).requested_tokens == 32
    assert asked(ensemble(ints("request_output_len", 9)), TRTLLM).requested_tokens == 9
    assert asked(ensemble(ints("sampling_param_max_tokens", 8, shape=[1])), TRTLLM).requested_tokens == 8
    assert asked(ensemble(ints("max_tokens", 5), ints("request_output_len", 9)), TRTLLM).requested_tokens == 9
    assert asked(ensemble(("streaming", "BOOL", [1], b"\x01")), TRTLLM).streaming


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["max_tokens", "beam_width", "num_return_sequences"])
def test_trtllm_counts_are_positive(name: str, value: int) -> None:
    assert f"{name}: must be a positive integer" in fault(ensemble(ints(name, value)), TRTLLM).detail


def test_trtllm_sequences_multiply() -> None:
    assert asked(ensemble(ints("beam_width", 4)), TRTLLM).sequences == 4
    assert asked(ensemble(ints("beam_width", 2), ints("num_return_sequences", 3)), TRTLLM).sequences == 6
    two = ensemble(ints("beam_width", 4, 2, shape=[2, 1]), prompts=(b"a", b"b"))
    assert asked(two, TRTLLM).sequences == 8
    assert "2048" in fault(ensemble(ints("beam_width", 64), ints("num_return_sequences", 32)), TRTLLM).detail


def test_trtllm_tokens_are_counted_where_they_are_sent() -> None:
    core = request("trt", ints("input_ids", *range(7)), ints("request_output_len", 5))
    assert asked(core, TRTLLM) == Asked(prompt_tokens=7, prompt_tokens_exact=True, requested_tokens=5)
    padded = request("trt", ints("input_ids", *range(6), shape=[2, 3]))
    got = asked(padded, TRTLLM)
    assert (got.prompt_tokens, got.prompt_tokens_exact, got.sequences) == (6, False, 2)


def test_trtllm_datatypes_are_checked() -> None:
    assert "must be of integers" in fault(ensemble(("max_tokens", "FP32", [1], bytes(4))), TRTLLM).detail
    assert "must be BOOL" in fault(ensemble(("stream", "UINT8", [1], b"\x01")), TRTLLM).detail
    assert "must be BYTES" in fault(request("t", ("text_input", "UINT8", [1], b"x")), TRTLLM).detail

"""What is appended reads as one message with what it is appended to, and changes only what it names."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.triton import suffix
from sidecar.triton.protos import ModelInferRequest
from tests.support.kserve import request, typed


def merged(message: Any, added: bytes) -> Any:
    return ModelInferRequest.FromString(message.SerializeToString() + added)


def base() -> Any:
    made = request("m", ("x", "INT8", [2], b"ab"), id="old", model_version="1")
    made.parameters["priority"].uint64_param = 7
    made.parameters["other"].double_param = 0.5
    return made


def test_scalars_are_replaced() -> None:
    got = merged(base(), suffix.request_id("né") + suffix.version("12"))
    expected = base()
    expected.id, expected.model_version = "né", "12"
    assert got == expected


@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**31, 2**63 - 1])
def test_a_parameter_is_replaced_whatever_its_kind_was(value: int) -> None:
    expected = base()
    expected.parameters["priority"].int64_param = value
    assert merged(base(), suffix.integer_parameter("priority", value)) == expected
    expected.parameters["priority"].string_param = "é" * 100
    assert merged(base(), suffix.string_parameter("priority", "é" * 100)) == expected


def test_inputs_and_outputs_go_on_where_they_stopped() -> None:
    got = merged(base(), suffix.input_flags("flag", (2, 1), typed=False) + suffix.raw((2, 1)) + suffix.output("n"))
    expected = base()
    expected.inputs.add(name="flag", datatype="BOOL", shape=[2, 1])
    expected.raw_input_contents.append(b"\x01\x01")
    expected.outputs.add(name="n")
    assert got == expected


def test_typed_inputs_stay_typed() -> None:
    message = typed("m", "x", "INT32", [1], int_contents=[1])
    got = merged(message, suffix.input_flags("flag", (300,), typed=True))
    message.inputs.add(name="flag", datatype="BOOL", shape=[300]).contents.bool_contents.extend([True] * 300)
    assert got == message

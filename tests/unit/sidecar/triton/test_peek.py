"""A refused message's id, and the suffix that makes Triton tell a call's end."""

from __future__ import annotations

import pytest

from sidecar.triton.peek import EMPTY_FINAL_SUFFIX, peek_request_id
from sidecar.triton.protos import ModelInferRequest
from tests.support import kserve


def test_an_id_is_read_and_bounded() -> None:
    assert peek_request_id(kserve.request("m", id="r-1").SerializeToString()) == "r-1"
    assert peek_request_id(kserve.request("m").SerializeToString()) == ""
    assert peek_request_id(kserve.request("m", id="x" * 500).SerializeToString()) == "x" * 128


@pytest.mark.parametrize("message", [b"\xff", b"\x1a\x05ab", b"\x1a\x02\xff\xfe", b"\x0b"])
def test_an_unreadable_message_has_no_id(message: bytes) -> None:
    assert peek_request_id(message) == ""


@pytest.mark.parametrize("parameters", [{}, {"temperature": 1.5}])
def test_the_suffix_adds_one_parameter_and_changes_nothing_else(parameters: dict[str, float]) -> None:
    request = kserve.chat(b"hello")
    for name, value in parameters.items():
        request.parameters[name].double_param = value
    read = ModelInferRequest.FromString(request.SerializeToString() + EMPTY_FINAL_SUFFIX)
    assert read.parameters["triton_enable_empty_final_response"].bool_param is True
    del read.parameters["triton_enable_empty_final_response"]
    assert read == request

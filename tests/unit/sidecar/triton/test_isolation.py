"""What may not reach Triton is named; what may goes on untouched, with no metadata of the client's."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sidecar.core.model import (
    NO_FACTS,
    Call,
    Contract,
    Credential,
    Denial,
    Forward,
    Instant,
    ModelProfile,
    Secret,
)
from sidecar.core.reasons import Reason
from sidecar.triton.isolation import FORBIDDEN_PARAMETERS, FORBIDDEN_SAMPLING, FORBIDDEN_TENSORS
from sidecar.triton.methods import KSERVE, METHODS, lookup
from sidecar.triton.protos import service
from sidecar.triton.reader import TritonReader
from tests.support.core import ACME, AT
from tests.support.kserve import chat, field, packed, request
from tests.support.reading import everything, isolated, verdict

READER = TritonReader()
CHAT = ModelProfile("chat", Contract.VLLM, max_tokens=100)
PLAIN = ModelProfile("m")
LABELLED = ModelProfile("m", classification=True)


def call(message: Any, method: str = "ModelInfer") -> Call:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return Call("id", lookup(KSERVE + method), Instant(0, 0), data, Credential("api_key", Secret(b"")))


def isolate(message: Any, profile: ModelProfile = PLAIN, *, method: str = "ModelInfer") -> Forward | Denial:
    made = call(message, method)
    return isolated(READER, made, profile)


def refused(message: Any, profile: ModelProfile = PLAIN, *, method: str = "ModelInfer") -> str:
    denial = isolate(message, profile, method=method)
    assert isinstance(denial, Denial)
    assert denial.reason is Reason.PARAMETER_NOT_ALLOWED
    assert denial.rule
    return denial.detail


def parameter(name: str, *, on: str = "request", message: Any | None = None) -> Any:
    made = message or request("m", ("x", "INT8", [1], b"a"))
    made.outputs.add(name="y")
    where = {"request": made, "input": made.inputs[0], "output": made.outputs[0]}[on]
    where.parameters[name].int64_param = 1
    return made


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_an_ordinary_request_goes_on_byte_for_byte(method: str) -> None:
    message = chat(b"hello", max_tokens=100, temperature=0.5, stop=["\n"], lora=None)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["sequence_id"].int64_param = 5
    made = call(message, method)
    forward = isolated(READER, made, CHAT)
    assert isinstance(forward, Forward)
    assert forward.message is made.message
    assert forward.metadata == ()


@pytest.mark.parametrize("on", ["request", "input", "output"])
@pytest.mark.parametrize("name", ["shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"])
def test_shared_memory_anywhere(name: str, on: str) -> None:
    assert name in refused(parameter(name, on=on))


@pytest.mark.parametrize("name", [*FORBIDDEN_PARAMETERS, "triton_x", "triton_", "triton_final_response"])
def test_parameters_that_triton_acts_on(name: str) -> None:
    assert refused(parameter(name)).startswith(f"parameter {name}: ")


@pytest.mark.parametrize("on", ["input", "output"])
def test_tensors_have_no_other_parameters(on: str) -> None:
    assert "binary_data" in refused(parameter("binary_data", on=on))
    allowed = parameter("classification", on=on)
    assert isinstance(isolate(allowed, LABELLED), Forward if on == "output" else Denial)


def classified(count: int, kind: str = "int64_param") -> Any:
    made = request("m", ("x", "INT8", [1], b"a"))
    setattr(made.outputs.add(name="y").parameters["classification"], kind, count)
    return made


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("value", ["", "7", "a-1"])
def test_sequences_go_by_numbers_only(value: str, method: str) -> None:
    """A string corrupts Triton's heap where the model wants a number."""
    for profile, message in ((PLAIN, request("m")), (CHAT, chat())):
        message.parameters["sequence_id"].string_param = value
        detail = refused(message, profile, method=method)
        assert detail == "parameter sequence_id: string sequence ids aren't supported"
        message.parameters["sequence_id"].int64_param = 7
        assert isinstance(isolate(message, profile, method=method), Forward)


@pytest.mark.parametrize("contract", Contract)
def test_outputs_are_classified_only_where_they_are_said_to_be_numeric(contract: Contract) -> None:
    """Triton 2.51 dies of SIGFPE, for everybody, where the output holds strings."""
    made = classified(1)
    if contract is not Contract.GENERIC:
        made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        made.raw_input_contents.append(packed(b"x"))
        made.inputs.add(name="max_tokens", datatype="INT32", shape=[1])
        made.raw_input_contents.append(struct.pack("<i", 1))
    assert refused(made, ModelProfile("m", contract)).startswith("parameter outputs/y/classification: ")
    said = isolate(made, ModelProfile("m", contract, classification=True))
    assert isinstance(said, Forward if contract is Contract.GENERIC else Denial)


@pytest.mark.parametrize("count", [1, 1000, 1001, 2**32, 2**32 + 1, 2**62, 2**63 - 1])
def test_no_more_classes_than_triton_can_count(count: int) -> None:
    made = classified(count)
    if count <= 1000:
        assert isinstance(isolate(made, LABELLED), Forward)
    else:
        assert refused(made, LABELLED) == "parameter outputs/y/classification: must be 1 to 1000"


@pytest.mark.parametrize("name", [*FORBIDDEN_TENSORS, "retention_token_range_starts", "retention_decode_priority"])
@pytest.mark.parametrize("contract", Contract)
def test_tensors_that_reach_past_the_request(name: str, contract: Contract) -> None:
    message = request("m", ("text_input", "BYTES", [1], packed(b"x")), (name, "INT8", [1], b"\x00"))
    assert refused(message, ModelProfile("m", contract)).startswith(f"input {name}: ")


@pytest.mark.parametrize("name", FORBIDDEN_SAMPLING)
def test_sampling_parameters_that_reach_past_the_request(name: str) -> None:
    assert refused(chat(**{name: "x"}), CHAT).startswith(f"parameter {name}: ")
    assert refused(parameter(name, message=chat()), CHAT).startswith(f"parameter {name}: ")
    assert isinstance(isolate(parameter(name)), Forward)  # a generic model's own parameter


def test_a_request_parameter_is_not_hidden_by_a_sampling_parameter() -> None:
    assert "shared_memory_region" in refused(
        parameter("shared_memory_region", message=chat(shared_memory_region=1)), CHAT
    )


def test_more_tokens_than_the_model_gives() -> None:
    assert refused(chat(max_tokens=101), CHAT) == "max_tokens: 101 asked, at most 100 for this model"
    assert isinstance(isolate(chat(max_tokens=None), CHAT), Forward)
    trtllm = ModelProfile("t", Contract.TRTLLM, max_tokens=10)
    ensemble = request(
        "t", ("text_input", "BYTES", [1, 1], packed(b"x")), ("max_tokens", "INT32", [1, 1], struct.pack("<i", 11))
    )
    assert "11 asked, at most 10" in refused(ensemble, trtllm)


CHANGING = {
    "RepositoryModelLoad": field(2, b"m") + field(3, field(1, b"config") + field(2, field(3, b"{}"))),
    "RepositoryModelUnload": field(2, b"m") + field(3, field(1, b"unload_dependents")),
    "TraceSetting": field(1, field(1, b"trace_level") + field(2, field(1, b"TENSORS"))) + field(2, b"m"),
    "LogSettings": field(1, field(1, b"log_file") + field(2, field(3, b"/etc/x"))),
}


@pytest.mark.parametrize("method", CHANGING)
def test_management_carries_no_parameters(method: str) -> None:
    assert method in refused(CHANGING[method], method=method)
    by_model = field(2, b"m") if lookup(KSERVE + method).by_model else b""
    assert isinstance(isolate(by_model, method=method), Forward)


def test_whatever_takes_parameters_is_held_to_it() -> None:
    taking = {
        method.name
        for method in service().methods
        if {"parameters", "settings"} & set(method.input_type.fields_by_name) and not method.name.endswith("Infer")
    }
    assert taking == set(CHANGING)


def test_every_other_method_goes_on_untouched() -> None:
    for method in METHODS.values():
        if method.name not in CHANGING and method.path.startswith(KSERVE):
            message = field(1, b"m") if method.name.startswith("Model") else b""
            assert isinstance(isolate(message, method=method.name), Forward)


def test_an_unreadable_management_message_is_refused_not_raised() -> None:
    made = call(b"\xff", "LogSettings")
    denial = READER.isolate(made, ACME, NO_FACTS, verdict(PLAIN), AT, everything)
    assert isinstance(denial, Denial)
    assert denial.reason is Reason.REQUEST_MALFORMED

"""What is appended to aim a call elsewhere: protobuf reads it as the model and version, and nothing else changes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.model import (
    AuditRule,
    Forward,
    Limits,
    ModelProfile,
    ResponseFacts,
    Verdict,
    replace,
)
from sidecar.core.routing import Route, RouteKind
from sidecar.triton.aim import aimed, renamed
from sidecar.triton.methods import KSERVE, METHODS
from sidecar.triton.protos import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse, descriptor, service

NAMES = st.from_regex(r"[A-Za-z0-9_.:-]{1,128}", fullmatch=True)
PLAIN = Verdict("r", "b", ModelProfile("embed"), Limits(), AuditRule())
ROUTED = replace(PLAIN, route=Route("2", RouteKind.CANARY, "why"))


def verdict(model: str, alias: str, version: str) -> Verdict:
    return replace(PLAIN, profile=ModelProfile(model), alias=alias, route=Route(version))


def read(name: str, data: bytes) -> Any:
    return message_factory.GetMessageClass(descriptor(name)).FromString(data)


def test_a_call_that_goes_where_it_says_is_untouched() -> None:
    forward = Forward(b"message", suffix=b"isolated")
    assert aimed(forward, PLAIN) is forward


def test_an_answer_of_our_own_is_untouched() -> None:
    forward = Forward(b"message", answer=b"ours")
    assert aimed(forward, ROUTED) is forward


@given(NAMES, NAMES, st.sampled_from(["", "1", "27"]), st.sampled_from(["", "9"]), st.binary(max_size=64))
def test_triton_reads_the_target_and_all_else_as_the_client_wrote_it(
    alias: str, model: str, picked: str, asked: str, payload: bytes
) -> None:
    """Invariant: message + suffix differs from the message in model_name and model_version only."""
    request = ModelInferRequest(model_name=alias, model_version=asked, id="r", raw_input_contents=[payload])
    request.parameters["p"].int64_param = 7
    forward = aimed(Forward(request.SerializeToString(), suffix=b""), verdict(model, alias, picked))
    found = ModelInferRequest.FromString(forward.message + forward.suffix)
    assert (found.model_name, found.model_version) == (model, picked or asked)
    found.model_name, found.model_version = alias, asked
    assert found == request


@pytest.mark.parametrize(
    "name", ["ModelReady", "ModelMetadata", "ModelInfer", "ModelStreamInfer", "ModelConfig", "ModelStatistics"]
)
def test_the_fields_are_the_same_in_every_request_that_may_be_aimed(name: str) -> None:
    kind = service().methods_by_name[name].input_type
    numbers = {field.name: field.number for field in kind.fields}
    assert numbers.get("model_name", numbers.get("name")) == 1
    assert numbers.get("model_version", numbers.get("version")) == 2


@given(NAMES, st.booleans(), st.binary(max_size=64))
def test_the_client_is_told_the_name_it_asked_for(alias: str, streaming: bool, payload: bytes) -> None:
    """Invariant: of a response the model's name is changed, and nothing else."""
    inner = ModelInferResponse(model_name="target", model_version="2", id="r", raw_output_contents=[payload])
    inner.parameters["triton_final_response"].bool_param = True
    whole = ModelStreamInferResponse(infer_response=inner) if streaming else inner
    facts = ResponseFacts(model="target", message=whole.SerializeToString())
    method = METHODS[KSERVE + ("ModelStreamInfer" if streaming else "ModelInfer")]
    found = type(whole).FromString(renamed(facts, method, alias).message)
    (found.infer_response if streaming else found).model_name = "target"
    assert (whole.infer_response if streaming else whole).model_name == "target"
    assert found == whole


def test_an_error_without_a_model_stays_without() -> None:
    error = ModelStreamInferResponse(error_message="bad").SerializeToString()
    facts = ResponseFacts(error="bad", message=error)
    assert renamed(facts, METHODS[KSERVE + "ModelStreamInfer"], "chat") is facts


def test_metadata_bears_the_alias() -> None:
    metadata = message_factory.GetMessageClass(descriptor("ModelMetadataResponse"))(name="target", versions=["1"])
    found = renamed(ResponseFacts(message=metadata.SerializeToString()), METHODS[KSERVE + "ModelMetadata"], "chat")
    told = read("ModelMetadataResponse", found.message)
    assert (told.name, list(told.versions)) == ("chat", ["1"])
    ready = ResponseFacts(message=struct.pack("BB", 8, 1))
    assert renamed(ready, METHODS[KSERVE + "ModelReady"], "chat") is ready

"""What `warden init` reads out of Triton's answers, and what it makes of a server that refuses to give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from sidecar.cli import survey
from sidecar.cli.drafting import MODELS_MAX, NOT_LOADED, Model

Entry = service_pb2.RepositoryIndexResponse.ModelIndex


class FakeDesk:
    """Answers as Triton does, from an index and the models' answers."""

    def __init__(self, index: list[Any], configs: Mapping[str, Any] | None = None) -> None:
        self.index = index
        self.configs = configs or {}

    def ask(self, method: str, name: str = "") -> Any:
        match method:
            case "ServerMetadata":
                return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")
            case "RepositoryIndex":
                return service_pb2.RepositoryIndexResponse(models=self.index)
            case "ModelMetadata":
                tensors = [service_pb2.ModelMetadataResponse.TensorMetadata(name="text_input", datatype="BYTES")]
                out = [service_pb2.ModelMetadataResponse.TensorMetadata(name="text_output", datatype="BYTES")]
                return service_pb2.ModelMetadataResponse(name=name, inputs=tensors, outputs=out)
            case "ModelConfig":
                return service_pb2.ModelConfigResponse(config=self.configs.get(name))
        raise AssertionError(method)


def test_what_a_model_s_configuration_says_is_read() -> None:
    config = model_config_pb2.ModelConfig(name="chat")
    config.model_transaction_policy.decoupled = True
    config.response_cache.enable = True
    config.parameters["gpt_model_path"].string_value = "/engines/chat"
    ensemble = model_config_pb2.ModelConfig(name="rag")
    ensemble.ensemble_scheduling.step.add(model_name="chat")
    desk = FakeDesk(
        [Entry(name=n, version="1", state="READY") for n in ("rag", "chat")], {"chat": config, "rag": ensemble}
    )
    assert survey._server(desk).models == (
        Model(
            "chat",
            {"text_input": "BYTES"},
            decoupled=True,
            response_cache=True,
            parameters={"gpt_model_path": "/engines/chat"},
            outputs={"text_output": "BYTES"},
        ),
        Model("rag", {"text_input": "BYTES"}, steps=("chat",), outputs={"text_output": "BYTES"}),
    )


def test_a_model_is_ready_when_one_of_its_versions_is() -> None:
    index = [
        Entry(name="chat", version="1", state="UNAVAILABLE", reason="unloaded"),
        Entry(name="chat", version="2", state="READY"),
        Entry(name="broken", version="1", state="UNAVAILABLE", reason="no such file\nand a trace"),
        Entry(name="spare"),
    ]
    found = survey._server(FakeDesk(index))
    assert [model.name for model in found.models] == ["chat"]
    assert found.unready == {"broken": "unavailable (no such file)", "spare": NOT_LOADED}


def test_no_more_models_are_asked_about_than_a_tenant_can_name() -> None:
    index = [Entry(name=f"m{n}", version="1", state="READY") for n in range(MODELS_MAX + 3)]
    found = survey._server(FakeDesk(index))
    assert (len(found.models), found.untold) == (MODELS_MAX, 3)


class Fault:
    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "no answer within 5 s"),
        (grpc.StatusCode.UNAVAILABLE, "Connection refused", "Connection refused; is it up, and is this its gRPC port"),
        (grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting …", "--grpc-restricted-protocol"),
        (grpc.StatusCode.UNAUTHENTICATED, "[CREDENTIAL_MISSING]", "a sidecar's port, not Triton's own"),
        (grpc.StatusCode.UNIMPLEMENTED, None, "UNIMPLEMENTED: "),
    ],
)
def test_why_there_was_no_answer_is_said(code: grpc.StatusCode, details: str | None, words: str) -> None:
    assert words in survey._words(Fault(code, details), 5.0)

"""Each language-model contract, tensor for tensor, on the real Triton: what is asked, said, and counted."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import RunningTriton, start_triton
from sidecar.runtime.ask import TritonDesk, Unanswered
from sidecar.triton.knowledge import Dialect, read_model
from tests.support.kserve import packed, request
from tests.support.postgres import Server
from tests.support.sidecar import Sidecar, launch
from tests.support.stack import ROOT

pytestmark = pytest.mark.integration
CONTRACTS = ROOT / "tests" / "support" / "contracts"
PROMPT = b"how are you"
TRUE = b"\x01"


@dataclass(frozen=True)
class Model:
    """One contract: the names of what differs between them, and its leading batch dimension where it has one."""

    name: str
    dialect: Dialect
    streaming: str = "stream"
    requested: str = "max_tokens"
    counts: bool = True
    batch: tuple[int, ...] = (1,)

    def ask(self, tokens: int, *, stream: bool, **more: tuple[str, bytes]) -> bytes:
        """``more``: tensors by name, their datatype and payload, one element each."""
        one = [*self.batch, 1]
        tensors: list[tuple[str, str, list[int], bytes]] = [(self.streaming, "BOOL", one, bytes([stream]))]
        if self.dialect is Dialect.CORE:
            ids = struct.pack("<3i", 11, 12, 13)
            tensors += [("input_ids", "INT32", [1, 3], ids), ("input_lengths", "INT32", one, struct.pack("<i", 3))]
        else:
            tensors.append(("text_input", "BYTES", one, packed(PROMPT)))
        if self.dialect is Dialect.VLLM:
            sampling = json.dumps({"max_tokens": tokens, "temperature": 0.5}).encode()
            tensors.append(("sampling_parameters", "BYTES", one, packed(sampling)))
        else:
            tensors.append((self.requested, "INT32", one, struct.pack("<i", tokens)))
        if self.counts:
            tensors += [(f"return_num_{side}_tokens", "BOOL", one, TRUE) for side in ("input", "output")]
        tensors += [(name, datatype, one, payload) for name, (datatype, payload) in more.items()]
        message = request(self.name, *tensors, id="mine")
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        return bytes(message.SerializeToString())


MODELS = [
    Model("vllm_model", Dialect.VLLM, batch=()),
    Model("trtllm_ensemble", Dialect.ENSEMBLE),
    Model("tensorrt_llm_bls", Dialect.BLS),
    Model("tensorrt_llm", Dialect.CORE, "streaming", "request_output_len"),
    Model("tensorrt_llm_api", Dialect.LLMAPI, "streaming", "sampling_param_max_tokens", counts=False),
]


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    running = start_triton(tmp_path_factory.mktemp("speakers"), CONTRACTS)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def governed(
    wire: str, bundle: Path, otlp: OtlpReceiver, speakers: RunningTriton, postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sidecar]:  # fmt: skip
    """A sidecar whose bundle names the contract of each model."""
    directory = tmp_path_factory.mktemp("contracts")
    shutil.copytree(bundle, directory / "bundle")
    models = {
        model.name: {"contract": model.dialect.contract.value, "kv": {"bytes_per_token": 1024, "tokens_per_block": 16}}
        for model in MODELS
    }
    (directory / "bundle" / "models.yaml").write_text(json.dumps(models))
    for case in (directory / "bundle" / "access").glob("*.cedar"):
        case.unlink()  # they name groups of models that are not here
    parts = Parts(otlp, speakers.addresses, postgres.create_database())
    sidecar = launch(directory / "sidecar", wire, parts, directory / "bundle")
    yield sidecar
    sidecar.close()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_its_tensors_are_told_apart(speakers: RunningTriton, model: Model) -> None:
    desk = TritonDesk(speakers.addresses.grpc)
    metadata: Any = desk.ask("ModelMetadata", name=model.name)
    answer: Any = desk.ask("ModelConfig", name=model.name)
    assert not isinstance(metadata, Unanswered)
    assert read_model(metadata, answer.config, ("1",)).dialect is model.dialect


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_prompt_output_and_counts_are_read_right(governed: Sidecar, model: Model, stream: bool) -> None:
    with governed.bare() as bare:
        call = bare.stream([model.ask(4, stream=stream)], governed.headers())
        responses = list(call)
        record = governed.record(f"{call.answer().call_id}/1")
    assert [response.error_message for response in responses if response.error_message] == []
    said = [response for response in responses if response.infer_response.outputs]
    assert len(said) == (4 if stream else 1)
    assert {response.infer_response.id for response in responses} == {"mine"}
    assert (record["model"], record["outcome"], record["model_version"]) == (model.name, "completed", "1")
    if model.dialect is Dialect.CORE:  # it is given tokens and gives tokens: there is no text to keep
        assert (record["prompt"], record["output"] or "") == (None, "")
    else:
        assert record["prompt"] == PROMPT.decode()
        shown = "" if stream or model.dialect is not Dialect.VLLM else PROMPT.decode()
        assert record["output"] == shown + "word0 word1 word2 word3 "
    if model.counts:
        assert (record["input_tokens"], record["output_tokens"]) == (3, 4)
    else:
        assert record["input_tokens"] > 0
        assert record["output_tokens"] > 0


@pytest.mark.parametrize(
    ("model", "tensor", "value"),
    [
        (MODELS[0], "embedding_request", ("BYTES", packed(b"{}"))),
        (MODELS[1], "return_perf_metrics", ("BOOL", TRUE)),
        (MODELS[1], "lora_task_id", ("UINT64", struct.pack("<Q", 1))),
        (MODELS[2], "image_url_input", ("BYTES", packed(b"http://169.254.169.254/"))),
        (MODELS[3], "retention_decode_priority", ("INT32", struct.pack("<i", 100))),
        (MODELS[3], "stop", ("BOOL", TRUE)),
        (MODELS[4], "lora_path", ("BYTES", packed(b"/etc"))),
        (MODELS[4], "image_url", ("BYTES", packed(b"http://169.254.169.254/"))),
    ],
    ids=lambda each: each if isinstance(each, str) else getattr(each, "name", ""),
)
def test_what_reaches_past_the_caller_is_refused_by_name(
    governed: Sidecar, model: Model, tensor: str, value: tuple[str, bytes]
) -> None:
    with governed.bare() as bare:
        (refused,) = bare.stream([model.ask(1, stream=True, **{tensor: value})], governed.headers())
    assert refused.error_message.startswith("[PARAMETER_NOT_ALLOWED]")
    assert tensor in refused.error_message


def test_too_many_tokens_are_refused_by_each_contracts_own_parameter(governed: Sidecar) -> None:
    with governed.bare() as bare:
        for model in MODELS:
            (refused,) = bare.stream([model.ask(5000, stream=True)], governed.headers())
            assert refused.error_message.startswith("[PARAMETER_NOT_ALLOWED]"), model.name
            assert "5000 asked, at most 4096" in refused.error_message

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
import yaml

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

    def ask(self, tokens: int, *, stream: bool, count: bool = True, **more: Any) -> bytes:
        """``more``: tensors by name, their datatype and payload, one element each. ``lora``: in vLLM's JSON."""
        lora = more.pop("lora", None)
        one = [*self.batch, 1]
        tensors: list[tuple[str, str, list[int], bytes]] = [(self.streaming, "BOOL", one, bytes([stream]))]
        if self.dialect is Dialect.CORE:
            ids = struct.pack("<3i", 11, 12, 13)
            tensors += [("input_ids", "INT32", [1, 3], ids), ("input_lengths", "INT32", one, struct.pack("<i", 3))]
        else:
            tensors.append(("text_input", "BYTES", one, packed(PROMPT)))
        if self.dialect is Dialect.VLLM:
            named = {} if lora is None else {"lora_name": lora}
            sampling = json.dumps({"max_tokens": tokens, "temperature": 0.5, **named}).encode()
            tensors.append(("sampling_parameters", "BYTES", one, packed(sampling)))
        else:
            tensors.append((self.requested, "INT32", one, struct.pack("<i", tokens)))
        if self.counts and count:
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


def _sidecar(
    directory: Path, wire: str, bundle: Path, parts: Parts, models: dict[str, Any], loras: tuple[str, ...] = ()
) -> Sidecar:
    shutil.copytree(bundle, directory / "bundle")
    (directory / "bundle" / "models.yaml").write_text(json.dumps(models))
    for folder in ("access", "guards"):
        for policies in (directory / "bundle" / folder).glob("*.cedar"):
            policies.unlink()  # they name groups of models that are not here
    tenant = directory / "bundle" / "tenants" / "acme.yaml"
    tenant.write_text(json.dumps({**yaml.safe_load(tenant.read_text()), "loras": list(loras)}))
    return launch(directory / "sidecar", wire, parts, directory / "bundle")


@pytest.fixture(scope="module")
def governed(
    wire: str, bundle: Path, otlp: OtlpReceiver, speakers: RunningTriton, postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sidecar]:  # fmt: skip
    """A sidecar whose bundle names the contract of each model, and grants acme two adapters."""
    models = {
        model.name: {"contract": model.dialect.contract.value, "kv": {"bytes_per_token": 1024, "tokens_per_block": 16}}
        for model in MODELS
    }
    parts = Parts(otlp, speakers.addresses, postgres.create_database())
    sidecar = _sidecar(tmp_path_factory.mktemp("contracts"), wire, bundle, parts, models, ("ours", "7"))
    yield sidecar
    sidecar.close()


@pytest.fixture(scope="module")
def discovering(
    wire: str, bundle: Path, otlp: OtlpReceiver, speakers: RunningTriton, postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sidecar]:  # fmt: skip
    """A sidecar whose bundle names none of them."""
    parts = Parts(otlp, speakers.addresses, postgres.create_database())
    sidecar = _sidecar(tmp_path_factory.mktemp("discovering"), wire, bundle, parts, {})
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
        (MODELS[2], "image_url_input", ("BYTES", packed(b"http://169.254.169.254/"))),
        (MODELS[3], "retention_decode_priority", ("INT32", struct.pack("<i", 100))),
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


COUNTING = [model for model in MODELS if model.counts]


def asked(sidecar: Sidecar, message: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The responses of one stream that asks ``message``, and its record."""
    with sidecar.bare() as bare:
        call = bare.stream([message], sidecar.headers())
        responses = list(call)
        record = sidecar.record(f"{call.answer().call_id}/1")
    return responses, record


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", COUNTING, ids=lambda model: model.name)
def test_tokens_are_counted_by_the_backend_though_the_client_did_not_ask(
    governed: Sidecar, model: Model, stream: bool
) -> None:
    responses, record = asked(governed, model.ask(4, stream=stream, count=False))
    assert (record["outcome"], record["input_tokens"], record["output_tokens"]) == ("completed", 3, 4)
    for response in responses:
        answer = response.infer_response
        assert not {output.name for output in answer.outputs} & {"num_input_tokens", "num_output_tokens"}
        assert len(answer.raw_output_contents) == len(answer.outputs)


@pytest.mark.parametrize("count", [True, False])
@pytest.mark.parametrize("model", COUNTING[1:], ids=lambda model: model.name)
def test_a_prompt_that_is_counted_among_the_output_is_taken_off_again(
    governed: Sidecar, model: Model, count: bool
) -> None:
    whole = {"exclude_input_in_output": ("BOOL", b"\x00")}
    responses, record = asked(governed, model.ask(4, stream=False, count=count, **whole))
    assert (record["input_tokens"], record["output_tokens"]) == (3, 4)
    said = {
        output.name: answer.raw_output_contents[index]
        for answer in (response.infer_response for response in responses)
        for index, output in enumerate(answer.outputs)
    }
    if count:  # what the client asked for is the backend's own number
        assert struct.unpack("<i", said["num_output_tokens"]) == (7,)
    else:
        assert "num_output_tokens" not in said


@pytest.mark.parametrize(
    ("model", "granted", "foreign"),
    [
        (MODELS[0], {"lora": "ours"}, {"lora": "theirs"}),
        (MODELS[1], {"lora_task_id": ("UINT64", struct.pack("<Q", 7))}, {"lora_task_id": ("UINT64", bytes(8))}),
        (MODELS[3], {"lora_task_id": ("UINT64", struct.pack("<Q", 7))}, {"lora_task_id": ("UINT64", bytes(8))}),
        (MODELS[4], {"lora_name": ("BYTES", packed(b"ours"))}, {"lora_name": ("BYTES", packed(b"theirs"))}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_adapters_are_those_that_the_tenant_is_granted(
    governed: Sidecar, model: Model, granted: dict[str, Any], foreign: dict[str, Any]
) -> None:
    responses, record = asked(governed, model.ask(2, stream=True, **granted))
    assert ({each.error_message for each in responses}, record["outcome"]) == ({""}, "completed")
    with governed.bare() as bare:
        (refused,) = bare.stream([model.ask(2, stream=True, **foreign)], governed.headers())
    assert refused.error_message.startswith("[PARAMETER_NOT_ALLOWED]")
    assert "not among the tenant's loras" in refused.error_message
    assert "theirs" not in refused.error_message


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_that_the_bundle_does_not_name_is_read_by_its_tensors(discovering: Sidecar, model: Model) -> None:
    _, record = asked(discovering, model.ask(4, stream=True, count=False))
    assert record["outcome"] == "completed"
    assert record["prompt"] == (None if model.dialect is Dialect.CORE else PROMPT.decode())
    if model.counts:
        assert (record["input_tokens"], record["output_tokens"]) == (3, 4)
    else:
        assert record["output"] == "word0 word1 word2 word3 "
    with discovering.bare() as bare:
        (refused,) = bare.stream([model.ask(5000, stream=True)], discovering.headers())
    assert "5000 asked, at most 4096" in refused.error_message

"""What every benchmark starts from: the demo's bundle with its limits lifted, one 1 KB request, and its answer."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as kserve

from sidecar.cli.demo.stack import BUNDLE, Options, Parts, Stack

MODEL: Final = "reply"  # benchmarks/models/reply: vLLM's tensors, unary, answers at once
STREAM_MODEL: Final = "slow"  # tests/support/models/slow: sends as many tokens as asked for, as fast as asked for
_MODELS: Final = Path(__file__).parent / "models"
_TEST_MODELS: Final = Path(__file__).resolve().parents[1] / "tests" / "support" / "models"
TEXT_BYTES: Final = 1024  # of the prompt, and of the output
UNARY: Final = "/inference.GRPCInferenceService/ModelInfer"
STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"

# All five limits stay in force, so that reserving costs what it costs; they are only never met.
_LIFTED: Final = "{requests: {rate: 1000000/s, burst: 1000000}, tokens: {per_minute: 1000000000}, concurrency: 100000, "
_MEMORY: Final = "kv_memory: 1TiB, tensor_memory: 1TiB}"
_PROFILE: Final = "{contract: vllm, kv: {bytes_per_token: 23040, tokens_per_block: 16}, max_tokens: 1000000}"


def lifted_bundle(directory: Path) -> Path:
    """The demo's bundle in ``directory``, with acme's limits lifted and the benchmarks' models granted to it."""
    shutil.copytree(BUNDLE, directory)
    shutil.rmtree(directory / "tests", ignore_errors=True)  # they hold the demo's own limits
    with (directory / "plans.yaml").open("a") as plans:
        plans.write(f"\nlifted: {_LIFTED}{_MEMORY}\n")
    with (directory / "models.yaml").open("a") as models:
        models.writelines(f"\n{name}: {_PROFILE}\n" for name in (MODEL, STREAM_MODEL))
    tenant = directory / "tenants" / "acme.yaml"
    text = tenant.read_text()
    for old, new in (
        ("plan: gold", "plan: lifted"),
        ("models: [chat,", f"models: [{MODEL}, {STREAM_MODEL}, chat,"),
    ):
        if old not in text:
            raise LookupError(f"{tenant.name} no longer says {old!r}")
        text = text.replace(old, new)
    tenant.write_text(text)
    return directory


def warden_stack(directory: Path, around: Parts, wire: str, bundle: Path, *, name: str, **overrides: Any) -> Stack:
    """A sidecar, not started, whose ``directory`` is two below the benchmark's own.

    All store in one database, so they share its tenants' master keys, as they must.
    """
    keys = {"audit": {"keys": {"directory": str(directory.parents[1] / "tenant-keys")}}}
    more = {"sidecar": {"name": name}, **keys, **overrides}
    return Stack(directory, Options(parts=around, wire=wire, bundle=bundle, overrides=more, preferred_ports=False))


def _string(text: bytes) -> bytes:
    """One BYTES element as raw contents hold it."""
    return struct.pack("<I", len(text)) + text


def _filled(size: int) -> bytes:
    return (b"All work and no play makes a dull benchmark. " * (size // 45 + 1))[:size]


def _input(request: Any, name: str, datatype: str, raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[1])
    request.raw_input_contents.append(raw)


def unary_request() -> bytes:
    """A ModelInferRequest as ``tritonclient`` would send it: 1 KB of prompt, sampling parameters as JSON."""
    request = kserve.ModelInferRequest(model_name=MODEL, id="bench-1")
    _input(request, "text_input", "BYTES", _string(_filled(TEXT_BYTES)))
    _input(request, "sampling_parameters", "BYTES", _string(b'{"max_tokens": 256, "temperature": 0.2}'))
    request.outputs.add(name="text_output")
    return bytes(request.SerializeToString())


def unary_response() -> bytes:
    """What ``reply`` answers: 1 KB of output."""
    response = kserve.ModelInferResponse(model_name=MODEL, model_version="1", id="bench-1")
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    response.raw_output_contents.append(_string(_filled(TEXT_BYTES)))
    return bytes(response.SerializeToString())


def told_of_itself(model: str = MODEL) -> dict[str, bytes]:
    """What a Triton that holds this model alone answers of its models: method → message."""
    directory = _MODELS if model == MODEL else _TEST_MODELS
    config = text_format.Parse((directory / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    index = kserve.RepositoryIndexResponse()
    index.models.add(name=model, version="1", state="READY")
    metadata = kserve.ModelMetadataResponse(name=model, versions=["1"], platform=config.backend)
    for tensors, told in ((config.input, metadata.inputs), (config.output, metadata.outputs)):
        for tensor in tensors:
            kind = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
            told.add(name=tensor.name, datatype="BYTES" if kind == "STRING" else kind, shape=tensor.dims)
    answers = {
        "RepositoryIndex": index, "ModelMetadata": metadata, "ModelConfig": kserve.ModelConfigResponse(config=config),
    }  # fmt: skip
    return {name: bytes(answer.SerializeToString()) for name, answer in answers.items()}


def stream_request(tokens: int, *, delay_ms: int = 0, request_id: str = "bench-s") -> bytes:
    """A request to ``slow`` for ``tokens`` responses."""
    request = kserve.ModelInferRequest(model_name=STREAM_MODEL, id=request_id)
    _input(request, "text_input", "BYTES", _string(_filled(TEXT_BYTES)))
    sampling = f'{{"max_tokens": {tokens}, "delay_ms": {delay_ms}}}'
    _input(request, "sampling_parameters", "BYTES", _string(sampling.encode()))
    return bytes(request.SerializeToString())


def token_response(text: bytes, *, final: bool = False) -> bytes:
    """One token of a stream as Triton sends it; the last one carries nothing but the final flag."""
    response = kserve.ModelStreamInferResponse()
    inner = response.infer_response
    inner.model_name, inner.model_version, inner.id = STREAM_MODEL, "1", "bench-s"
    inner.parameters["triton_final_response"].bool_param = final
    if not final:
        inner.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        inner.raw_output_contents.append(_string(text))
    return bytes(response.SerializeToString())


def framed(message: bytes) -> bytes:
    """One message as gRPC sends it, uncompressed."""
    return struct.pack(">BI", 0, len(message)) + message

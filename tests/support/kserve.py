"""KServe v2 messages as clients write them, and broken ones as they don't."""

from __future__ import annotations

import json
import struct
from typing import Any

from sidecar.triton.protos import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse


def packed(*elements: bytes) -> bytes:
    """The raw payload of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def request(model: str = "m", *tensors: tuple[str, str, list[int], bytes], **fields: Any) -> Any:
    """A ModelInferRequest with raw payloads; ``tensors`` are (name, datatype, shape, payload)."""
    message = ModelInferRequest(model_name=model, **fields)
    for name, datatype, shape, payload in tensors:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(payload)
    return message


def typed(model: str, name: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    """A ModelInferRequest with one input in typed contents."""
    message = ModelInferRequest(model_name=model)
    tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return message


def chat(prompt: bytes = b"hello", *, model: str = "chat", stream: bool = True, **sampling: Any) -> Any:
    """What a client of the vLLM backend sends; without ``sampling`` no ``sampling_parameters`` tensor."""
    message = request(
        model, ("text_input", "BYTES", [1], packed(prompt)), ("stream", "BOOL", [1], b"\x01" if stream else b"\x00")
    )
    if sampling:
        with_sampling(message, json.dumps(sampling).encode())
    return message


def with_sampling(message: Any, document: bytes) -> Any:
    message.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(packed(document))
    return message


def response(*outputs: tuple[str, str, list[int], bytes], **fields: Any) -> Any:
    """A ModelInferResponse as Triton sends it: raw payloads only."""
    message = ModelInferResponse(model_name="chat", model_version="1", **fields)
    for name, datatype, shape, payload in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_output_contents.append(payload)
    return message


def streamed(message: Any | None = None, *, error: str = "", final: bool | None = None) -> bytes:
    """A serialised ModelStreamInferResponse."""
    outer = ModelStreamInferResponse(error_message=error)
    if message is not None:
        outer.infer_response.CopyFrom(message)
    if final is not None:
        outer.infer_response.parameters["triton_final_response"].bool_param = final
    serialized: bytes = outer.SerializeToString()
    return serialized


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field as it goes over the wire."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def number(number: int, value: int) -> bytes:
    """A varint field as it goes over the wire."""
    return varint(number << 3) + varint(value)

"""Messages with tensors of every kind, and calls whose tensors are kept, as a journal holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from audit.record import Admitted, Entry, Responded, Settled, Tensor
from tests.support.store import facts, settled

RAW = np.arange(6, dtype=np.float32).tobytes()
PIXELS = np.arange(64, dtype=np.uint8).tobytes()
WORDS = (b"caf\xc3\xa9", b"", b"\x00\xff")
PACKED_WORDS = b"".join(len(word).to_bytes(4, "little") + word for word in WORDS)


def request(*, nbytes: int = 64, typed: bool = False) -> bytes:
    """A ModelInferRequest: FP32 and UINT8 raw, or INT8 and BYTES in typed lists."""
    message = service_pb2.ModelInferRequest(model_name="vision")
    if typed:
        numbers = message.inputs.add(name="numbers", datatype="INT8", shape=[3])
        numbers.contents.int_contents[:] = [1, -1, 127]
        words = message.inputs.add(name="words", datatype="BYTES", shape=[3])
        words.contents.bytes_contents[:] = WORDS
    else:
        message.inputs.add(name="boxes", datatype="FP32", shape=[2, 3])
        message.inputs.add(name="pixels", datatype="UINT8", shape=[nbytes])
        message.raw_input_contents.extend([RAW, bytes(n % 256 for n in range(nbytes))])
    return bytes(message.SerializeToString())


def response(value: float = 1.0, *, streaming: bool = False) -> bytes:
    """One FP64 tensor of one element, and a BYTES one."""
    message = service_pb2.ModelInferResponse(model_name="vision", model_version="1")
    message.outputs.add(name="score", datatype="FP64", shape=[1])
    message.outputs.add(name="label", datatype="BYTES", shape=[3])
    message.raw_output_contents.extend([np.float64(value).tobytes(), PACKED_WORDS])
    if streaming:
        return bytes(service_pb2.ModelStreamInferResponse(infer_response=message).SerializeToString())
    return bytes(message.SerializeToString())


def kept_call(*answers: bytes, message: bytes | None = None, **changes: Any) -> list[Entry]:
    """A whole call whose tensors are kept: admission with its message, each answer, outcome."""
    body = request() if message is None else message
    told = [Tensor("boxes", "FP32", [2, 3], 24), Tensor("pixels", "UINT8", [64], 64)]
    call = facts(model="vision", tensors=told, keeps=2**20, request=body, **changes)
    responded = [
        Responded(call.call_id, call.started_ns + n, n, each) for n, each in enumerate(answers or [response()])
    ]
    end: Settled = settled(call)
    return [Admitted(call), *responded, end]

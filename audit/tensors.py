"""Reads the tensors of a call's messages for its record: each with its payload's digest, and the payload as raw bytes.

Raw is as Triton keeps it: little-endian elements one after another; of BYTES, each with its length (uint32) before it.
So the same tensor is the same bytes, whether it came raw or in a typed list.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from audit.assemble import CallRecord
from audit.payload import LISTED, NO_PAYLOAD, Described, Payload, Side, Unkept
from audit.record import CallFacts, Digested, Responded, Tensor
from sidecar.core.model import MalformedRequest
from sidecar.triton.protos import ModelInferResponse, ModelStreamInferResponse
from sidecar.triton.request import read_request
from sidecar.triton.tensors import DATATYPES, TYPED

__all__ = ["TENSORS", "digested", "inputs_of", "outputs_of", "payload_of"]

TENSORS: Final = 256  # of one message; the rest is not told
_PACKED: Final = {
    "BOOL": ("B", 0xFF), "UINT8": ("B", 0xFF), "UINT16": ("H", 0xFFFF), "UINT32": ("I", 0xFFFFFFFF),
    "UINT64": ("Q", 2**64 - 1), "INT8": ("B", 0xFF), "INT16": ("H", 0xFFFF), "INT32": ("I", 0xFFFFFFFF),
    "INT64": ("Q", 2**64 - 1),
}  # fmt: skip
_STREAMED: Final = "/ModelStreamInfer"
_FLOATS: Final = {"FP32": "f", "FP64": "d"}


def inputs_of(message: bytes, *, keep: bool = True) -> list[Described]:
    """Of a ModelInferRequest that was judged. Raises MalformedRequest for what is none.

    ``keep`` False: only described, and a raw payload is not copied.
    """
    found, whole = [], memoryview(message)
    for each in list(read_request(message).tensors.values())[:TENSORS]:
        raw = each.typed is None and each.data is message
        data = whole[each.start : each.end] if raw else _payload(each)
        found.append(_described(0, each.name, each.datatype, each.shape, data, keep=keep))
    return found


def _payload(each: Any) -> bytes:
    return each.data[each.start : each.end] if each.typed is None else _packed(each.datatype, each.typed)


def outputs_of(message: bytes, index: int, *, streaming: bool) -> list[Described]:
    """Of the ``index``th ModelInferResponse (in a stream: ModelStreamInferResponse). Raises MalformedRequest."""
    try:
        if streaming:
            response: Any = ModelStreamInferResponse.FromString(message).infer_response
        else:
            response = ModelInferResponse.FromString(message)
    except DecodeError as fault:
        raise MalformedRequest("a response that is none") from fault
    return list(_outputs(response, index))


def _outputs(response: Any, index: int) -> Iterator[Described]:
    raws = response.raw_output_contents
    for place, output in enumerate(response.outputs[:TENSORS]):
        if place < len(raws):
            data = bytes(raws[place])
        else:
            data = _packed(output.datatype, getattr(output.contents, TYPED.get(output.datatype, "bytes_contents")))
        yield _described(index, output.name, output.datatype, output.shape, data)


def digested(described: Sequence[Described]) -> list[Digested]:
    """Without the payloads."""
    return [Digested(each.name, each.datatype, list(each.shape), each.nbytes, each.sha256) for each in described]


def _described(
    response: int, name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview, *, keep: bool = True
) -> Described:
    digest = hashlib.sha256(data).digest()
    return Described(response, name, datatype, list(shape), len(data), digest, bytes(data) if keep else None)


def _packed(datatype: str, values: Sequence[Any]) -> bytes:
    """A typed list as raw bytes; of a number that is too large Triton keeps the low bytes, and so does this."""
    if not DATATYPES.get(datatype):  # BYTES, or one that a newer Triton has
        return b"".join(struct.pack("<I", len(each)) + each for each in values if isinstance(each, bytes))
    if datatype in _FLOATS:
        return struct.pack(f"<{len(values)}{_FLOATS[datatype]}", *values)
    if datatype not in _PACKED:  # FP16 and BF16 have no list of their own
        return b""
    code, low = _PACKED[datatype]
    return struct.pack(f"<{len(values)}{code}", *(int(each) & low for each in values))


def payload_of(record: CallRecord) -> Payload:
    """What its record is to say of a call's tensors, and to keep of them."""
    facts = record.facts
    if not facts.keeps:
        return NO_PAYLOAD
    found = Payload()
    inputs, why = _inputs(facts, held=record.held)
    if inputs:
        _add(found, "inputs", inputs, why, redact=bool(facts.redact))
    outputs: list[Described] = []
    why = Unkept.HELD.value if record.held else ""
    for each in record.responded:
        one, reason = _responded(each, streaming=facts.method.endswith(_STREAMED))
        outputs += one
        why = why or reason
    if outputs:
        _add(found, "outputs", outputs, why, redact=bool(facts.redact))
    return found


def _add(found: Payload, side: Side, tensors: list[Described], why: str, *, redact: bool) -> None:
    """Of texts that identifiers are to be taken out of, not even a digest: they are in the prompt and output."""
    if redact and any(each.datatype == "BYTES" for each in tensors):
        why = why or Unkept.REDACTED.value
        tensors = [
            msgspec.structs.replace(each, sha256=b"", data=None) if each.datatype == "BYTES" else each
            for each in tensors
        ]
    found.tensors[side] = tensors
    if why or len(tensors) > LISTED:
        found.unkept[side] = why or Unkept.BOUND.value


def _inputs(facts: CallFacts, *, held: bool) -> tuple[list[Described], str]:
    if facts.request is not None:
        try:
            return inputs_of(facts.request), ""
        except MalformedRequest:
            return [_without(0, each) for each in facts.tensors], Unkept.UNREADABLE.value
    if held:
        return [_without(0, each) for each in facts.tensors], Unkept.HELD.value
    return [_without(0, each) for each in facts.digested], Unkept.BOUND.value


def _responded(told: Responded, *, streaming: bool) -> tuple[list[Described], str]:
    if told.message is not None:
        try:
            return outputs_of(told.message, told.index, streaming=streaming), ""
        except MalformedRequest:
            return [], Unkept.UNREADABLE.value
    return [_without(told.index, each) for each in told.tensors], Unkept.BOUND.value


def _without(response: int, each: Tensor | Digested) -> Described:
    digest = each.sha256 if isinstance(each, Digested) else b""
    return Described(response, each.name, each.datatype, each.shape, each.nbytes, digest)

"""Triton's ordinary answer read at a glance: its header is the same from one to the next, so it is read once."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from sidecar.core.model import TOKENS_MAX, Contract, MalformedRequest, ResponseFacts, Undo
from sidecar.triton import wire
from sidecar.triton.layout import Layout, layout
from sidecar.triton.protos import ModelInferResponse, descriptor
from sidecar.triton.tensors import BYTES_MAX, SCALARS_MAX

__all__ = ["COUNTS", "RESPONSE", "count", "has_final", "head", "read_ordinary", "texts", "without_prompt"]

RESPONSE: Final = wire.spec_of(descriptor("ModelInferResponse"))
COUNTS: Final = {"UINT32": "I", "INT32": "i", "UINT64": "Q", "INT64": "q", "UINT16": "H", "INT16": "h"}
_LENGTH: Final = struct.Struct("<I")
_INFER: Final = 0x12  # ModelStreamInferResponse.infer_response; tags are field number << 3 | 2
_ID: Final = b"\x1a"  # ModelInferResponse.id
_OUTPUTS, _RAW = 5, 0x32  # .outputs, .raw_output_contents
_REMEMBERED: Final = 256  # headers
_HEADER_MAX: Final = 2_048  # bytes of one, so at the very worst 2 MB in all


class _Count(NamedTuple):
    """A tensor of counts: which payload it is, and its elements' format."""

    payload: int
    code: str


class _Form(NamedTuple):
    """What a header says. ``text``: which payload holds it; ``outputs``: their names, and each one's field."""

    model: str
    version: str
    final: bool | None
    text: int | None
    tokens_in: _Count | None
    tokens_out: _Count | None
    outputs_at: int  # where in the header the outputs begin
    outputs: tuple[tuple[str, bytes], ...]


def read_ordinary(message: bytes, contract: Contract, undo: Undo | None, *, streaming: bool) -> ResponseFacts | None:
    """The facts of a response whose payloads are raw, with ``undo`` done to it.

    None: it is laid out in another way, or is an in-band error; then it has to be read whole.
    """
    end = len(message)
    start = _inside(message, end) if streaming else 0
    found = layout(message, start, end, _RAW)
    if found is None or found.raws_at - start > _HEADER_MAX:
        return None
    form = _form(found.header(message, start))
    if form is None or len(form.outputs) != len(found.raws):
        return None
    try:
        request_id = message[found.id_start : found.id_end].decode()
    except UnicodeDecodeError:
        return None
    said: tuple[bytes, ...] = ()
    tokens_in = tokens_out = None
    if contract is not Contract.GENERIC:
        if form.text is not None:
            begin, stop = found.raws[form.text]
            said = texts(message[begin:stop])
        if form.tokens_in is not None:
            tokens_in = _counted(message, form.tokens_in, found)
        if form.tokens_out is not None:
            tokens_out = _counted(message, form.tokens_out, found)
    left = len(form.outputs)
    shown = message
    if undo is not None:
        tokens_out = without_prompt(tokens_in, tokens_out, undo.beams)
        if undo.request_id is not None and request_id == undo.sent:
            request_id = undo.request_id
        added = [index for index, (name, _) in enumerate(form.outputs) if name in undo.strip] if undo.strip else []
        left -= len(added)
        shown = _shown(message, start, found, form, request_id, added, streaming=streaming)
    return ResponseFacts(
        request_id, form.model, form.version, said, tokens_in, tokens_out, not streaming or form.final is True,
        left == 0, nbytes=end, message=shown,
    )  # fmt: skip


def _inside(message: bytes, end: int) -> int:
    """Where the response begins that is all of a ModelStreamInferResponse; ``end``: it is not all of it."""
    if end < 3 or message[0] != _INFER:
        return end
    size, begin = message[1], 2
    for shift in (7, 14, 21):  # up to 256 MiB
        if size < 1 << shift:
            break
        if begin >= end:
            return end
        size, begin = size - (1 << shift) | message[begin] << shift, begin + 1
    return begin if begin + size == end else end


@lru_cache(_REMEMBERED)
def _form(header: bytes) -> _Form | None:
    """None: it isn't one, or there are payloads in it."""
    try:
        response: Any = ModelInferResponse.FromString(header)
        fields = [each for each in wire.scan(header, RESPONSE) if each.field.number == _OUTPUTS]
    except (DecodeError, MalformedRequest):
        return None
    text: int | None = None
    counts: dict[str, _Count | None] = {}
    for index, output in enumerate(response.outputs):
        if output.HasField("contents"):
            return None
        if output.name == "text_output":
            text = index if output.datatype == "BYTES" else None
        elif output.name in {"num_input_tokens", "num_output_tokens"}:
            code = COUNTS.get(output.datatype)
            counts[output.name] = None if code is None else _Count(index, code)
    return _Form(
        response.model_name,
        response.model_version,
        response.parameters["triton_final_response"].bool_param if has_final(response) else None,
        text,
        counts.get("num_input_tokens"),
        counts.get("num_output_tokens"),
        fields[0].at if fields else len(header),
        tuple((output.name, header[each.at : each.end]) for output, each in zip(response.outputs, fields, strict=True)),
    )


def has_final(response: Any) -> bool:
    return "triton_final_response" in response.parameters  # indexing a map that lacks the key would add it


def _shown(
    message: bytes, start: int, found: Layout, form: _Form, request_id: str, added: list[int], *, streaming: bool
) -> bytes:
    """The response as the client would have had it from Triton itself; payloads that stay are copied once."""
    client = request_id.encode()
    if not added and client == message[found.id_start : found.id_end]:
        return message
    parts = [message[start : found.id_at]]
    if client:
        parts += (head(3, len(client)), client)
    if added:
        parts.append(message[found.id_end : found.raws_at][: form.outputs_at - (found.id_at - start)])
        parts += [field for index, (_, field) in enumerate(form.outputs) if index not in added]
        fields = [found.raws_at, *(stop for _, stop in found.raws)]
        parts += [message[fields[index] : fields[index + 1]] for index in range(len(found.raws)) if index not in added]
    else:
        parts.append(message[found.id_end :])
    if streaming:
        parts.insert(0, head(2, sum(map(len, parts))))
    return b"".join(parts)


def head(number: int, size: int) -> bytes:
    """The tag and length of a field on the wire."""
    if size < 0x80:
        return bytes((number << 3 | 2, size))
    out = bytearray([number << 3 | 2])
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def texts(raw: bytes) -> tuple[bytes, ...]:
    """The elements of a raw BYTES tensor; what a length says beyond its end is left out."""
    size = len(raw)
    if size >= 4 and _LENGTH.unpack_from(raw)[0] == size - 4:  # the one there nearly always is
        return (raw[4:],)
    found: list[bytes] = []
    pos = 0
    while size - pos >= 4 and len(found) < BYTES_MAX:
        begin = pos + 4
        pos = begin + _LENGTH.unpack_from(raw, pos)[0]
        found.append(raw[begin:pos])
    return tuple(found)


def _counted(message: bytes, tensor: _Count, found: Layout) -> int | None:
    begin, stop = found.raws[tensor.payload]
    return count(message[begin:stop], tensor.code)


def count(raw: bytes, code: str) -> int | None:
    """The sum of a raw tensor of counts: one an element for n sequences, or beams; None for what isn't one."""
    width = struct.calcsize(f"<{code}")
    # A whole number of counts, and no more than a batch has; more is something else by the same name.
    if len(raw) % width or not 0 < len(raw) <= SCALARS_MAX * width:
        return None
    total = sum(struct.unpack(f"<{len(raw) // width}{code}", raw))
    return total if 0 <= total <= TOKENS_MAX else None


def without_prompt(tokens_in: int | None, tokens_out: int | None, beams: int) -> int | None:
    """The output's tokens where the backend counts each beam's prompt among them; never less than none."""
    if not beams or tokens_in is None or tokens_out is None:
        return tokens_out
    return max(0, tokens_out - beams * tokens_in)

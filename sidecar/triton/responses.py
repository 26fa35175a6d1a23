"""What Triton's answers say: text, token counts, the final flag; whatever cannot be read is left out, never raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from sidecar.core.model import TOKENS_MAX, Contract, MalformedRequest, Method, ResponseFacts, Undo
from sidecar.triton import wire
from sidecar.triton.ordinary import COUNTS, RESPONSE, count, has_final, head, read_ordinary, texts, without_prompt
from sidecar.triton.protos import ModelInferResponse, ModelStreamInferResponse, descriptor
from sidecar.triton.tensors import SCALARS_MAX, TYPED

__all__ = ["read_response", "read_whole", "restored"]

SMALL: Final = 64 * 1024  # bytes up to which a response is parsed whole; of larger ones the payloads are left alone
_STREAM: Final = wire.spec_of(descriptor("ModelStreamInferResponse"))
_ERROR, _INFER = 1, 2  # ModelStreamInferResponse
_RAW: Final = 6  # ModelInferResponse.raw_output_contents


def read_response(method: Method, message: bytes, contract: Contract, undo: Undo | None = None) -> ResponseFacts:
    """The facts of one ModelInferResponse or, of a streaming method, ModelStreamInferResponse; ``undo`` is done to it.

    ``final`` of a stream: Triton says so, or it is an in-band error that doesn't say otherwise (an error raised before
    the model was reached carries no flag; facts §6). An unreadable message has its length and nothing else.
    """
    found = read_ordinary(message, contract, undo, streaming=method.streaming)
    return found if found is not None else read_whole(method, message, contract, undo)


def read_whole(method: Method, message: bytes, contract: Contract, undo: Undo | None = None) -> ResponseFacts:
    """As ``read_response``, by protobuf's own parser."""
    try:
        opened = _open(message, streaming=method.streaming)
    except (DecodeError, MalformedRequest):
        return ResponseFacts(nbytes=len(message), final=not method.streaming, message=message)
    error, response, raws = opened.error, opened.response, opened.raws
    said: tuple[bytes, ...] = ()
    tokens_in = tokens_out = None
    nbytes = len(message)
    if contract is not Contract.GENERIC:
        for index, output in enumerate(response.outputs):
            raw = raws[index] if index < len(raws) else None
            if output.name == "text_output":
                said = _texts(output, raw)
            elif output.name == "num_input_tokens":
                tokens_in = _count(output, raw)
            elif output.name == "num_output_tokens":
                tokens_out = _count(output, raw)
    flag = response.parameters["triton_final_response"].bool_param if has_final(response) else None
    if undo is not None:
        tokens_out = without_prompt(tokens_in, tokens_out, undo.beams)
        error = restored(error, undo)
        message = _undone(message, opened, undo)
    return ResponseFacts(
        request_id=response.id,
        model=response.model_name,
        model_version=response.model_version,
        texts=said,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        final=not method.streaming or (bool(error) if flag is None else flag),
        empty=not response.outputs,
        error=error or None,
        nbytes=nbytes,
        message=message,
    )


def restored(words: str, undo: Undo | None) -> str:
    """Triton's words with the client's own request id where they name the one that Triton was given."""
    if undo is None or undo.request_id is None:
        return words
    return words.replace(undo.sent, undo.request_id)


def _undone(message: bytes, opened: _Opened, undo: Undo) -> bytes:
    """The response as the client would have had it from Triton itself; payloads that stay are copied once."""
    response, changed = opened.response, False
    if undo.request_id is not None and response.id == undo.sent:
        response.id, changed = undo.request_id, True
    error = restored(opened.error, undo)
    changed = changed or error != opened.error
    raws: Sequence[bytes] = opened.raws
    added = [index for index, output in enumerate(response.outputs) if output.name in undo.strip]
    if added and len(raws) in (0, len(response.outputs)):  # else no payload can be said to be an output's
        raws = [raw for index, raw in enumerate(raws) if index not in added] if len(raws) else raws
        for index in reversed(added):
            del response.outputs[index]
        changed = True
    if not changed:
        return message
    response.ClearField("raw_output_contents")
    inner = [response.SerializeToString(), *(part for raw in raws for part in (head(_RAW, len(raw)), raw))]
    if not opened.streaming:
        return b"".join(inner)
    told = [head(_ERROR, len(error.encode())), error.encode()] if error else []
    return b"".join([*told, head(_INFER, sum(map(len, inner))), *inner])


class _Opened(NamedTuple):
    """The in-band error, the response, and its raw payloads (of a large one: copied only when looked at)."""

    streaming: bool
    error: str
    response: Any
    raws: Sequence[bytes]


def _open(message: bytes, *, streaming: bool) -> _Opened:
    if len(message) > SMALL:
        try:
            return _open_large(message, streaming=streaming)
        except MalformedRequest:  # a field that a newer Triton has: protobuf knows how to skip it
            pass
    if not streaming:
        response = ModelInferResponse.FromString(message)
        return _Opened(streaming, "", response, list(response.raw_output_contents))
    outer = ModelStreamInferResponse.FromString(message)
    inner = outer.infer_response
    return _Opened(streaming, outer.error_message, inner, list(inner.raw_output_contents))


def _open_large(message: bytes, *, streaming: bool) -> _Opened:
    error, start, end = "", 0, len(message)
    if streaming:
        end = 0
        for found in wire.scan(message, _STREAM):
            if found.field.number == _ERROR:
                error = wire.text(message, found, _STREAM)
            elif found.field.number == _INFER:
                start, end = found.start, found.end
    fields = wire.scan(message, RESPONSE, start, end)
    header = b"".join(message[field.at : field.end] for field in fields if field.field.number != _RAW)
    raws = [field for field in fields if field.field.number == _RAW]
    response = ModelInferResponse.FromString(header)
    return _Opened(streaming, error, response, _Slices(message, raws))


class _Slices(Sequence[bytes]):
    """Raw payloads that are copied only when looked at."""

    __slots__ = ("_data", "_found")

    def __init__(self, data: bytes, found: list[wire.Found]) -> None:
        self._data, self._found = data, found

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        field = self._found[index]
        return self._data[field.start : field.end]


def _texts(output: Any, raw: bytes | None) -> tuple[bytes, ...]:
    if output.datatype != "BYTES":
        return ()
    return tuple(output.contents.bytes_contents) if raw is None else texts(raw)


def _count(output: Any, raw: bytes | None) -> int | None:
    """As ``count``; None for what isn't a tensor of counts."""
    code, field = COUNTS.get(output.datatype), TYPED.get(output.datatype)
    if code is None or field is None:
        return None
    if raw is not None:
        return count(raw, code)
    values = getattr(output.contents, field)
    total = sum(values)
    return total if 0 < len(values) <= SCALARS_MAX and 0 <= total <= TOKENS_MAX else None

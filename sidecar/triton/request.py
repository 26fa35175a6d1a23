"""A ModelInferRequest read whole: what protobuf would merge is refused, every tensor is held to its shape."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Container, Sized
from functools import lru_cache
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from sidecar.core.model import MalformedRequest, ParameterValue
from sidecar.core.reasons import Reason
from sidecar.triton import wire
from sidecar.triton.layout import Layout, layout
from sidecar.triton.protos import ModelInferRequest, descriptor
from sidecar.triton.tensors import BYTES_MAX, DATATYPES, DIMS_MAX, TYPED, Tensor, elements_of, walk

__all__ = [
    "EACH_MAX",
    "NAME",
    "RAW_TAG",
    "REMEMBERED",
    "REMEMBERED_BYTES",
    "Request",
    "check_id",
    "read_form",
    "read_request",
    "whole_name",
]

ELSEWHERE: Final = "shared memory is one namespace for all tenants: send the tensors in the request"
EACH_MAX: Final = 256  # inputs; outputs; parameters, those of tensors included
STRING_MAX: Final = 64 * 1024  # bytes of one string parameter
ID_CHARS: Final = 128
TENSOR_NAME_CHARS: Final = 256  # TensorFlow and ONNX name tensors with paths and colons
NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # of models and parameters
# Up to this size a header is compared with its own re-serialisation (1.7 µs for a chat's), which no message survives
# that protobuf would merge; only what differs from it, or is larger, is scanned field by field.
CANONICAL_MAX: Final = 64 * 1024
# Headers that were read already and are kept, and how long one may be: at the very worst 20 MB in all.
REMEMBERED: Final = 256
REMEMBERED_BYTES: Final = 2_048

_SPEC: Final = wire.spec_of(descriptor("ModelInferRequest"))
_ID, _RAW = 3, 7  # fields of ModelInferRequest: id, raw_input_contents
RAW_TAG: Final = _RAW << 3 | 2
_STRING: Final = struct.Struct("<I")

# Which values the parameters that Triton itself acts on may have (facts/triton.md §2).
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    "triton_enable_empty_final_response": ("bool_param",),
}


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request as Triton will read it. ``parameters`` has those of tensors too, named ``inputs/NAME/PARAMETER``."""

    id: str
    model: str
    version: str
    tensors: dict[str, Tensor]
    outputs: tuple[str, ...]
    parameters: dict[str, ParameterValue]
    raw: bool = True  # its payloads are in raw_input_contents


def whole_name(name: str) -> bool:
    """Whether a name is one a model may have: no path, nothing that could step out of one."""
    return NAME.fullmatch(name) is not None and ".." not in name


class _Input(msgspec.Struct, frozen=True, gc=False):
    """One InferInputTensor without its raw payload; ``contents`` where it has any."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    contents: Any


class _Form(msgspec.Struct, frozen=True, gc=False):
    """All that a header says but the request's id. Shared between requests: nothing in it is ever changed."""

    model: str
    version: str
    inputs: tuple[_Input, ...]
    outputs: tuple[str, ...]
    parameters: dict[str, ParameterValue]


def read_request(data: bytes, found: Layout | None = None) -> Request:
    """Raises ``MalformedRequest`` for what cannot be read one way only. ``found``: its layout, where that is known.

    Raw payloads are neither copied nor walked, but for the lengths in BYTES.
    """
    found = found or layout(data, 0, len(data), RAW_TAG)
    if found is not None and found.raws and found.raws_at <= REMEMBERED_BYTES:
        try:
            return _read_ordinary(data, found)
        except (MalformedRequest, UnicodeDecodeError):
            pass  # whoever reads it field by field says what is wrong, and where
    return _read_fields(data)


def _read_ordinary(data: bytes, found: Layout) -> Request:
    request_id = data[found.id_start : found.id_end].decode()
    if request_id:
        check_id(request_id)
    form = read_form(found.header(data))
    if len(found.raws) != len(form.inputs):
        raise MalformedRequest("raw_input_contents: must be all or none", Reason.REQUEST_AMBIGUOUS)
    tensors: dict[str, Tensor] = {}
    for each, (start, end) in zip(form.inputs, found.raws, strict=True):
        tensors[each.name] = _raw(data, each, start, end)
    return Request(request_id, form.model, form.version, tensors, form.outputs, form.parameters)


def _read_fields(data: bytes) -> Request:
    found = wire.scan(data, _SPEC, most=4 * EACH_MAX + 4)
    raws = [field for field in found if field.field.number == _RAW]
    header, request_id = _header(data, found, raws)
    try:
        # A client asks the same way again and again: then its header is read once.
        form = read_form(header) if raws and len(header) <= REMEMBERED_BYTES else _unremembered(header)
    except MalformedRequest:
        if len(header) <= CANONICAL_MAX:
            wire.check(data, _SPEC, found)  # where it is the wire format that is wrong, this names the byte
        raise
    try:
        tensors = _with_raw(data, form.inputs, raws) if raws else {each.name: _typed(each) for each in form.inputs}
    except MalformedRequest:
        for name in form.parameters:
            # Its payload is elsewhere: that is what is wrong, not that none is here.
            if name.startswith("inputs/") and "/shared_memory_" in name:
                raise MalformedRequest(f"parameter {name}: {ELSEWHERE}", Reason.PARAMETER_NOT_ALLOWED) from None
        raise
    return Request(request_id, form.model, form.version, tensors, form.outputs, form.parameters, bool(raws))


def _header(data: bytes, found: list[wire.Found], raws: list[wire.Found]) -> tuple[bytes, str]:
    """The message without its raw payloads and its id, and the id."""
    ids = [field for field in found if field.field.number == _ID]
    request_id = wire.text(data, ids[0], _SPEC) if ids else ""
    check_id(request_id)
    if raws and found[-len(raws)] is not raws[0]:  # no serialiser writes them anywhere but at the end
        kept = [data[field.at : field.end] for field in found if field.field.number not in {_RAW, _ID}]
        return b"".join(kept), request_id
    end = raws[0].at if raws else len(data)
    return (data[: ids[0].at] + data[ids[0].end : end] if ids else data[:end]), request_id


def check_id(request_id: str) -> None:
    if len(request_id) > ID_CHARS or (request_id and not request_id.isprintable()):
        raise MalformedRequest(f"id: must be at most {ID_CHARS} printable characters")


# --- the header ---------------------------------------------------------------------------------------------------


def _unremembered(header: bytes) -> _Form:
    request = _parse(header)
    parameters: dict[str, ParameterValue] = {}
    _parameters(parameters, "", request.parameters)
    inputs: dict[str, _Input] = {}
    _bounded("inputs", request.inputs)
    for tensor in request.inputs:
        name = _fresh("input", tensor.name, inputs)
        inputs[name] = _input(name, tensor)
        _parameters(parameters, f"inputs/{name}/", tensor.parameters)
    if sum(each.elements for each in inputs.values() if each.datatype == "BYTES") > BYTES_MAX:
        raise MalformedRequest(f"inputs: more than {BYTES_MAX} strings", Reason.REQUEST_TOO_LARGE)
    outputs: dict[str, None] = {}
    _bounded("outputs", request.outputs)
    for output in request.outputs:
        name = _fresh("output", output.name, outputs)
        outputs[name] = None
        _parameters(parameters, f"outputs/{name}/", output.parameters)
    return _Form(request.model_name, request.model_version, tuple(inputs.values()), tuple(outputs), parameters)


read_form: Final = lru_cache(REMEMBERED)(_unremembered)


def _parse(header: bytes) -> Any:
    small = len(header) <= CANONICAL_MAX
    if not small:
        wire.check(header, _SPEC, wire.scan(header, _SPEC))
    try:
        request = ModelInferRequest.FromString(header)
    except DecodeError:
        raise MalformedRequest("ModelInferRequest: is not valid protobuf") from None
    if small:
        request.DiscardUnknownFields()
        if request.SerializeToString() != header:
            wire.check(header, _SPEC, wire.scan(header, _SPEC))
    return request


def _bounded(what: str, values: Sized) -> None:
    if len(values) > EACH_MAX:
        raise MalformedRequest(f"{what}: {len(values)}, at most {EACH_MAX}", Reason.REQUEST_TOO_LARGE)


def _input(name: str, tensor: Any) -> _Input:
    datatype, dims = tensor.datatype, tensor.shape
    if datatype not in DATATYPES:
        raise MalformedRequest(f"input {name}: unknown datatype {datatype[:16]!a}")
    if len(dims) > DIMS_MAX:
        raise MalformedRequest(f"input {name}: {len(dims)} dimensions, at most {DIMS_MAX}")
    shape = tuple(dims)
    contents = tensor.contents if tensor.HasField("contents") else None
    return _Input(name, datatype, shape, elements_of(name, shape), contents)


def _fresh(what: str, name: str, seen: Container[str]) -> str:
    if not name or len(name) > TENSOR_NAME_CHARS or not name.isprintable():
        raise MalformedRequest(f"{what} {name[:128]!a}: a name must be 1 to {TENSOR_NAME_CHARS} printable characters")
    if name in seen:
        raise MalformedRequest(f"{what} {name}: occurs twice", Reason.REQUEST_AMBIGUOUS)
    return name


# --- parameters ---------------------------------------------------------------------------------------------------


def _parameters(into: dict[str, ParameterValue], prefix: str, parameters: Any) -> None:
    """Add a message's or tensor's parameters; a name has no ``/``, so the last one parts it from its tensor."""
    if len(into) + len(parameters) > EACH_MAX:
        raise MalformedRequest(f"parameters: more than {EACH_MAX}", Reason.REQUEST_TOO_LARGE)
    for name, parameter in parameters.items():
        if NAME.fullmatch(name) is None:
            raise MalformedRequest(f"parameter {prefix}{name[:128]!a}: a name must match {NAME.pattern}")
        into[prefix + name] = _value(prefix + name, parameter)


def _value(name: str, parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise MalformedRequest(f"parameter {name}: has no value")
    allowed = _TYPES.get(name)
    if allowed is not None and kind not in allowed:
        raise MalformedRequest(f"parameter {name}: is {kind}, must be {' or '.join(allowed)}")
    value = getattr(parameter, kind)
    if isinstance(value, float) and not math.isfinite(value):
        raise MalformedRequest(f"parameter {name}: must be a finite number")
    if isinstance(value, str) and len(value) * 4 > STRING_MAX and len(value.encode()) > STRING_MAX:
        raise MalformedRequest(f"parameter {name}: more than {STRING_MAX} bytes", Reason.REQUEST_TOO_LARGE)
    if name == "sequence_id":
        _sequence_id(value)
    if name.endswith("/classification") and (kind != "int64_param" or value < 1):
        raise MalformedRequest(f"parameter {name}: must be a positive int64_param")
    return value


def _sequence_id(value: int | str) -> None:
    if isinstance(value, int) and value < 0:
        raise MalformedRequest("parameter sequence_id: must not be negative")
    if isinstance(value, str) and (len(value) > ID_CHARS or not value.isprintable()):
        raise MalformedRequest(f"parameter sequence_id: must be at most {ID_CHARS} printable characters")


# --- tensors ------------------------------------------------------------------------------------------------------


def _with_raw(data: bytes, inputs: tuple[_Input, ...], raws: list[wire.Found]) -> dict[str, Tensor]:
    if len(raws) != len(inputs):
        # Triton pairs them by position and steps over some: another pairing than the reader's (facts §2).
        raise MalformedRequest(
            f"raw_input_contents: {len(raws)} for {len(inputs)} inputs, must be all or none", Reason.REQUEST_AMBIGUOUS
        )
    _bounded("raw_input_contents", raws)
    return {each.name: _raw(data, each, raw.start, raw.end) for each, raw in zip(inputs, raws, strict=True)}


def _raw(data: bytes, tensor: _Input, start: int, end: int) -> Tensor:
    name, datatype, elements, nbytes = tensor.name, tensor.datatype, tensor.elements, end - start
    if tensor.contents is not None:
        raise MalformedRequest(
            f"input {name}: has contents beside raw_input_contents, must be one or the other", Reason.REQUEST_AMBIGUOUS
        )
    if datatype == "BYTES":
        if elements != 1 or nbytes < 4 or _STRING.unpack_from(data, start)[0] != nbytes - 4:
            walk(name, data, start, end, elements)
    elif elements * DATATYPES[datatype] != nbytes:
        raise MalformedRequest(
            f"input {name}: {nbytes} bytes, its shape and datatype {datatype} make {elements * DATATYPES[datatype]}"
        )
    return Tensor(name, datatype, tensor.shape, elements, nbytes, data, start, end)


def _typed(tensor: _Input) -> Tensor:
    name, datatype, elements = tensor.name, tensor.datatype, tensor.elements
    written = [] if tensor.contents is None else [field.name for field, _ in tensor.contents.ListFields()]
    if len(written) > 1:
        raise MalformedRequest(f"input {name}: has {' and '.join(written)}, must be one", Reason.REQUEST_AMBIGUOUS)
    expected = TYPED.get(datatype)
    if expected is None:
        raise MalformedRequest(f"input {name}: {datatype} has no typed contents, send raw_input_contents")
    if written and written[0] != expected:
        raise MalformedRequest(f"input {name}: {datatype} in {written[0]}, must be in {expected}")
    values = getattr(tensor.contents, expected) if written else ()
    if len(values) != elements:
        raise MalformedRequest(f"input {name}: {len(values)} elements, its shape says {elements}")
    size = DATATYPES[datatype]
    nbytes = elements * size if size else sum(4 + len(value) for value in values)
    return Tensor(name, datatype, tensor.shape, elements, nbytes, typed=values)

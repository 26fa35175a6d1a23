"""Whatever the reader lets through has one reading: first-wins, last-wins and the reader's own agree on all of it."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.core.model import Contract, KvProfile, MalformedRequest, ModelProfile
from sidecar.triton.methods import KSERVE, METHODS, lookup
from sidecar.triton.protos import ModelInferRequest
from tests.support.kserve import chat, field, number, packed, request, response, streamed, typed
from tests.support.reading import answered, reader

READER = reader()
INFER = lookup(KSERVE + "ModelInfer")
PROFILES = [ModelProfile("m", contract, KvProfile(131_072, 16)) for contract in Contract]


# --- a second reader, written apart: the wire format as its specification says it, first value wins -----------------


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        value, shift, pos = value | (byte & 127) << shift, shift + 7, pos + 1
        if byte < 128:
            return value & (2**64 - 1), pos


def split(data: bytes) -> list[tuple[int, Any]]:
    """(number, value) of every field; values are ints or bytes."""
    out: list[tuple[int, Any]] = []
    pos = 0
    while pos < len(data):
        tag, pos = _varint(data, pos)
        size = 0
        if tag & 7 == 0:
            value: Any
            value, pos = _varint(data, pos)
        else:
            if tag & 7 == 2:
                size, pos = _varint(data, pos)
            else:
                size = {1: 8, 5: 4}[tag & 7]
            assert pos + size <= len(data)
            value, pos = data[pos : pos + size], pos + size
        out.append((tag >> 3, value))
    return out


def first(fields: list[tuple[int, Any]], wanted: int, default: Any = b"") -> Any:
    return next((value for each, value in fields if each == wanted), default)


def dims(fields: list[tuple[int, Any]]) -> tuple[int, ...]:
    found: list[int] = []
    for each, value in fields:
        if each == 3 and isinstance(value, int):
            found.append(value)
        elif each == 3:
            pos = 0
            while pos < len(value):
                dim, pos = _varint(value, pos)
                found.append(dim)
    return tuple(found)


def parameters(fields: list[tuple[int, Any]], wanted: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each, value in fields:
        if each == wanted:
            entry = split(value)
            kind, inner = next(iter(split(first(entry, 2))))
            if kind in {2, 5}:
                inner = inner - 2**64 if kind == 2 and inner >= 2**63 else inner
            elif kind == 1:
                inner = bool(inner)
            elif kind == 3:
                inner = inner.decode()
            else:
                inner = struct.unpack("<d", inner)[0]
            found.setdefault(first(entry, 1).decode(), inner)
    return found


def first_wins(data: bytes) -> dict[str, Any]:
    fields = split(data)
    inputs = [split(value) for each, value in fields if each == 5]
    outputs = [split(value) for each, value in fields if each == 6]
    return {
        "model": first(fields, 1).decode(),
        "version": first(fields, 2).decode(),
        "id": first(fields, 3).decode(),
        "parameters": parameters(fields, 4),
        "inputs": [(first(each, 1).decode(), first(each, 2).decode(), dims(each)) for each in inputs],
        "input parameters": [parameters(each, 4) for each in inputs],
        "outputs": [first(each, 1).decode() for each in outputs],
        "output parameters": [parameters(each, 2) for each in outputs],
        "raw": [value for each, value in fields if each == 7],
    }


def last_wins(data: bytes) -> dict[str, Any]:
    message = ModelInferRequest.FromString(data)

    def values(held: Any) -> dict[str, Any]:
        return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in held.items()}

    return {
        "model": message.model_name,
        "version": message.model_version,
        "id": message.id,
        "parameters": values(message.parameters),
        "inputs": [(each.name, each.datatype, tuple(each.shape)) for each in message.inputs],
        "input parameters": [values(each.parameters) for each in message.inputs],
        "outputs": [each.name for each in message.outputs],
        "output parameters": [values(each.parameters) for each in message.outputs],
        "raw": list(message.raw_input_contents),
    }


def agree(data: bytes) -> None:
    """The invariant."""
    try:
        head = READER.head(INFER, data)
        facts = READER.facts(INFER, data, PROFILES[2])
    except MalformedRequest:
        return
    one, two = first_wins(data), last_wins(data)
    assert one == two
    assert (head.model, head.version) == (one["model"], one["version"]) == (facts.model, facts.version)
    assert facts.request_id == one["id"]
    assert [(each.name, each.datatype, each.shape) for each in facts.inputs] == one["inputs"]
    assert list(facts.outputs) == one["outputs"]
    if one["raw"]:
        assert [each.nbytes for each in facts.inputs] == [len(each) for each in one["raw"]]
    own = dict(one["parameters"])
    for kind, names in (("input", [each[0] for each in one["inputs"]]), ("output", one["outputs"])):
        for name, held in zip(names, one[f"{kind} parameters"], strict=True):
            own |= {f"{kind}s/{name}/{key}": value for key, value in held.items()}
    assert dict(facts.parameters) == own


def told(fault: MalformedRequest) -> None:
    """A refusal can be shown and logged as it is."""
    assert fault.detail.isprintable()
    assert len(fault.detail) < 1_000


# --- messages -----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["x", "y", "text_input", "stream", "max_tokens", "a/b:0"])
KEYS = st.sampled_from(["k", "temperature", "sequence_id", "sequence_start", "shared_memory_region"])
SHAPES = st.lists(st.integers(0, 3), max_size=3)
SIZES = {"INT8": 1, "FP32": 4, "BOOL": 1, "INT64": 8}


@st.composite
def requests(draw: st.DrawFn) -> Any:
    message = request(draw(st.sampled_from(["m", "chat"])), id=draw(st.sampled_from(["", "1", "r-2"])))
    message.model_version = draw(st.sampled_from(["", "1", "12"]))
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        shape = draw(SHAPES)
        elements = 1
        for dim in shape:
            elements *= dim
        datatype = draw(st.sampled_from([*SIZES, "BYTES"]))
        payload = packed(*[b"ab"] * elements) if datatype == "BYTES" else bytes(elements * SIZES[datatype])
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(payload)
    for name in draw(st.lists(NAMES, unique=True, max_size=2)):
        message.outputs.add(name=name)
    places = [message.parameters, *(each.parameters for each in (*message.inputs, *message.outputs))]
    for place in places:
        for key in draw(st.lists(KEYS, unique=True, max_size=2)):
            if draw(st.booleans()):
                place[key].int64_param = draw(st.integers(-2, 2**40))
            else:
                place[key].string_param = draw(st.sampled_from(["", "a", "é"]))
    return message


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A request's bytes: as they are, or with some changed, cut or repeated, or with a field too many."""
    data: bytes = draw(requests()).SerializeToString()
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        to = min(len(data), at + draw(st.integers(1, 12)))
        extra = draw(
            st.sampled_from(
                [
                    field(1, b"other"),
                    field(2, b"2"),
                    field(3, b""),
                    field(4, field(1, b"k") + field(2, number(2, 9))),
                    field(4, field(1, b"k") + field(2, number(2, 1)))
                    + field(4, field(1, b"k") + field(2, number(2, 2))),
                    field(4, field(1, b"j") + field(2, number(2, 9) + field(3, b"z"))),
                    field(6, field(1, b"o") + field(2, field(1, b"k") + field(2, number(2, 1) + number(2, 2)))),
                    field(5, field(1, b"x") + field(2, b"INT8") + number(3, 1) + number(3, 2)),
                    field(5, field(1, b"z") + field(5, field(2, b"\x01"))),
                    field(6, field(1, b"y") + field(1, b"z")),
                    field(7, b"\x00"),
                    b"\x8a\x00\x01m",
                ]
            )
        )
        data = draw(
            st.sampled_from(
                [
                    data[:at] + draw(st.binary(max_size=3)) + data[to:],
                    data[:at] + data[to:],
                    data[:to] + data[at:to] + data[to:],
                    data + extra,
                    extra + data,
                    data[:at] + extra + data[at:],
                ]
            )
        )
    return data


@st.composite
def reordered(draw: st.DrawFn) -> bytes:
    """A request's top-level fields in another order: valid protobuf, never an ambiguity of its own."""
    data: bytes = draw(requests()).SerializeToString()
    parts = [field(each, value) for each, value in split(data)]
    return b"".join(draw(st.permutations(parts)))


@settings(max_examples=600, deadline=None)
@given(mutated())
@example(chat(b"hello", max_tokens=5).SerializeToString())
@example(field(1, b"m") + field(5, field(1, b"x") + field(2, b"INT8") + number(3, 1) * 2) + field(7, b"a"))
def test_what_passes_reads_one_way(data: bytes) -> None:
    agree(data)


@settings(max_examples=200, deadline=None)
@given(reordered())
def test_the_order_of_fields_is_no_second_reading(data: bytes) -> None:
    agree(data)


@settings(max_examples=200, deadline=None)
@given(requests())
def test_ordinary_requests_pass_or_say_why(message: Any) -> None:
    """A generated request is refused only for its values, never for its form."""
    data = message.SerializeToString()
    try:
        READER.facts(INFER, data, PROFILES[2])
    except MalformedRequest as fault:
        told(fault)
        refused = fault.detail
    else:
        refused = ""
    assert not refused or "parameter sequence_" in refused
    agree(data)


# --- arbitrary bytes ----------------------------------------------------------------------------------------------

SEEDS = [
    chat(b"hello", max_tokens=5).SerializeToString(),
    typed("m", "text_input", "BYTES", [1], bytes_contents=[b"a"]).SerializeToString(),
    streamed(response(("text_output", "BYTES", [1], packed(b"a")), id="1"), final=True),
]


@st.composite
def scrambled(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.binary(max_size=200), scrambled(), mutated()), st.sampled_from(PROFILES))
def test_nothing_but_malformed_request_is_raised(data: bytes, profile: ModelProfile) -> None:
    """Any bytes, any method, any contract: an answer or MalformedRequest; a response is always read."""
    for method in METHODS.values():
        try:
            READER.head(method, data)
            READER.demand(READER.facts(method, data, profile), profile)
        except MalformedRequest as fault:
            told(fault)
        assert answered(READER, method, data, profile).nbytes == len(data)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.text(max_size=80).map(str.encode),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_sampling_json_is_refused_or_read(document: bytes) -> None:
    """Any document in ``sampling_parameters``: MalformedRequest, or values that a record can hold."""
    message = request(
        "chat",
        ("text_input", "BYTES", [1], packed(b"x")),
        ("sampling_parameters", "BYTES", [1], packed(document)),
    ).SerializeToString()
    try:
        facts = READER.facts(INFER, message, PROFILES[0])
    except MalformedRequest as fault:
        told(fault)
        return
    assert facts.requested_tokens >= 1
    for name, value in facts.parameters.items():
        assert name.isascii()
        assert isinstance(str(value).encode(), bytes)  # no lone surrogate

"""A ModelInferRequest is read one way, or refused by name."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from sidecar.core.model import MalformedRequest
from sidecar.core.reasons import Reason
from sidecar.triton.protos import ModelInferRequest
from sidecar.triton.request import EACH_MAX, Request, read_request, whole_name
from sidecar.triton.tensors import BYTES_MAX, DATATYPES, DIMS_MAX, TYPED
from tests.support.kserve import chat, field, number, packed, request, typed

M, A, L = Reason.REQUEST_MALFORMED, Reason.REQUEST_AMBIGUOUS, Reason.REQUEST_TOO_LARGE


def read(message: Any) -> Request:
    return read_request(message if isinstance(message, bytes) else message.SerializeToString())


def fault(message: Any) -> MalformedRequest:
    with pytest.raises(MalformedRequest) as caught:
        read(message)
    return caught.value


def test_a_chat_request() -> None:
    message = chat(b"hello", max_tokens=5)
    message.id, message.model_version = "r-1", "3"
    message.parameters["priority_class"].string_param = "low"
    message.outputs.add(name="text_output")
    got = read(message)
    assert (got.id, got.model, got.version, got.outputs) == ("r-1", "chat", "3", ("text_output",))
    assert got.parameters == {"priority_class": "low"}
    assert [(t.name, t.datatype, t.shape, t.nbytes) for t in got.tensors.values()] == [
        ("text_input", "BYTES", (1,), 9),
        ("stream", "BOOL", (1,), 1),
        ("sampling_parameters", "BYTES", (1,), 21),
    ]


def test_a_header_read_before_serves_another_id_and_payload() -> None:
    for n in range(3):
        message = chat(b"x" * n)
        message.id = f"request-{n}"
        got = read(message)
        assert (got.id, got.tensors["text_input"].nbytes) == (f"request-{n}", 4 + n)
    message.raw_input_contents[0] = b"\x09\x00\x00\x00x"  # the same header, a lying length
    assert "runs past the end" in fault(message).detail


def test_what_tritonclient_writes_is_read() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = grpcclient.InferInput("x", [2, 3], "FP32")
    tensor.set_data_from_numpy(data)
    words = grpcclient.InferInput("w", [2], "BYTES")
    words.set_data_from_numpy(np.array([b"a", b"bcd"], dtype=np.object_))
    client_request = grpcclient._utils._get_inference_request(
        model_name="m",
        inputs=[tensor, words],
        model_version="",
        request_id="7",
        outputs=[grpcclient.InferRequestedOutput("y", class_count=3)],
        sequence_id=9,
        sequence_start=True,
        sequence_end=False,
        priority=0,
        timeout=None,
        parameters={"a": 1, "b": "x"},
    )
    got = read(client_request)
    assert got.parameters == {
        "sequence_id": 9,
        "sequence_start": True,
        "sequence_end": False,
        "a": 1,
        "b": "x",
        "outputs/y/classification": 3,
    }
    assert {name: t.nbytes for name, t in got.tensors.items()} == {"x": 24, "w": 12}


@pytest.mark.parametrize("datatype", DATATYPES)
def test_raw_payload_of_every_datatype(datatype: str) -> None:
    size = DATATYPES[datatype]
    payload = bytes(6 * size) if size else packed(b"", b"a", b"bb", b"", b"\x00\xff", b"x" * 300)
    got = read(request("m", ("x", datatype, [2, 3], payload))).tensors["x"]
    assert (got.datatype, got.elements, got.nbytes, got.typed) == (datatype, 6, len(payload), None)
    short = fault(request("m", ("x", datatype, [2, 3], payload[:-1])))
    long = fault(request("m", ("x", datatype, [2, 3], payload + b"\x00")))
    assert short.reason is long.reason is M
    assert "input x" in short.detail
    assert "input x" in long.detail


VALUES: dict[str, list[Any]] = {
    "bool_contents": [True, False],
    "int_contents": [-1, 2],
    "int64_contents": [-(2**62), 2],
    "uint_contents": [1, 2],
    "uint64_contents": [2**63, 2],
    "fp32_contents": [0.5, 2.0],
    "fp64_contents": [0.5, 2.0],
    "bytes_contents": [b"a", b"bcd"],
}


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("written", VALUES)
def test_typed_contents_must_be_the_datatypes_own(datatype: str, written: str) -> None:
    message = typed("m", "x", datatype, [2], **{written: VALUES[written]})
    if TYPED.get(datatype) == written:
        got = read(message).tensors["x"]
        assert got.nbytes == (2 * DATATYPES[datatype] or 12)
        assert list(got.typed or ()) == VALUES[written]
        assert "2 elements" in fault(typed("m", "x", datatype, [3], **{written: VALUES[written]})).detail
    else:
        assert fault(message).reason is M


def test_every_datatype_has_its_list_but_the_two_halves() -> None:
    assert set(DATATYPES) - set(TYPED) == {"FP16", "BF16"}


def test_a_shape_without_elements_needs_no_contents() -> None:
    message = ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="FP32", shape=[0, 4])
    assert read(message).tensors["x"].nbytes == 0
    assert read(request("m", ("x", "BYTES", [0], b""))).tensors["x"].elements == 0
    message.inputs[0].shape[0] = 1
    assert "0 elements, its shape says 4" in fault(message).detail


def test_a_scalar_has_one_element() -> None:
    assert read(request("m", ("x", "INT32", [], b"\x01\x00\x00\x00"))).tensors["x"].shape == ()


def pairing(raws: int, contents: int) -> Any:
    message = ModelInferRequest(model_name="m")
    for index in range(2):
        tensor = message.inputs.add(name=f"x{index}", datatype="INT32", shape=[1])
        if index < contents:
            tensor.contents.int_contents.append(1)
    message.raw_input_contents.extend([b"\x01\x00\x00\x00"] * raws)
    return message


@pytest.mark.parametrize(("raws", "contents"), [(1, 0), (3, 0), (1, 1), (2, 1), (2, 2), (1, 2)])
def test_tensors_that_can_be_paired_two_ways_are_ambiguous(raws: int, contents: int) -> None:
    assert fault(pairing(raws, contents)).reason is A


@pytest.mark.parametrize(("raws", "contents"), [(2, 0), (0, 2)])
def test_all_or_none_is_one_way(raws: int, contents: int) -> None:
    assert len(read(pairing(raws, contents)).tensors) == 2


def test_even_empty_contents_beside_raw_are_ambiguous() -> None:
    message = request("m", ("x", "INT32", [1], bytes(4)))
    message.inputs[0].contents.SetInParent()
    assert fault(message).reason is A


def test_two_typed_lists_are_ambiguous() -> None:
    assert fault(typed("m", "x", "INT32", [1], int_contents=[1], fp32_contents=[2.0])).reason is A


def test_raw_payload_without_inputs_is_ambiguous() -> None:
    assert fault(field(1, b"m") + field(7, b"x")).reason is A


def test_raw_payloads_before_their_inputs_are_paired_in_order() -> None:
    one, two = (field(5, field(1, name) + field(2, b"INT8") + number(3, 1)) for name in (b"a", b"b"))
    data = field(7, b"\x01") + field(1, b"m") + one + field(7, b"\x02") + field(3, b"r") + two
    got = read(data)
    assert (got.id, [data[t.start : t.end] for t in got.tensors.values()]) == ("r", [b"\x01", b"\x02"])


BYTES_FAULTS = {
    "too few": (packed(b"a"), "holds 1 strings, its shape says 2"),
    "too many": (packed(b"a", b"b", b"c"), "5 bytes after the last of 2"),
    "truncated length": (packed(b"a") + b"\x00\x00", "holds 1 strings"),
    "truncated last": (packed(b"a", b"bcd")[:-1], "string 1 runs past the end"),
    "trailing byte": (packed(b"a", b"b") + b"\x00", "1 bytes after the last"),
    "length of 4 GiB": (packed(b"a") + struct.pack("<I", 2**32 - 1) + b"x", "string 1 runs past the end"),
    "empty": (b"", "holds 0 strings"),
}


@pytest.mark.parametrize(("payload", "says"), BYTES_FAULTS.values(), ids=BYTES_FAULTS)
def test_bytes_with_lying_lengths(payload: bytes, says: str) -> None:
    assert says in fault(request("m", ("x", "BYTES", [2], payload))).detail


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ([-1], "negative dimension -1"),
        ([2, -3, 0], "negative dimension -3"),
        ([2**40, 2**40], "overflows"),
        ([2**62, 4], "overflows"),
        ([1] * (DIMS_MAX + 1), f"{DIMS_MAX + 1} dimensions, at most {DIMS_MAX}"),
        ([1] * 100_000, "100000 dimensions"),
    ],
)
def test_shapes_that_are_none(shape: list[int], says: str) -> None:
    assert says in fault(request("m", ("x", "FP32", shape, b""))).detail
    assert says in fault(typed("m", "x", "FP32", shape, fp32_contents=[1.0])).detail


@pytest.mark.parametrize("datatype", ["", "fp32", "STRING", "TYPE_FP32", "FP8", "X" * 1000])
def test_unknown_datatypes(datatype: str) -> None:
    caught = fault(request("m", ("x", datatype, [1], b"")))
    assert "unknown datatype" in caught.detail
    assert len(caught.detail) < 100


def test_names_once_each() -> None:
    x = ("x", "INT8", [1], b"a")
    assert fault(request("m", x, x)).reason is A
    message = request("m", x)
    message.outputs.add(name="y")
    message.outputs.add(name="y")
    assert fault(message).reason is A


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "x" * 257, "\u202e"])
def test_tensor_names_are_printable(name: str) -> None:
    assert "printable" in fault(request("m", (name, "INT8", [1], b"a"))).detail
    message = request("m")
    message.outputs.add(name=name)
    assert "printable" in fault(message).detail


def test_paths_are_names_of_tensors() -> None:
    assert "serving/x:0" in read(request("m", ("serving/x:0", "INT8", [1], b"a"))).tensors


@pytest.mark.parametrize("request_id", ["a\nb", "\x1b[31m", "x" * 129, "\x7f", "a\u2028b"])
def test_ids_are_short_and_printable(request_id: str) -> None:
    assert "id: must be at most 128" in fault(request("m", id=request_id)).detail


@pytest.mark.parametrize("request_id", ["", "x" * 128, "tenant: 7/ä [b]"])
def test_ids_that_may_be(request_id: str) -> None:
    assert read(request("m", id=request_id)).id == request_id


@pytest.mark.parametrize("what", ["inputs", "outputs", "parameters", "all parameters"])
def test_at_most_256_of_each(what: str) -> None:
    def message(count: int) -> Any:
        made = request("m", *((f"x{n}", "INT8", [1], b"a") for n in range(count if what == "inputs" else 1)))
        for n in range(count):
            if what == "outputs":
                made.outputs.add(name=f"y{n}")
            elif what == "parameters":
                made.parameters[f"p{n}"].bool_param = True
            elif what == "all parameters":
                place = [made.inputs[0].parameters, made.parameters][n % 2]
                place[f"p{n}"].bool_param = True
        return made

    read(message(EACH_MAX))
    assert fault(message(EACH_MAX + 1)).reason is L
    assert fault(message(EACH_MAX * 8)).reason is L


def test_at_most_65536_strings() -> None:
    read(request("m", ("x", "BYTES", [BYTES_MAX], bytes(4 * BYTES_MAX))))
    two = [(name, "BYTES", [BYTES_MAX // 2 + 1], bytes(4 * (BYTES_MAX // 2 + 1))) for name in "xy"]
    assert fault(request("m", *two)).reason is L
    assert fault(typed("m", "x", "BYTES", [BYTES_MAX + 1], bytes_contents=[b""] * (BYTES_MAX + 1))).reason is L


def test_large_numbers_belong_in_raw_contents() -> None:
    caught = fault(typed("m", "x", "INT32", [5_000_000], int_contents=[1] * 5_000_000))
    assert caught.reason is L
    assert "raw_input_contents" in caught.detail


def test_large_typed_contents_are_read() -> None:
    message = typed("m", "x", "FP32", [100_000], fp32_contents=[0.5] * 100_000)
    assert read(message).tensors["x"].nbytes == 400_000
    tensor = field(5, field(1, b"y") + field(1, b"y"))
    assert fault(message.SerializeToString() + tensor).reason is A


PARAMETERS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    # what: (name, value, what is said; None: it may)
    "sequence_id int": ("sequence_id", {"int64_param": 5}, None),
    "sequence_id text": ("sequence_id", {"string_param": "a-1"}, None),
    "sequence_id uint": ("sequence_id", {"uint64_param": 5}, "must be int64_param or string_param"),
    "sequence_id negative": ("sequence_id", {"int64_param": -1}, "must not be negative"),
    "sequence_id long": ("sequence_id", {"string_param": "x" * 129}, "at most 128 printable"),
    "sequence_id control": ("sequence_id", {"string_param": "a\nb"}, "at most 128 printable"),
    "sequence_start int": ("sequence_start", {"int64_param": 1}, "must be bool_param"),
    "sequence_end text": ("sequence_end", {"string_param": "true"}, "must be bool_param"),
    "priority text": ("priority", {"string_param": "1"}, "must be int64_param or uint64_param"),
    "timeout float": ("timeout", {"double_param": 1.0}, "must be int64_param"),
    "empty final": ("triton_enable_empty_final_response", {"bool_param": True}, None),
    "empty final int": ("triton_enable_empty_final_response", {"int64_param": 1}, "must be bool_param"),
    "a float": ("temperature", {"double_param": 0.5}, None),
    "not a number": ("temperature", {"double_param": float("nan")}, "finite"),
    "infinity": ("temperature", {"double_param": float("-inf")}, "finite"),
    "a long text": ("x", {"string_param": "é" * 32_768}, None),
    "too long a text": ("x", {"string_param": "é" * 32_769}, "more than 65536 bytes"),
    "no value": ("x", {}, "has no value"),
    "a name with a slash": ("a/b", {"int64_param": 1}, "must match"),
    "a name with a newline": ("a\n", {"int64_param": 1}, "must match"),
    "an empty name": ("", {"int64_param": 1}, "must match"),
}


@pytest.mark.parametrize(("name", "value", "says"), PARAMETERS.values(), ids=PARAMETERS)
def test_parameters(name: str, value: dict[str, Any], says: str | None) -> None:
    message = request("m")
    message.parameters[name].SetInParent()
    for kind, each in value.items():
        setattr(message.parameters[name], kind, each)
    if says is None:
        assert read(message).parameters == {name: next(iter(value.values()))}
    else:
        assert says in fault(message).detail


def test_tensors_parameters_are_named_after_them() -> None:
    message = request("m", ("a/b", "INT8", [1], b"a"))
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    message.outputs.add(name="y").parameters["classification"].int64_param = 5
    assert read(message).parameters == {"inputs/a/b/shared_memory_region": "r", "outputs/y/classification": 5}


@pytest.mark.parametrize("value", [0, -1, True, 1.0])
def test_classification_is_a_positive_integer(value: float) -> None:
    message = request("m")
    parameter = message.outputs.add(name="y").parameters["classification"]
    kind = {bool: "bool_param", int: "int64_param", float: "double_param"}[type(value)]
    setattr(parameter, kind, value)
    assert "positive int64_param" in fault(message).detail


def test_defaults_spelt_out_and_odd_orders_read_the_same() -> None:
    plain = field(1, b"m") + field(5, field(1, b"x") + field(2, b"INT8") + field(3, b"\x01")) + field(7, b"a")
    odd = (
        field(7, b"a")
        + field(3, b"")
        + field(5, field(2, b"INT8") + number(3, 1) + field(1, b"x"))
        + field(2, b"")
        + field(1, b"m")
    )
    assert [t.shape for t in read(odd).tensors.values()] == [t.shape for t in read(plain).tensors.values()] == [(1,)]
    assert read(odd).model == read(plain).model == "m"


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
def test_what_protobuf_would_merge_is_refused_small_and_large(padding: int) -> None:
    filler = field(5, field(1, b"p") + field(2, b"BYTES") + field(3, b"\x01") + field(5, field(8, b"x" * padding)))
    twice = field(5, field(1, b"x") + field(2, b"INT8") + field(2, b"FP32"))
    assert fault(field(1, b"m") + filler + twice).reason is A
    unknown = field(5, field(1, b"x") + field(15, b"?"))
    assert "unknown field 15" in fault(field(1, b"m") + filler + unknown).detail
    assert "not UTF-8" in fault(field(1, b"m") + filler + field(5, field(1, b"\xff"))).detail
    assert "not valid protobuf" in fault(field(1, b"m") + filler + field(5, field(3, b"\xff"))).detail


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("chat", True),
        ("a.b_c-d:e", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a/b", False),
        ("..", False),
        ("a..b", False),
        ("a b", False),
        ("a\n", False),
        ("é", False),
        ("a\x00", False),
    ],
)
def test_model_names(name: str, whole: bool) -> None:
    assert whole_name(name) is whole

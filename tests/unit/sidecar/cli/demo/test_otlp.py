"""The collector: the same span, however it comes, is the same line."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sidecar.cli.demo.otlp import (
    MAX_MESSAGE_BYTES,
    FileFullError,
    OtlpReceiver,
    SpanFile,
    decode,
    read_spans,
    start_otlp,
)

EXPORT_JSON = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "triton"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "AB" * 16,
                            "spanId": "cd" * 8,
                            "parentSpanId": "ef" * 8,
                            "name": "infer",
                            "kind": 2,
                            "startTimeUnixNano": "1796046464422540833",
                            "endTimeUnixNano": "1796046464422804238",
                            "attributes": [
                                {"key": "n", "value": {"intValue": "7"}},
                                {"key": "ok", "value": {"boolValue": True}},
                                {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}]}}},
                                {"key": "none", "value": {}},
                            ],
                            "events": [{"name": "sent", "timeUnixNano": "5"}],
                            "status": {"code": 2, "message": "broke"},
                        }
                    ]
                }
            ],
        }
    ]
}
SPAN = {
    "trace_id": "ab" * 16,
    "span_id": "cd" * 8,
    "parent_span_id": "ef" * 8,
    "name": "infer",
    "kind": "server",
    "service": "triton",
    "start_ns": 1796046464422540833,
    "end_ns": 1796046464422804238,
    "attributes": {"n": 7, "ok": True, "list": ["a"], "none": None},
    "status": "error",
    "status_message": "broke",
    "events": [{"name": "sent", "time_ns": 5, "attributes": {}}],
    "resource": {"service.name": "triton"},
}


def message() -> ExportTraceServiceRequest:
    """EXPORT_JSON as protobuf."""
    made = ExportTraceServiceRequest()
    group = made.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "triton"
    span = group.scope_spans.add().spans.add(
        trace_id=b"\xab" * 16,
        span_id=b"\xcd" * 8,
        parent_span_id=b"\xef" * 8,
        name="infer",
        kind=2,
        start_time_unix_nano=1796046464422540833,
        end_time_unix_nano=1796046464422804238,
    )
    span.attributes.add(key="n").value.int_value = 7
    span.attributes.add(key="ok").value.bool_value = True
    span.attributes.add(key="list").value.array_value.values.add().string_value = "a"
    span.attributes.add(key="none")
    span.events.add(name="sent", time_unix_nano=5)
    span.status.code = 2
    span.status.message = "broke"
    return made


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[OtlpReceiver]:
    running = start_otlp(tmp_path / "spans.jsonl")
    yield running
    running.stop()


def post(receiver: OtlpReceiver, body: bytes, **headers: str) -> tuple[int, bytes]:
    url = urlsplit(receiver.http_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=5)
    try:
        connection.request("POST", url.path, body, {key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_span_is_the_same_as_protobuf_and_as_json() -> None:
    assert decode(message().SerializeToString(), is_json=False) == [SPAN]
    assert decode(json.dumps(EXPORT_JSON).encode(), is_json=True) == [SPAN]


@pytest.mark.parametrize(("body", "is_json"), [(b"\xff\xff", False), (b"{", True), (b"[]", True)])
def test_what_is_no_export_is_a_value_error(body: bytes, *, is_json: bool) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own, protobuf's own, ours
        decode(body, is_json=is_json)


def test_it_takes_spans_over_grpc_http_json_and_gzip(receiver: OtlpReceiver) -> None:
    with grpc.insecure_channel(receiver.grpc) as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        export(message().SerializeToString(), timeout=5)
    proto, as_json = message().SerializeToString(), json.dumps(EXPORT_JSON).encode()
    assert post(receiver, proto, Content_Type="application/x-protobuf") == (200, b"")
    assert post(receiver, as_json, Content_Type="application/json; charset=utf-8") == (200, b"{}")
    assert post(receiver, gzip.compress(proto), Content_Encoding="gzip") == (200, b"")
    assert receiver.spans() == [SPAN] * 4


def test_a_wrong_or_oversized_body_is_refused_and_the_next_is_taken(receiver: OtlpReceiver) -> None:
    bomb = gzip.compress(bytes(MAX_MESSAGE_BYTES + 1))
    assert post(receiver, b"\xff\xff")[0] == 400
    assert post(receiver, b"x", Content_Encoding="gzip")[0] == 400
    assert post(receiver, bomb, Content_Encoding="gzip")[0] == 413
    assert post(receiver, b"", Content_Length=str(MAX_MESSAGE_BYTES + 1))[0] == 413
    assert post(receiver, message().SerializeToString())[0] == 200
    assert receiver.spans() == [SPAN]


def test_a_full_file_takes_no_more(tmp_path: Path) -> None:
    file = SpanFile(tmp_path / "spans.jsonl", max_bytes=600)
    file.append([SPAN])
    with pytest.raises(FileFullError, match="has reached 600 bytes"):
        file.append([SPAN])
    assert read_spans(file.path) == [SPAN]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text('{"name": "whole"}\n{"name": "ha')
    assert read_spans(path) == [{"name": "whole"}]


def test_of_one_trace_only_its_own_spans_are_read(tmp_path: Path) -> None:
    file = SpanFile(tmp_path / "spans.jsonl")
    one, other = {**SPAN, "trace_id": "a" * 32}, {**SPAN, "trace_id": "b" * 32}
    named = {**other, "attributes": {"link": "a" * 32}}
    file.append([one, other, named, one])
    assert read_spans(file.path, trace="a" * 32) == [one, one]
    assert read_spans(file.path, trace="c" * 32) == []
    with file.path.open("a") as unfinished:
        unfinished.write(json.dumps(one))
    assert read_spans(file.path, trace="a" * 32) == [one, one]

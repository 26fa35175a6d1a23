"""A small OTLP collector: spans come over gRPC or HTTP (protobuf or JSON) and go into a file, one a line, as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from sidecar.cli.demo.ports import LOOPBACK, free_ports

MAX_MESSAGE_BYTES = 16 << 20  # one export, decompressed
MAX_FILE_BYTES = 512 << 20  # beyond it exports are refused: a demo left running must not fill the disk
_GRPC_WORKERS = 4
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")  # trace.proto, Span.SpanKind
_STATUS = ("unset", "ok", "error")  # trace.proto, Status.StatusCode
_EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"

Span = dict[str, Any]


class FileFullError(Exception):
    """The file has reached MAX_FILE_BYTES."""


class SpanFile:
    """Appends spans, one JSON object a line; safe from several threads."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        path.touch()

    def append(self, spans: list[Span]) -> None:
        lines = "".join(json.dumps(span, ensure_ascii=False) + "\n" for span in spans)
        with self._lock, self.path.open("a") as file:
            if file.tell() + len(lines) > self._max_bytes:
                raise FileFullError(f"{self.path} has reached {self._max_bytes} bytes")
            file.write(lines)


class OtlpReceiver:
    """A running collector. ``grpc`` is ``host:port``, ``http_url`` the full URL of the traces endpoint."""

    def __init__(self, spans: SpanFile, *, grpc_port: int, http_port: int) -> None:
        self.path = spans.path
        self.grpc = f"{LOOPBACK}:{grpc_port}"
        self.http_url = f"http://{LOOPBACK}:{http_port}/v1/traces"
        self._grpc = grpc.server(
            ThreadPoolExecutor(_GRPC_WORKERS, thread_name_prefix="otlp-grpc"),
            options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)],
        )
        self._grpc.add_generic_rpc_handlers((_grpc_handler(spans),))
        self._grpc.add_insecure_port(self.grpc)
        self._http = _HttpServer(http_port, spans)
        self._http_thread = threading.Thread(target=self._http.serve_forever, name="otlp-http", daemon=True)

    def start(self) -> None:
        self._grpc.start()
        self._http_thread.start()

    def stop(self) -> None:
        self._grpc.stop(grace=1).wait()
        self._http.shutdown()
        self._http.server_close()

    def spans(self, *, trace: str = "") -> list[Span]:
        """What has arrived so far, oldest first; of one trace (32 hex digits) where it is named."""
        return read_spans(self.path, trace=trace)


def start_otlp(path: Path, *, grpc_port: int | None = None, http_port: int | None = None) -> OtlpReceiver:
    """Collect into ``path``, from threads of this process, at the given ports or at free ones. OSError when taken."""
    spare = free_ports(2)
    receiver = OtlpReceiver(SpanFile(path), grpc_port=grpc_port or spare[0], http_port=http_port or spare[1])
    receiver.start()
    return receiver


def read_spans(path: Path, *, trace: str = "") -> list[Span]:
    """The spans in a file that a receiver writes; a last line that is still being written is left out.

    Of one ``trace`` only its own lines are decoded: whoever waits for it looks again and again, and a file of an
    hour's spans takes a second to decode.
    """
    content = path.read_bytes()
    if not trace:
        return [json.loads(line) for line in content.split(b"\n")[:-1]]
    spans = map(json.loads, _lines_with(trace.encode(), content))
    return [span for span in spans if span["trace_id"] == trace]


def _lines_with(words: bytes, content: bytes) -> Iterator[bytes]:
    at = content.find(words)
    while at >= 0 and (end := content.find(b"\n", at)) >= 0:
        yield content[content.rfind(b"\n", 0, at) + 1 : end]
        at = content.find(words, end)


def flatten(export: dict[str, Any]) -> list[Span]:
    """The spans of an export in OTLP's JSON form (camelCase, ids in hex), in the form that the file holds."""
    return [
        _span(span, resource=_attributes(group.get("resource", {}).get("attributes", ())))
        for group in export.get("resourceSpans", ())
        for scope in group.get("scopeSpans", ())
        for span in scope.get("spans", ())
    ]


def decode(body: bytes, *, is_json: bool) -> list[Span]:
    """The spans of one export; ValueError when the body isn't one."""
    if is_json:
        export = json.loads(body)
        if not isinstance(export, dict):
            raise ValueError("an OTLP/JSON export is an object")
        return flatten(export)
    try:
        message = ExportTraceServiceRequest.FromString(body)
    except DecodeError as malformed:
        raise ValueError(f"not an ExportTraceServiceRequest: {malformed}") from malformed
    return flatten_message(message)


def flatten_message(message: ExportTraceServiceRequest) -> list[Span]:
    """The spans of an export in its protobuf form."""
    export = MessageToDict(message, use_integers_for_enums=True)
    # protobuf's own JSON has ids in base64; OTLP's has them in hex.
    originals = [s for group in message.resource_spans for scope in group.scope_spans for s in scope.spans]
    spans = flatten(export)
    for span, original in zip(spans, originals, strict=True):
        span["trace_id"] = original.trace_id.hex()
        span["span_id"] = original.span_id.hex()
        span["parent_span_id"] = original.parent_span_id.hex()
    return spans


def _span(span: dict[str, Any], *, resource: dict[str, Any]) -> Span:
    status = span.get("status", {})
    return {
        "trace_id": str(span.get("traceId", "")).lower(),
        "span_id": str(span.get("spanId", "")).lower(),
        "parent_span_id": str(span.get("parentSpanId", "")).lower(),
        "name": span.get("name", ""),
        "kind": _name(_KINDS, span.get("kind", 0)),
        "service": resource.get("service.name", ""),
        "start_ns": int(span.get("startTimeUnixNano", 0)),
        "end_ns": int(span.get("endTimeUnixNano", 0)),
        "attributes": _attributes(span.get("attributes", ())),
        "status": _name(_STATUS, status.get("code", 0)),
        "status_message": status.get("message", ""),
        "events": [
            {
                "name": event.get("name", ""),
                "time_ns": int(event.get("timeUnixNano", 0)),
                "attributes": _attributes(event.get("attributes", ())),
            }
            for event in span.get("events", ())
        ],
        "resource": resource,
    }


def _name(names: tuple[str, ...], value: Any) -> str:
    """An enum's name: OTLP/JSON has numbers, and some exporters its spelled-out name (SPAN_KIND_SERVER)."""
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else str(value)
    return str(value).rsplit("_", maxsplit=1)[-1].lower()


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair["key"]: _value(pair.get("value", {})) for pair in pairs}


def _value(value: dict[str, Any]) -> Any:
    """An AnyValue (common.proto): 64-bit integers come as strings in JSON."""
    for kind, content in value.items():
        match kind:
            case "intValue":
                return int(content)
            case "arrayValue":
                return [_value(one) for one in content.get("values", ())]
            case "kvlistValue":
                return _attributes(content.get("values", ()))
            case _:
                return content
    return None


def _grpc_handler(spans: SpanFile) -> grpc.GenericRpcHandler[ExportTraceServiceRequest, ExportTraceServiceResponse]:
    def export(request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        try:
            spans.append(flatten_message(request))
        except FileFullError as full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(full))
        return ExportTraceServiceResponse()

    method = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=ExportTraceServiceRequest.FromString,
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_EXPORT, {"Export": method})


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, spans: SpanFile) -> None:
        super().__init__((LOOPBACK, port), _HttpHandler)
        self.spans = spans


class _HttpHandler(BaseHTTPRequestHandler):
    server: _HttpServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # s without a byte: an exporter keeps its connection

    def do_POST(self) -> None:
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        body = self._body()
        if body is None:
            return
        if self.path != "/v1/traces":
            self._answer(404, b"")
            return
        try:
            self.server.spans.append(decode(body, is_json=is_json))
        except (ValueError, KeyError, AttributeError, TypeError) as malformed:
            self._answer(400, str(malformed).encode())
        except FileFullError as full:
            self._answer(507, str(full).encode())
        else:
            self._answer(200, b"{}" if is_json else b"", "json" if is_json else "x-protobuf")

    def _body(self) -> bytes | None:
        """The body, decompressed; None when it was refused."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_MESSAGE_BYTES:
            self.close_connection = True  # what follows is the body, not a request
            self._answer(413 if length.isdigit() else 411, b"")
            return None
        body = self.rfile.read(int(length))
        if self.headers.get("Content-Encoding") != "gzip":
            return body
        try:
            unpack = zlib.decompressobj(wbits=31)  # gzip
            body = unpack.decompress(body, MAX_MESSAGE_BYTES)
        except zlib.error as malformed:
            self._answer(400, str(malformed).encode())
            return None
        if not unpack.eof:  # the limit is reached, or the body was cut short
            self._answer(413 if unpack.unconsumed_tail else 400, b"")
            return None
        return body

    def _answer(self, status: int, body: bytes, kind: str = "octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"application/{kind}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Say nothing: one line a request would drown what a person wants to see."""


def main(arguments: list[str] | None = None) -> None:
    """``python -m sidecar.cli.demo.otlp FILE``: collect until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m sidecar.cli.demo.otlp", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--grpc-port", type=int, default=4317)
    parser.add_argument("--http-port", type=int, default=4318)
    chosen = parser.parse_args(arguments)
    ended_by = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ended_by)  # before any thread starts, so that all inherit it
    receiver = start_otlp(chosen.file, grpc_port=chosen.grpc_port, http_port=chosen.http_port)
    sys.stdout.write(f"{receiver.grpc} {receiver.http_url}\n")
    sys.stdout.flush()
    signal.sigwait(ended_by)
    receiver.stop()


if __name__ == "__main__":
    main()

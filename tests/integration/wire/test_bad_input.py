"""Bad input gets a clear error, and the sidecar goes on as before."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from pyqwest import HTTPVersion, StreamError, SyncClient, SyncHTTPTransport

from tests.support import h2
from tests.support.kserve import field, packed, request
from tests.support.sidecar import INFER, STREAM, Bare, Launch, Sidecar, echo, slow
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def unharmed(sidecar: Sidecar) -> Iterator[None]:
    """After each of these the same process still answers, and holds nothing."""
    pid = sidecar.pid
    yield
    with sidecar.bare() as bare:
        assert bare.unary(echo(), sidecar.headers()).code == "OK"
    assert sidecar.pid == pid
    sidecar.settles()


def numbers(payload: bytes, shape: list[int], datatype: str = "FP32") -> bytes:
    return bytes(request("echo", ("tensor", datatype, shape, payload)).SerializeToString())


def texts(payload: bytes, shape: list[int]) -> bytes:
    return bytes(request("echo", ("text", "BYTES", shape, payload)).SerializeToString())


MESSAGES = {
    "no protobuf": (b"\xff" * 40, "REQUEST_MALFORMED"),
    "a field cut short": (echo()[:-3], "REQUEST_MALFORMED"),
    "a group never closed": (b"\x0b" + echo(), "REQUEST_MALFORMED"),
    "no model": (b"", "REQUEST_MALFORMED"),
    "two models": (field(1, b"slow") + echo(), "REQUEST_AMBIGUOUS"),
    "a tensor too small": (numbers(bytes(7), [2]), "REQUEST_MALFORMED"),
    "a tensor too large": (numbers(bytes(12), [2]), "REQUEST_MALFORMED"),
    "a negative dimension": (numbers(bytes(4), [-1]), "REQUEST_MALFORMED"),
    "dimensions that overflow": (numbers(bytes(4), [2**40, 2**40]), "REQUEST_MALFORMED"),
    "no such datatype": (numbers(bytes(4), [1], "FP31"), "REQUEST_MALFORMED"),
    "a BYTES length past the end": (texts(struct.pack("<I", 100) + b"x", [1]), "REQUEST_MALFORMED"),
    "a BYTES length of 4 GB": (texts(struct.pack("<I", 2**32 - 1) + b"x", [1]), "REQUEST_MALFORMED"),
    "BYTES after the last": (texts(packed(b"a") + b"\x00", [1]), "REQUEST_MALFORMED"),
    "BYTES one too few": (texts(packed(b"a"), [2]), "REQUEST_MALFORMED"),
    "BYTES one too many": (texts(packed(b"a", b"b"), [1]), "REQUEST_MALFORMED"),
    "a payload nobody named": (echo() + field(7, b"zzzz"), "REQUEST_AMBIGUOUS"),
}


class TestMessages:
    @pytest.mark.parametrize("name", MESSAGES)
    def test_unary_and_in_band(self, sidecar: Sidecar, bare: Bare, name: str) -> None:
        message, reason = MESSAGES[name]
        answer = bare.unary(message, sidecar.headers())
        assert answer.code == "INVALID_ARGUMENT"
        assert answer.told().reason in (reason, "REQUEST_MALFORMED", "REQUEST_AMBIGUOUS")
        assert answer.text.startswith(f"[{reason}] "), answer.text
        stream = bare.stream([message, slow(1, id="next")], sidecar.headers())
        first, *rest = list(stream)
        assert first.error_message == answer.text
        assert len(rest) == 2
        assert stream.answer().code == "OK"

    def test_a_wrong_shape_is_tritons_to_explain(self, sidecar: Sidecar, bare: Bare) -> None:
        answer = bare.unary(numbers(bytes(8), [1, 2]), sidecar.headers())
        assert answer.code == "INVALID_ARGUMENT"
        assert "shape" in answer.text


def classified(message: Any, output: str, count: int) -> bytes:
    message.outputs.add(name=output).parameters["classification"].int64_param = count
    return bytes(message.SerializeToString())


def in_sequence(message: Any, name: str) -> bytes:
    message.parameters["sequence_id"].string_param = name
    message.parameters["sequence_start"].bool_param = True
    return bytes(message.SerializeToString())


# What ends Triton 2.51, at once or minutes later; or what it reads as another number.
FATAL = {
    "classes of strings": classified(request("echo", ("text", "BYTES", [1], packed(b"x"))), "text", 1),
    "more classes than an int": classified(
        request("vision", ("image", "FP32", [1, 3, 224, 224], bytes(4 * 3 * 224 * 224))), "scores", 2**32 + 1
    ),
    "a number's sequence by name": in_sequence(request("counter", ("number", "INT32", [1, 1], bytes(4))), "x" * 64),
}


class TestFatal:
    @pytest.mark.parametrize("name", FATAL)
    def test_what_kills_triton_does_not_reach_it(self, sidecar: Sidecar, bare: Bare, triton: Triton, name: str) -> None:
        answer = bare.unary(FATAL[name], sidecar.headers())
        malformed = "by name" in name
        refused = (
            ("INVALID_ARGUMENT", "REQUEST_MALFORMED") if malformed else ("PERMISSION_DENIED", "PARAMETER_NOT_ALLOWED")
        )
        assert (answer.code, answer.told().reason) == refused
        stream = bare.stream([FATAL[name]], sidecar.headers())
        (told,) = stream
        assert told.error_message == answer.text
        assert stream.answer().code == "OK"
        with Bare(triton.grpc) as direct:
            assert direct.unary(echo(), {}).code == "OK"

    def test_where_a_model_raised_is_not_told(self, sidecar: Sidecar, bare: Bare) -> None:
        message = request(
            "rag", ("text_input", "BYTES", [1], packed(b"\xff")), ("max_tokens", "INT32", [1], b"\x04\0\0\0")
        )
        answer = bare.unary(message.SerializeToString(), sidecar.headers())
        (in_band,) = bare.stream([message.SerializeToString()], sidecar.headers())
        for told, call_id in ((answer.text, answer.call_id), (in_band.error_message, "/1")):
            assert told.startswith("the model failed; its own words are in the record of call ")
            assert told.endswith(call_id)
        record = sidecar.record(answer.call_id)
        assert (record["outcome"], record["content"]) == ("failed", "revealed")
        assert "can't decode byte 0xff" in record["error"]


class TestCounts:
    @pytest.mark.parametrize("messages", [[], [echo(), echo()], [echo()] * 50], ids=["none", "two", "fifty"])
    def test_a_unary_call_has_one_message(self, sidecar: Sidecar, bare: Bare, messages: list[bytes]) -> None:
        answer = bare.several(messages, sidecar.headers())
        assert answer.code == "INVALID_ARGUMENT"
        assert answer.told().reason == "REQUEST_MALFORMED"
        assert "exactly one expected" in answer.text

    def test_a_stream_may_have_none(self, sidecar: Sidecar, bare: Bare) -> None:
        stream = bare.stream([], sidecar.headers())
        assert list(stream) == []
        assert stream.answer().code == "OK"


BODIES = {
    "flag 7": b"\x07" + len(echo()).to_bytes(4, "big") + echo(),
    "compressed without an encoding": b"\x01" + len(echo()).to_bytes(4, "big") + echo(),
    "a message cut short": b"\x00" + (len(echo()) + 50).to_bytes(4, "big") + echo(),
    "a header cut short": b"\x00\x00\x00",
    "4 GB announced": b"\x00\xff\xff\xff\xff" + echo(),
    "noise": bytes(range(256)) * 4,
}


class TestFrames:
    """HTTP/2 by hand, because gRPC's own libraries won't send these."""

    @pytest.mark.parametrize("path", [INFER, STREAM], ids=["unary", "stream"])
    @pytest.mark.parametrize("name", BODIES)
    def test_end_their_own_call(self, sidecar: Sidecar, name: str, path: str) -> None:
        status, answers = _by_hand(sidecar, path, BODIES[name])
        if sidecar.wire == "grpc" and name == "flag 7":
            return  # gRPC's C library looks at the flag's lowest bit only, and so reads a good message
        assert answers == b""
        if sidecar.wire == "envoy":
            assert status == (12 if "encoding" in name else 3)
        elif path == INFER:
            assert status in (3, 8, 12, 13)
        else:
            assert status in (0, 3, 8, 12, 13)  # gRPC's C library takes a broken frame for the stream's end

    def test_an_encoding_nobody_offers(self, sidecar: Sidecar) -> None:
        body = b"\x01" + len(echo()).to_bytes(4, "big") + echo()
        status, _ = _by_hand(sidecar, INFER, body, ("grpc-encoding", "zstd"))
        assert status == 12 if sidecar.wire == "envoy" else status in (12, 13)

    def test_a_compressed_bomb_is_stopped_at_the_limit(self, sidecar: Sidecar, bare: Bare) -> None:
        before = sidecar.rss()
        answer = bare.unary(echo(bytes(300 * 2**20)), sidecar.headers(), compression=grpc.Compression.Gzip)
        assert answer.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
        if sidecar.wire == "envoy":
            assert answer.told().reason == "REQUEST_TOO_LARGE"
        assert sidecar.rss() - before < 600 * 2**20


class TestHeaders:
    def test_10_megabytes_of_metadata(self, sidecar: Sidecar) -> None:
        """On a connection of its own, which it may cost; and a name list as long in many small ones."""
        big = {f"x-filler-{n}": "v" * 10_000 for n in range(1000)}
        with sidecar.bare() as bare:
            answer = bare.unary(echo(), {**sidecar.headers(), **big})
        assert answer.code not in ("OK", "DEADLINE_EXCEEDED")
        assert answer.text

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("x-data-class", "not a class", "REQUEST_MALFORMED"),
            ("x-warden-subject", "x" * 300, "REQUEST_MALFORMED"),
            ("x-data-class", "nobody-declared-this", "RESIDENCY_PROCESSING"),
        ],
    )
    def test_of_ours_that_cannot_be_read(
        self, sidecar: Sidecar, bare: Bare, name: str, value: str, reason: str
    ) -> None:
        answer = bare.unary(echo(), sidecar.headers(**{name: value}))
        assert answer.told().reason == reason

    def test_one_given_twice(self, sidecar: Sidecar, bare: Bare) -> None:
        call = bare.channel.unary_unary(INFER).future(
            echo(),
            metadata=(*sidecar.headers().items(), ("x-data-class", "phi"), ("x-data-class", "public")),
            timeout=60,
        )
        assert call.exception().details().startswith("[REQUEST_AMBIGUOUS]")


GRPC = (b"content-type", b"application/grpc")


class TestPaths:
    """The portable wire's server ends on some of these: test_lifecycle."""

    @pytest.mark.parametrize("path", [b"/x\xff", b"/x%ff", b"/x\xc3\xa9", b"/x%", b"/x%7f", INFER.encode() + b"\xff"])
    @pytest.mark.parametrize("headers", [[], [GRPC]], ids=["http", "grpc"])
    def test_that_cannot_be_read_are_answered(self, sidecar: Sidecar, path: bytes, headers: list[Any]) -> None:
        if sidecar.wire != "envoy":
            return
        answer = h2.ends(sidecar.grpc, path, headers, within_s=30)
        assert answer is not None
        if not headers:
            assert answer == b"[METHOD_UNKNOWN] the path is not printable ASCII"

    def test_with_printable_escapes_are_read(self, sidecar: Sidecar) -> None:
        if sidecar.wire == "envoy":
            answer = h2.ends(sidecar.grpc, b"/x%20y?z=%2F", within_s=30)
            assert answer is not None
            assert b"this port speaks gRPC" in answer


class TestOtherProtocols:
    def test_grpc_over_http_1(self, sidecar: Sidecar) -> None:
        """It has no trailers to tell a refusal in."""
        if sidecar.wire != "envoy":
            return  # gRPC's C library speaks HTTP/2 only
        client = SyncClient(SyncHTTPTransport(http_version=HTTPVersion.HTTP1, timeout=60))
        headers = [("content-type", "application/grpc"), *sidecar.headers().items()]
        response = client.execute("POST", f"http://{sidecar.grpc}{INFER}", headers, b"\0\0\0\0\0")
        assert response.status == 501
        assert "HTTP/2" in json.loads(response.content)["detail"]

    def test_http_that_is_no_grpc(self, sidecar: Sidecar) -> None:
        transport = SyncHTTPTransport(http_version=HTTPVersion.HTTP2)
        client = SyncClient(transport)
        base = f"http://{sidecar.grpc}"
        for method, path in (("GET", "/"), ("POST", "/v2/models/echo/infer"), ("POST", INFER)):
            body = b"{}" if method == "POST" else None
            if sidecar.wire == "grpc":  # gRPC's C library refuses it in its own ways, a reset among them
                with suppress(StreamError):
                    response = client.execute(method, base + path, {"content-type": "application/json"}, body)
                    assert response.status >= 400 or response.headers.get("grpc-status") != "0"
                continue
            response = client.execute(method, base + path, {"content-type": "application/json"}, body)
            assert response.headers["content-type"] == "application/problem+json"
            problem = json.loads(response.content)
            assert response.status == problem["status"] == 501
            assert problem["reason"] == "METHOD_UNKNOWN"
            assert problem["call_id"] == response.headers["x-warden-call-id"]


class TestClientsThatDoNotRead:
    def test_memory_stays_bounded_and_the_client_is_cut_off(self, own: Launch) -> None:
        """512 MB wait for a client that reads none of them."""
        sidecar = own(overrides={"bounds": {"blocked_write": "2s", "stream_bytes": "8MiB", "buffer_bytes": "64MiB"}})
        with sidecar.bare() as bare:
            assert bare.unary(echo(), sidecar.headers()).code == "OK"
            before = sidecar.rss()
            peak = [0]
            done = threading.Event()

            def watch() -> None:
                while not done.wait(0.05):
                    peak[0] = max(peak[0], sidecar.rss())

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                stream = bare.stream([slow(512, 0, size=2**20)], sidecar.headers())
                eventually(
                    lambda: sidecar.metric("warden_clients_cut_off_total"), what="the client was cut off", within_s=30
                )
                sidecar.settles()
            finally:
                done.set()
                watcher.join()
            answer = stream.answer()
        assert answer.code == "RESOURCE_EXHAUSTED"
        assert answer.told().reason == "MEMORY_TENSOR"
        assert "does not read" in answer.text
        assert peak[0] - before < 200 * 2**20, f"{(peak[0] - before) >> 20} MiB"
        record = sidecar.record(f"{answer.call_id}/1")
        assert (record["outcome"], record["reason"]) == ("failed", "MEMORY_TENSOR")


def _by_hand(sidecar: Sidecar, path: str, body: bytes, *more: tuple[str, str]) -> tuple[int, bytes]:
    """gRPC status and body of one hand-made request; a reset counts as INTERNAL, as gRPC's mapping has it."""
    client = SyncClient(SyncHTTPTransport(http_version=HTTPVersion.HTTP2, timeout=60))
    headers = [("content-type", "application/grpc"), ("te", "trailers"), *sidecar.headers().items(), *more]
    try:
        response: Any = client.execute("POST", f"http://{sidecar.grpc}{path}", headers, body)
    except StreamError:
        return 13, b""
    found = response.trailers.get("grpc-status") or response.headers["grpc-status"]
    return int(found), response.content

"""The production wire against ASGI events as Envoy's host gives and takes them (facts/envoy.md)."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.model import Denial
from sidecar.core.reasons import Reason
from sidecar.transports import health
from sidecar.transports.asgi import AsgiWire
from sidecar.transports.departures import Departures
from sidecar.transports.exchange import DRAINED
from sidecar.transports.grpc_frames import INFLATED, FrameReader, frame
from sidecar.transports.live import LiveRpcs
from sidecar.triton.protos import ModelStreamInferResponse
from tests.support import kserve
from tests.support.core import FakePorts
from tests.support.wire import BOUNDS, OK_END, FakeUpstream, World, cancelled_at, quiet

SERVICE = "/inference.GRPCInferenceService/"
WATCH = "/grpc.health.v1.Health/Watch"
REQUEST: bytes = kserve.chat(b"hello", stream=False).SerializeToString()
ANSWER: bytes = kserve.response(("text_output", "BYTES", [1], kserve.packed(b"hi"))).SerializeToString()
TOKEN = kserve.streamed(kserve.response(("text_output", "BYTES", [1], kserve.packed(b"a"))), final=True)
KEY = ((b"x-api-key", b"key"),)
DISCONNECT = {"type": "http.disconnect"}


def body(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


class GoneError(OSError):
    """As pyvoy's ClientDisconnectedError."""


class Request:
    """One HTTP request to the wire, and what came back."""

    def __init__(self, upstream: FakeUpstream | None = None, *, slow: bool = False, **world: Any) -> None:
        self.world = World(**world)
        self.upstream = upstream or FakeUpstream([ANSWER, OK_END])
        self.live = LiveRpcs()
        self.wire = AsgiWire(self.world.services, self.upstream, self.live, {8015: "127.0.0.1:8015"})
        self.sent: list[dict[str, Any]] = []
        self.slow = slow  # the client reads nothing
        self.gone_after: int | None = None  # events that the client still takes
        self.port = 8011  # that it came in on

    async def send(self, event: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        if self.gone_after is not None and len(self.sent) >= self.gone_after:
            raise GoneError
        if self.slow and event["type"] == "http.response.body":
            await asyncio.Event().wait()
        self.sent.append(event)

    async def __call__(
        self,
        name: str,
        *events: dict[str, Any] | Callable[[], object],
        headers: tuple[tuple[bytes, bytes], ...] = ((b"x-api-key", b"key"),),
        content_type: bytes = b"application/grpc",
        verb: str = "POST",
        http_version: str = "2",
        stays: bool = False,
        raw_path: bytes | None = None,
        query_string: bytes = b"",
    ) -> None:
        script = list(events)

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            while script and callable(script[0]):
                script.pop(0)()  # type: ignore[operator]  # something happens meanwhile
            if script:
                return script.pop(0)  # type: ignore[return-value]  # an event
            if stays:
                await asyncio.Event().wait()
            return body()  # after the body's end, at once, again and again

        scope = {
            "type": "http",
            "http_version": http_version,
            "method": verb,
            "path": name if name.startswith("/") else SERVICE + name,
            "raw_path": raw_path,
            "query_string": query_string,
            "headers": [(b"content-type", content_type), *headers],
            "client": ("10.1.2.3", 4567),
            "server": ("127.0.0.1", self.port),
        }
        await self.wire(scope, receive, self.send)

    # --- the answer as a gRPC client reads it

    @property
    def headers(self) -> dict[bytes, bytes]:
        assert self.sent[0]["type"] == "http.response.start"
        return dict(self.sent[0]["headers"])

    @property
    def messages(self) -> list[bytes]:
        frames = FrameReader(10**7)
        found = [
            message
            for event in self.sent
            if event["type"] == "http.response.body"
            for message in frames.feed(event["body"])
        ]
        frames.end()
        return found

    @property
    def status(self) -> str:
        """``grpc-status``, from the only trailers."""
        trailers = [event for event in self.sent if event["type"] == "http.response.trailers"]
        assert len(trailers) == 1
        assert trailers[0] is self.sent[-1]
        assert [event["type"] for event in self.sent].count("http.response.start") == 1
        return dict(trailers[0]["headers"])[b"grpc-status"].decode()

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.world.ports.entries]


async def test_a_unary_call_is_answered() -> None:
    request = Request()
    await request("ModelInfer", body(frame(REQUEST)))
    assert (request.status, request.messages) == ("0", [ANSWER])
    assert request.headers[b"content-type"] == b"application/grpc"
    assert request.headers[b"x-warden-call-id"] == b"call-1"
    assert request.sent[0]["trailers"] is True
    admitted = request.world.ports.entries[0][1]
    assert admitted.call.peer == "10.1.2.3:4567"  # type: ignore[attr-defined]  # an Admission
    request.world.assert_even()


async def test_a_message_may_come_in_pieces() -> None:
    request = Request()
    data = frame(REQUEST)
    await request("ModelInfer", *(body(data[n : n + 7], more=True) for n in range(0, len(data), 7)), body())
    assert (request.status, request.messages) == ("0", [ANSWER])


async def test_a_refusal_has_its_status_and_no_message() -> None:
    request = Request(ports=FakePorts(denials={"reserve": Denial(Reason.RATE_TOKENS, retry_after=1.0)}))
    await request("ModelInfer", body(frame(REQUEST)))
    assert (request.status, request.messages) == ("8", [])
    trailers = dict(request.sent[-1]["headers"])
    assert trailers[b"grpc-message"] == b"[RATE_TOKENS] token budget exceeded; retry in 1s"
    assert trailers[b"grpc-status-details-bin"]
    request.world.assert_even()


async def test_a_stranger_is_refused_without_reading_the_message() -> None:
    request = Request()
    await request("ModelInfer", lambda: pytest.fail("the body was read"), headers=())
    assert (request.status, request.kinds) == ("16", ["refused"])


async def test_a_refused_stream_is_told_once_its_client_has_spoken() -> None:
    """tritonclient raises without the reason where its stream is closed before its first message."""
    request = Request()
    told_before: list[int] = []
    spoken = body(frame(REQUEST), more=True)
    await request("ModelStreamInfer", lambda: told_before.append(len(request.sent)), spoken, headers=())
    assert (told_before, request.status, request.messages, request.kinds) == ([0], "16", [], ["refused"])


async def test_a_refused_stream_whose_client_keeps_silent_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.transports.asgi.FIRST_WORD", 0.01)
    request = Request()
    await request("ModelStreamInfer", headers=(), stays=True)
    assert request.status == "16"


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([body(frame(REQUEST) + frame(REQUEST))], "3"),
        ([body(frame(REQUEST), more=True), body(frame(REQUEST))], "3"),
        ([body()], "3"),
        ([body(frame(REQUEST)[:-1])], "3"),
        ([body(b"\x00\xff\xff\xff\xff")], "3"),
        ([body(b"\x07\x00\x00\x00\x00")], "3"),
        ([body(b"\x01\x00\x00\x00\x01x")], "12"),
    ],
    ids=["two messages", "two in two pieces", "none", "cut short", "too large", "bad flag", "compressed"],
)
async def test_what_is_not_one_message_is_refused(events: list[dict[str, Any]], status: str) -> None:
    request = Request()
    await request("ModelInfer", *events)
    assert (request.status, request.messages, request.upstream.calls) == (status, [], [])
    assert request.kinds == ["refused"]
    request.world.assert_even()


@pytest.mark.parametrize(("data", "told"), [(b"", b"no message"), (frame(REQUEST) * 2, b"more than one message")])
async def test_a_wrong_count_of_messages_is_named(data: bytes, told: bytes) -> None:
    request = Request()
    await request("ModelInfer", body(data))
    assert told + b" in a unary call" in dict(request.sent[-1]["headers"])[b"grpc-message"]


async def test_a_message_the_budget_has_no_room_for_is_refused() -> None:
    request = Request(buffer=len(REQUEST))
    await request("ModelInfer", body(frame(REQUEST)))
    assert (request.status, request.kinds) == ("8", ["refused"])
    request.world.assert_even()


async def test_a_message_that_does_not_come_by_the_deadline_is_refused() -> None:
    request = Request()
    headers = ((b"x-api-key", b"key"), (b"grpc-timeout", b"20m"))
    await request("ModelInfer", body(b"\x00", more=True), headers=headers, stays=True)
    assert (request.status, request.kinds) == ("4", ["refused"])
    request.world.assert_even()


async def test_a_client_that_leaves_while_uploading_is_answered_nothing() -> None:
    request = Request()
    await request("ModelInfer", body(frame(REQUEST)[:9], more=True), DISCONNECT)
    assert (request.sent, request.upstream.calls) == ([], [])
    request.world.assert_even()


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
async def test_a_client_that_leaves_during_its_answer_is_no_crash(taken: int) -> None:
    request = Request()
    request.gone_after = taken
    await request("ModelInfer", body(frame(REQUEST)))
    assert (len(request.sent), request.world.crashes) == (taken, [])
    request.world.assert_even()


async def test_a_client_that_reads_nothing_is_left() -> None:
    request = Request(slow=True, bounds=replace(BOUNDS, blocked_write=0.02))
    await request("ModelInfer", body(frame(REQUEST)))
    assert [event["type"] for event in request.sent] == ["http.response.start"]
    assert request.world.cut_off == ["MEMORY_TENSOR"]
    request.world.assert_even()


# --- the crash barrier --------------------------------------------------------------------------------------------


async def test_a_crash_is_internal_never_an_empty_answer() -> None:
    request = Request(ports=FakePorts(faults={"identify": ZeroDivisionError()}))
    await request("ModelInfer", body(frame(REQUEST)))
    assert request.status == "13"
    assert [type(fault) for fault in request.world.crashes] == [ZeroDivisionError]


async def test_a_crash_behind_a_client_that_left_raises_nothing() -> None:
    request = Request(ports=FakePorts(faults={"identify": ZeroDivisionError()}))
    request.gone_after = 0
    await request("ModelInfer", body(frame(REQUEST)))
    assert (request.sent, len(request.world.crashes)) == ([], 1)


async def test_a_crash_of_a_stream_ends_it_with_internal() -> None:
    request = Request()
    request.world.ports.faults["reserve"] = ZeroDivisionError()
    await request("ModelStreamInfer", body(frame(REQUEST)))
    assert (request.status, request.messages) == ("13", [])
    request.world.assert_even()
    await quiet("departures")


# --- a path that is no method's ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "query"), [(b"Model%49nfer", b""), (b"ModelInfer", b"x-api-key=k"), (b"%4dodel%49nfer", b"a")]
)
async def test_a_path_is_read_as_it_was_sent(raw: bytes, query: bytes) -> None:
    request = Request()
    await request("ModelInfer", body(frame(REQUEST)), raw_path=SERVICE.encode() + raw, query_string=query)
    assert (request.status, request.messages, request.upstream.calls) == ("12", [], [])


# --- not gRPC -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "content_type"),
    [("GET", b"application/grpc"), ("POST", b"application/json"), ("POST", b""), ("POST", b"application/grpc-web")],
)
async def test_plain_http_is_told_a_problem(verb: str, content_type: bytes) -> None:
    request = Request()
    await request("ModelInfer", body(b"{}"), verb=verb, content_type=content_type)
    assert request.sent[0]["status"] == 501
    assert request.headers[b"content-type"] == b"application/problem+json"
    assert json.loads(request.sent[1]["body"])["reason"] == "METHOD_UNKNOWN"
    assert request.kinds == []


@pytest.mark.parametrize("taken", [0, 1])
async def test_plain_http_that_left_is_no_crash(taken: int) -> None:
    request = Request()
    request.gone_after = taken
    await request("ModelInfer", body(), content_type=b"text/plain")
    assert request.world.crashes == []


async def test_grpc_with_its_encoding_named_is_grpc() -> None:
    request = Request()
    await request("ModelInfer", body(frame(REQUEST)), content_type=b"application/grpc+proto")
    assert request.status == "0"


async def test_an_unknown_method_is_unimplemented_and_recorded() -> None:
    request = Request()
    await request("/made.Up/Thing", body(frame(b"")))
    assert (request.status, request.kinds) == ("12", ["refused"])


# --- health -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"])
async def test_health_is_answered_to_anyone_and_not_recorded(name: str) -> None:
    request = Request()
    await request(name, body(frame(b"")), headers=())
    assert (request.status, request.messages, request.kinds) == ("0", [b"\x08\x01"], [])


async def test_a_watch_lasts_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "POLL", 0.001)
    request = Request()
    task = asyncio.ensure_future(request(WATCH, body(frame(b"")), headers=((b"grpc-timeout", b"100m"),)))
    while not request.sent:
        await asyncio.sleep(0)
    request.world.clock.pass_ms(101)
    await task
    assert (request.status, request.messages) == ("4", [b"\x08\x01"])


async def test_a_watch_ends_with_its_client_though_nothing_changes() -> None:
    request = Request()
    request.wire._departures[asyncio.get_running_loop()] = Departures(0.001)
    await asyncio.wait_for(request(WATCH, body(frame(b"")), body(), body(), DISCONNECT), 5)
    assert request.messages == [b"\x08\x01"]
    assert (request.world.crashes, len(request.live)) == ([], 0)
    await quiet("departures")


async def test_a_watch_whose_client_leaves_at_once_is_answered_nothing() -> None:
    request = Request()
    await request(WATCH, body(b"\x00", more=True), DISCONNECT)
    assert (request.sent, len(request.live)) == ([], 0)


@pytest.mark.parametrize(
    ("events", "status"), [([body(b"x" * 40_000, more=True)] * 2, "3"), ([body(b"\x00", more=True)], "4")]
)
async def test_a_watchs_request_is_bounded(events: list[dict[str, Any]], status: str) -> None:
    request = Request()
    await request(WATCH, *events, headers=((b"grpc-timeout", b"20m"),), stays=True)
    assert (request.status, request.messages, len(request.live)) == (status, [], 0)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([body(frame(b""))], "0"),
        ([body(frame(b"\x0a\x1einference.GRPC"), more=True), body(b"")], "3"),
        ([body(frame(b"\x0a\x1einference.GRPCInferenceService")[:9], more=True),
          body(frame(b"\x0a\x1einference.GRPCInferenceService")[9:])], "0"),
        ([body(frame(b"\x0a\x04chat"))], "5"),
        ([body(frame(b"") * 2)], "3"),
        ([body()], "3"),
        ([body(b"\x01" + frame(gzip.compress(b"\x0a\x04chat"))[1:])], "5"),
        ([body(frame(b"")[:3])], "3"),
        ([body(b"x" * 40_000, more=True)] * 2, "3"),
        ([body(b"\x00", more=True)], "4"),
    ],
)  # fmt: skip
async def test_a_check_is_of_the_service_that_it_names(events: list[dict[str, Any]], status: str) -> None:
    request = Request()
    headers = ((b"grpc-timeout", b"50m"), (b"grpc-encoding", b"gzip"))
    await request("/grpc.health.v1.Health/Check", *events, headers=headers, stays=True)
    assert (request.status, request.messages) == (status, [b"\x08\x01"] if status == "0" else [])
    assert (request.kinds, len(request.live), request.world.crashes) == ([], 0, [])


async def test_a_watch_of_another_service_is_told_so_and_goes_on() -> None:
    request = Request()
    task = asyncio.ensure_future(request(WATCH, body(frame(b"\x0a\x04chat"))))
    while len(request.sent) < 2:
        await asyncio.sleep(0)
    assert (request.messages, task.done()) == ([b"\x08\x03"], False)
    request.live.cut_idle(DRAINED)
    await asyncio.wait_for(task, 5)
    await quiet("departures")


async def test_a_watch_beyond_those_that_may_be_open_is_refused() -> None:
    request = Request()
    request.wire._watches = health.Watches(request.live, most=1)
    with request.wire._watches.one():
        await request(WATCH, body(frame(b"")))
    assert (request.status, request.messages) == ("8", [])


async def test_a_drain_ends_a_watch_at_once() -> None:
    request = Request()
    task = asyncio.ensure_future(request(WATCH, body(frame(b""))))
    while not request.sent:
        await asyncio.sleep(0)
    request.live.cut_idle(DRAINED)
    await asyncio.wait_for(task, 5)
    assert (request.status, request.messages, len(request.live)) == ("14", [b"\x08\x01"], 0)
    await quiet("departures")


# --- streams ------------------------------------------------------------------------------------------------------


async def test_a_stream_is_answered_in_frames() -> None:
    request = Request(FakeUpstream([TOKEN]))
    await request("ModelStreamInfer", body(frame(REQUEST) + frame(REQUEST)))
    assert (request.status, request.messages) == ("0", [TOKEN, TOKEN])
    request.world.assert_even()
    await quiet("departures")


async def test_a_long_stream_does_not_use_up_the_budget_by_and_by() -> None:
    request = Request(FakeUpstream([TOKEN]), buffer=8 * len(REQUEST), bounds=replace(BOUNDS, calls_per_stream=1))
    await request("ModelStreamInfer", *(body(frame(REQUEST), more=True) for _ in range(30)), body())
    assert (request.status, len(request.messages)) == ("0", 30)
    request.world.assert_even()


async def test_a_streams_headers_are_sent_before_anything_is_answered() -> None:
    """pyvoy keeps them back until the first data, and a client waits for them before it sends more."""
    request = Request(FakeUpstream([]))
    task = asyncio.ensure_future(request("ModelStreamInfer", stays=True))
    while len(request.sent) < 2:
        await asyncio.sleep(0)
    assert [event["type"] for event in request.sent] == ["http.response.start", "http.response.body"]
    assert request.sent[1] == {"type": "http.response.body", "body": b"", "more_body": True}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_of_no_message_is_ok() -> None:
    request = Request()
    await request("ModelStreamInfer", body())
    assert (request.status, request.messages, request.kinds) == ("0", [], [])


async def test_a_streams_refusal_is_a_message_and_its_status_ok() -> None:
    request = Request(ports=FakePorts(denials={"reserve": Denial(Reason.CONCURRENCY)}))
    await request("ModelStreamInfer", body(frame(REQUEST)))
    (told,) = request.messages
    assert ModelStreamInferResponse.FromString(told).error_message.startswith("[CONCURRENCY]")
    assert request.status == "0"


async def test_a_stream_whose_client_disconnects_settles_its_calls() -> None:
    request = Request(FakeUpstream([]))
    await request("ModelStreamInfer", body(frame(REQUEST), more=True), DISCONNECT)
    assert request.world.outcomes == {"call-1/1": ("cancelled", "CLIENT_CANCELLED")}
    request.world.assert_even()
    await quiet("departures")


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_a_request_that_ends_inside_a_message_is_malformed(name: str) -> None:
    request = Request()
    await request(name, body(frame(REQUEST)[:-1]))
    assert request.status == "3"
    assert b"inside a message" in dict(request.sent[-1]["headers"])[b"grpc-message"]
    request.world.assert_even()


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_a_client_that_leaves_while_triton_works_is_noticed(name: str) -> None:
    request = Request(FakeUpstream([]))
    request.wire._departures[asyncio.get_running_loop()] = Departures(0.001)
    script = [body(frame(REQUEST)), DISCONNECT]
    await asyncio.wait_for(request(name, *script), 5)
    assert list(request.world.outcomes.values()) == [("cancelled", "CLIENT_CANCELLED")]
    assert request.upstream.calls[0].cancelled == 1
    request.world.assert_even()
    await quiet("departures")


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_a_drain_is_told_to_the_client(name: str) -> None:
    request = Request(FakeUpstream([]))
    task = asyncio.ensure_future(request(name, body(frame(REQUEST)), stays=True))
    while not request.upstream.calls:
        await asyncio.sleep(0)
    request.live.cut_all(DRAINED)
    await task
    assert request.status == "14"
    assert [reason for _, reason in request.world.outcomes.values()] == ["DRAINING"]
    request.world.assert_even()
    await quiet("departures")


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_cancelling_at_any_step_leaves_nothing_held(name: str) -> None:
    reached, step = True, 0
    while reached:
        script = [ANSWER, OK_END] if name == "ModelInfer" else [TOKEN]
        request = Request(FakeUpstream(script))
        data = frame(REQUEST)
        reached = await cancelled_at(step, request(name, body(data[:9], more=True), body(data[9:])))
        await quiet("departures")
        request.world.assert_even()
        assert request.world.crashes == []
        assert len(request.live) == 0
        step += 1
    assert step > 8


async def test_grpc_over_http_1_is_refused_where_its_client_sees_it() -> None:
    """Without trailers, a refusal would look like an empty answer."""
    request = Request()
    await request("ModelInfer", body(frame(REQUEST)), http_version="1.1")
    start, answer = request.sent
    assert start["status"] == 501
    assert "HTTP/2" in json.loads(answer["body"])["detail"]
    assert not request.upstream.calls


# --- what uploads may hold ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_an_upload_that_stands_still_is_ended(name: str) -> None:
    """Else half a message would be held until the deadline, and its room kept from others."""
    request = Request(bounds=replace(BOUNDS, blocked_write=0.05))
    await asyncio.wait_for(request(name, body(frame(REQUEST)[:-1], more=True), stays=True), 5)
    assert request.status == "8"
    assert b"no more of a message came" in dict(request.sent[-1]["headers"])[b"grpc-message"]
    request.world.assert_even()


async def test_a_stream_between_two_messages_may_stand_still() -> None:
    request = Request(FakeUpstream([TOKEN]), bounds=replace(BOUNDS, blocked_write=0.05, call_timeout=0.3))
    await asyncio.wait_for(request("ModelStreamInfer", body(frame(REQUEST), more=True), stays=True), 5)
    assert request.status == "4"  # its deadline's
    assert request.messages


async def test_one_tenants_uploads_leave_room_for_the_others() -> None:
    world = World(buffer=3 * len(REQUEST))
    request = Request()
    request.wire = AsgiWire(world.services, request.upstream, request.live)
    await request("ModelInfer", body(frame(REQUEST) + frame(REQUEST)))
    assert request.status == "8"
    assert b"[MEMORY_TENSOR]" in dict(request.sent[-1]["headers"])[b"grpc-message"]
    world.assert_even()


def bomb(size: int) -> bytes:
    grown = gzip.compress(bytes(size))
    return b"\1" + len(grown).to_bytes(4, "big") + grown


async def test_what_a_compressed_message_grows_to_is_of_the_budget() -> None:
    bounds = replace(BOUNDS, message_bytes=20 * INFLATED)
    request = Request(buffer=8 * INFLATED, bounds=bounds)
    await request("ModelInfer", body(bomb(10 * INFLATED)), headers=(*KEY, (b"grpc-encoding", b"gzip")))
    assert request.status == "8"
    assert b"[MEMORY_TENSOR]" in dict(request.sent[-1]["headers"])[b"grpc-message"]
    request.world.assert_even()


async def test_others_have_their_turn_while_a_message_grows() -> None:
    request = Request(buffer=100 * INFLATED, bounds=replace(BOUNDS, message_bytes=20 * INFLATED))
    calling = asyncio.ensure_future(
        request("ModelInfer", body(bomb(10 * INFLATED)), headers=(*KEY, (b"grpc-encoding", b"gzip")))
    )
    seen = set()
    while not calling.done():
        seen.add(request.world.budget.used // INFLATED)
        await asyncio.sleep(0)
    assert seen >= set(range(2, 10))
    assert request.status == "3"  # zeros are no message
    request.world.assert_even()


async def test_a_bound_listener_is_told_by_its_port_and_by_nothing_a_client_says() -> None:
    request = Request()
    request.port = 8015
    await request("ModelInfer", body(frame(REQUEST)), headers=())
    assert request.status == "0"
    (admission,) = [entry for kind, entry in request.world.ports.entries if kind == "admitted"]
    assert admission.call.credential.kind == "listener"  # type: ignore[attr-defined]
    assert admission.call.credential.secret.reveal() == b"127.0.0.1:8015"  # type: ignore[attr-defined]
    forged = Request()
    await forged("ModelInfer", body(frame(REQUEST)), headers=((b":authority", b"127.0.0.1:8015"), (b"host", b"a:8015")))
    assert forged.status == "16"
    ambiguous = Request()
    ambiguous.port = 8015
    await ambiguous("ModelInfer", body(frame(REQUEST)), headers=KEY)
    assert ambiguous.status == "16"

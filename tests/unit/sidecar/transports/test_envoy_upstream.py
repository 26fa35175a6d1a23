"""RPCs through Envoy's client: what is sent, how each ending reads, and the one way to reset an open stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from pyqwest import Headers, ReadError, Request, StreamError, StreamErrorCode, WriteError

from sidecar.core.model import Secret
from sidecar.core.reasons import Code
from sidecar.transports.budget import Budget
from sidecar.transports.envoy_upstream import EnvoyUpstream
from sidecar.transports.exchange import NO_BUFFER, UpstreamEnd
from sidecar.transports.grpc_frames import frame, prefix
from sidecar.transports.upstream import Restricted, UpstreamCall
from tests.support.wire import MODEL_INFER, STREAM_INFER

OK = Headers([("grpc-status", "0")])


class FakeResponse:
    """A response by script: chunks, a fault to raise, or an event to wait for."""

    def __init__(self, *script: Any, headers: Headers | None = None, trailers: Headers | None = None) -> None:
        self.status = 200
        self.headers = headers or Headers([])
        self.trailers = OK if trailers is None else trailers
        self.closed = 0
        self._script = script

    @property
    async def content(self) -> AsyncIterator[bytes]:
        for item in self._script:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, asyncio.Event):
                await item.wait()
            else:
                yield item

    async def aclose(self) -> None:
        self.closed += 1


class FakeTransport:
    """pyvoy's HTTPTransport: keeps the request, reads its body as Envoy does, answers with what it was given."""

    def __init__(self, answer: FakeResponse | Exception) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.sent = b""
        self.body_fault: BaseException | None = None
        self.body_over = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def execute(self, request: Request) -> FakeResponse:
        self.requests.append(request)
        self._reading = asyncio.ensure_future(self._read(request.content))
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _read(self, content: Any) -> None:
        if isinstance(content, bytes):
            self.sent = content
            self.body_over.set()
            return
        try:
            async for chunk in content:
                self.sent += bytes(chunk)
        except Exception as fault:  # noqa: BLE001 — what Envoy would reset the stream for
            self.body_fault = fault
        self.body_over.set()


PLENTY = Budget(2**30)


def unary(
    transport: FakeTransport, message: bytes = b"m", budget: Budget = PLENTY, suffix: bytes = b""
) -> UpstreamCall:
    return EnvoyUpstream(transport, budget).unary(MODEL_INFER, message, suffix, (("traceparent", "00-x"),))  # type: ignore[arg-type]  # a fake


def stream(transport: FakeTransport, message: bytes = b"m", suffix: bytes = b"+s") -> UpstreamCall:
    return EnvoyUpstream(transport, PLENTY).stream(STREAM_INFER, message, suffix, ())  # type: ignore[arg-type]  # a fake


async def everything(call: UpstreamCall) -> list[bytes | UpstreamEnd]:
    found: list[bytes | UpstreamEnd] = []
    while not found or not isinstance(found[-1], UpstreamEnd):
        found.append(await call.receive())
    assert await call.receive() == found[-1]  # an end stays an end
    return found


async def test_both_kinds_of_call_carry_the_restricted_secret() -> None:
    restricted = Restricted("warden", Secret(b"0123456789abcdef"))
    for streaming in (False, True):
        transport = FakeTransport(FakeResponse(frame(b"answer")))
        upstream = EnvoyUpstream(transport, PLENTY, restricted)  # type: ignore[arg-type]  # a fake
        if streaming:
            call = upstream.stream(STREAM_INFER, b"m", b"", (("traceparent", "00-x"),))
            call.half_close()
        else:
            call = upstream.unary(MODEL_INFER, b"m", b"", (("traceparent", "00-x"),))
        await everything(call)
        headers = dict(transport.requests[0].headers.items())
        assert headers["triton-grpc-protocol-warden"] == "0123456789abcdef"
        assert headers["traceparent"] == "00-x"


async def test_a_unary_call_sends_one_frame_and_what_it_was_given_beside_it() -> None:
    transport = FakeTransport(FakeResponse(frame(b"answer")))
    assert await everything(unary(transport)) == [b"answer", UpstreamEnd(0)]
    await transport.body_over.wait()
    (request,) = transport.requests
    assert transport.sent == frame(b"m")
    assert request.method == "POST"
    assert request.url == "http://triton/inference.GRPCInferenceService/ModelInfer"
    assert dict(request.headers.items()) == {
        "content-type": "application/grpc",
        "te": "trailers",
        "traceparent": "00-x",
    }


@pytest.mark.parametrize("size", [0, 10, 70_000])
async def test_a_message_of_any_size_arrives_whole(size: int) -> None:
    extended = partial(unary, suffix=b"+s")
    for open_call, expected in ((unary, b"x" * size), (extended, b"x" * size + b"+s"), (stream, b"x" * size + b"+s")):
        transport = FakeTransport(FakeResponse(frame(b"a")))
        call = open_call(transport, b"x" * size)
        await everything(call)
        call.half_close()
        await transport.body_over.wait()
        assert transport.sent == frame(expected)
        assert transport.body_fault is None


async def test_messages_are_given_one_by_one_however_they_arrived() -> None:
    data = frame(b"a") + frame(b"") + frame(b"bcd")
    for chunks in ([data], [data[n : n + 1] for n in range(len(data))]):
        assert await everything(stream(FakeTransport(FakeResponse(*chunks)))) == [b"a", b"", b"bcd", UpstreamEnd(0)]


@pytest.mark.parametrize(
    ("response", "end"),
    [
        (FakeResponse(trailers=Headers([("grpc-status", "3"), ("grpc-message", "bad%20shape")])), (3, "bad shape")),
        (FakeResponse(headers=Headers([("grpc-status", "5")]), trailers=Headers([])), (5, "")),
        (FakeResponse(trailers=Headers([("grpc-status", "x")])), (Code.UNKNOWN, "")),
        (
            FakeResponse(trailers=Headers([])),
            (Code.UNAVAILABLE, "upstream connect error: HTTP 200 without a gRPC status"),
        ),
    ],
)
async def test_a_status_is_in_the_trailers_or_among_the_headers(response: FakeResponse, end: tuple[int, str]) -> None:
    assert await everything(unary(FakeTransport(response))) == [UpstreamEnd(*end)]


@pytest.mark.parametrize(
    ("fault", "code", "gone"),
    [
        (ReadError("local stream reset"), Code.UNAVAILABLE, False),
        (ReadError("server request completed before the response"), Code.UNAVAILABLE, True),
        (WriteError("reset"), Code.UNAVAILABLE, False),
        (StreamError("refused", StreamErrorCode.REFUSED_STREAM), Code.UNAVAILABLE, False),
        (TimeoutError(), Code.DEADLINE_EXCEEDED, False),
    ],
)
async def test_a_fault_is_an_end_before_the_headers_and_after(fault: Exception, code: Code, gone: bool) -> None:
    for answer in (fault, FakeResponse(frame(b"a"), fault)):
        found = await everything(stream(FakeTransport(answer)))
        end = found[-1]
        assert isinstance(end, UpstreamEnd)
        assert (end.code, end.client_gone) == (code, gone)
        assert found[:-1] == ([] if answer is fault else [b"a"])


@pytest.mark.parametrize("chunk", [b"\x09\x00\x00\x00\x00", b"\x01\x00\x00\x00\x01x", b"\x00\xff\xff\xff\xff"])
async def test_bytes_that_are_no_message_are_an_internal_end(chunk: bytes) -> None:
    (end,) = await everything(unary(FakeTransport(FakeResponse(chunk))))
    assert isinstance(end, UpstreamEnd)
    assert end.code == Code.INTERNAL


async def test_a_stream_cut_inside_a_message_is_no_good_end() -> None:
    (end,) = await everything(unary(FakeTransport(FakeResponse(frame(b"abc")[:-1]))))
    assert isinstance(end, UpstreamEnd)
    assert end.code == Code.INTERNAL


# --- the body of a stream -----------------------------------------------------------------------------------------


async def test_what_is_held_of_half_a_message_is_of_the_budget_and_given_back() -> None:
    budget = Budget(1000)
    call = unary(FakeTransport(FakeResponse(prefix(900) + b"x" * 500, b"x" * 400)), budget=budget)
    assert await call.receive() == b"x" * 900
    assert budget.used == 0
    await call.cancel()
    assert budget.used == 0


async def test_a_message_that_does_not_fit_into_the_budget_ends_the_call() -> None:
    budget = Budget(1000)
    response = FakeResponse(prefix(2000) + b"x" * 600, b"x" * 600, b"x" * 800)
    call = unary(FakeTransport(response), budget=budget)
    end = await call.receive()
    assert isinstance(end, UpstreamEnd)
    assert end.denial is NO_BUFFER
    await call.cancel()
    assert budget.used == 0
    assert response.closed


async def test_a_streams_request_stays_open_until_it_is_half_closed() -> None:
    transport = FakeTransport(FakeResponse(frame(b"a"), asyncio.Event()))
    call = stream(transport)
    assert await call.receive() == b"a"
    for _ in range(5):
        await asyncio.sleep(0)
    assert (transport.sent, transport.body_over.is_set()) == (frame(b"m+s"), False)
    call.half_close()
    await transport.body_over.wait()
    assert transport.body_fault is None


async def test_cancelling_an_open_stream_resets_it_from_inside_its_body() -> None:
    response = FakeResponse(frame(b"a"), asyncio.Event())
    transport = FakeTransport(response)
    call = stream(transport)
    await call.receive()
    await call.cancel()
    await call.cancel()
    await transport.body_over.wait()
    assert type(transport.body_fault).__name__ == "_Reset"
    assert response.closed >= 1


async def test_cancelling_after_the_half_close_closes_the_response() -> None:
    response = FakeResponse(frame(b"a"), asyncio.Event())
    transport = FakeTransport(response)
    call = stream(transport)
    await call.receive()
    call.half_close()
    await call.cancel()
    await transport.body_over.wait()
    assert transport.body_fault is None
    assert response.closed == 1


async def test_cancelling_what_has_ended_or_was_never_begun_does_nothing() -> None:
    response = FakeResponse(frame(b"a"))
    call = unary(FakeTransport(response))
    await everything(call)
    await call.cancel()
    assert response.closed == 0
    await unary(FakeTransport(response)).cancel()
    await stream(FakeTransport(response)).cancel()

"""The portable wire as real clients of a real grpc.aio server meet it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from sidecar.transports import grpc_aio, grpc_frames, health
from sidecar.transports.exchange import DRAINED
from sidecar.transports.live import LiveRpcs
from sidecar.transports.outbox import ClientGone
from sidecar.triton.methods import HEALTH, KSERVE
from tests.support import h2, kserve
from tests.support.wire import OK_END, FakeUpstream, World

REQUEST: bytes = kserve.chat(b"hello", stream=False).SerializeToString()
ANSWER: bytes = kserve.response(("text_output", "BYTES", [1], kserve.packed(b"hi"))).SerializeToString()
CREDENTIAL = (("x-api-key", "key"),)
INFER, STREAM_INFER, WATCH = KSERVE + "ModelInfer", KSERVE + "ModelStreamInfer", HEALTH + "Watch"


class Wire:
    """A server on a world of its own, and a client of it."""

    def __init__(self, upstream: FakeUpstream | None = None, *, streams: int = 100) -> None:
        self.world = World()
        self.upstream = upstream or FakeUpstream([ANSWER, OK_END])
        self.live = LiveRpcs()
        self.interceptor = grpc_aio.WardenInterceptor(self.world.services, self.upstream, self.live)
        self._options = grpc_aio.server_options(100_000, 16_384, streams)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[grpc.aio.Channel]:
        server = grpc.aio.server(interceptors=[self.interceptor], options=self._options)
        port = server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await server.start()
        try:
            # Not a channel of the process' shared pool: another test's server may have had this port.
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
                yield channel
        finally:
            await server.stop(0)


async def aiter_of(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def infer(channel: grpc.aio.Channel, message: bytes = REQUEST) -> bytes:
    answer: bytes = await channel.unary_unary(INFER)(message, metadata=CREDENTIAL, timeout=20)
    return answer


async def test_a_unary_call_is_answered() -> None:
    wire = Wire()
    async with wire.client() as channel:
        assert await infer(channel) == ANSWER
    wire.world.assert_even()


async def test_one_connection_carries_no_more_streams_than_it_may() -> None:
    """The second waits at its client until the first has ended."""
    ended = asyncio.Event()
    wire = Wire(FakeUpstream([ended, ANSWER, OK_END]), streams=1)
    async with wire.client() as channel:
        first = asyncio.ensure_future(infer(channel))
        while not wire.upstream.calls:
            await asyncio.sleep(0)
        second = channel.unary_unary(INFER)(REQUEST, metadata=CREDENTIAL, timeout=0.3)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(wire.upstream.calls) == 1
        ended.set()
        assert await first == ANSWER
        async with asyncio.timeout(20):  # its server gives the buffers back once the answer is sent: after we have it
            while wire.world.budget.used:
                await asyncio.sleep(0)
    wire.world.assert_even()


# --- the crash barrier --------------------------------------------------------------------------------------------


def fail() -> bool:
    raise RuntimeError("secret detail")


@pytest.mark.parametrize("method", [INFER, STREAM_INFER, HEALTH + "Check", WATCH])
async def test_a_crash_is_counted_and_internal_and_its_text_untold(method: str) -> None:
    wire = Wire()
    wire.world.ports.faults["identify"] = RuntimeError("secret detail")
    wire.interceptor._services = replace(wire.world.services, ready=fail)
    async with wire.client() as channel:
        message = b"" if method.startswith(HEALTH) else REQUEST
        call = channel.stream_stream(method)(aiter_of(message), metadata=CREDENTIAL, timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await call.read()
    assert told.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in told.value.details()
    assert [str(fault) for fault in wire.world.crashes] == ["secret detail"]
    wire.world.assert_even()


async def test_a_crash_in_the_middle_of_a_stream_ends_it_with_internal() -> None:
    wire = Wire()
    wire.world.ports.faults["reserve"] = RuntimeError("secret detail")
    async with wire.client() as channel:
        call = channel.stream_stream(STREAM_INFER)(aiter_of(REQUEST), metadata=CREDENTIAL, timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await call.read()
    assert told.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in told.value.details()
    assert len(wire.world.crashes) == 1
    wire.world.assert_even()


async def test_a_refusal_is_no_crash() -> None:
    wire = Wire()
    async with wire.client() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await channel.unary_unary(INFER)(REQUEST, timeout=20)
    assert told.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert wire.world.crashes == []


# --- who leaves ---------------------------------------------------------------------------------------------------


async def test_writing_to_a_client_that_left_is_its_departure() -> None:
    """What grpc.aio's own write raises then is not part of its documented interface."""
    raised: list[BaseException] = []
    over = asyncio.Event()

    async def handler(_: object, context: grpc_aio.Context) -> None:
        await context.send_initial_metadata(())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # the client has left
            try:
                await grpc_aio._writer(context)(b"late")
            except BaseException as fault:  # noqa: BLE001 — looked at below
                raised.append(fault)
            over.set()
            raise

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("x", {"Y": grpc.stream_stream_rpc_method_handler(handler)})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.stream_stream("/x/Y")(timeout=20)
            await call.initial_metadata()
            call.cancel()
            await asyncio.wait_for(over.wait(), 20)
    finally:
        await server.stop(0)
    assert [type(fault) for fault in raised] == [ClientGone]


async def test_a_watch_ends_with_its_client_and_with_a_drain() -> None:
    wire = Wire()
    async with wire.client() as channel:
        leaving = channel.unary_stream(WATCH)(b"", timeout=20)
        staying = channel.unary_stream(WATCH)(b"", timeout=20)
        assert await leaving.read() == b"\x08\x01"
        assert await staying.read() == b"\x08\x01"
        leaving.cancel()
        while len(wire.live) > 1:
            await asyncio.sleep(0)
        wire.live.cut_idle(DRAINED)
        assert await staying.code() is grpc.StatusCode.UNAVAILABLE
    assert (len(wire.live), wire.world.crashes) == (0, [])


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", "OK"), (b"\x0a\x1einference.GRPCInferenceService", "OK"), (b"\x0a\x04chat", "NOT_FOUND"),
        (b"\xff", "INVALID_ARGUMENT"), (bytes(health.REQUEST_BYTES + 1), "INVALID_ARGUMENT"),
    ],
)  # fmt: skip
async def test_a_check_is_of_the_service_that_it_names(message: bytes, code: str) -> None:
    wire = Wire()
    async with wire.client() as channel:
        call = channel.unary_unary(HEALTH + "Check")(message, timeout=20)
        assert (await call.code()).name == code
        if code == "OK":
            assert await call == b"\x08\x01"


async def test_a_watch_of_another_service_goes_on() -> None:
    wire = Wire()
    async with wire.client() as channel:
        call = channel.unary_stream(WATCH)(b"\x0a\x04chat", timeout=20)
        assert await call.read() == b"\x08\x03"
        assert (call.done(), len(wire.live)) == (False, 1)
        refused = channel.unary_stream(WATCH)(b"\xff", timeout=20)
        assert await refused.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_answer_counts_until_its_client_has_it() -> None:
    """A client that reads nothing is sent 64 KiB (HTTP/2's first window); the rest waits here."""
    answer = bytes(300_000)
    wire = Wire(FakeUpstream([answer, OK_END]))
    async with wire.client():
        host, port = wire.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", INFER.encode()),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"x-api-key", b"key"),
        ]
        block = b"".join(h2.literal(*field) for field in head)
        writer.write(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0, b""))
        writer.write(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block))
        writer.write(h2.frame(h2.DATA, h2.END_STREAM, 1, grpc_frames.frame(REQUEST)))
        await reader.readexactly(60_000)
        assert set(wire.world.outcomes.values()) == {("completed", "")}
        assert wire.world.budget.used >= len(answer)
        writer.close()
        while wire.world.budget.used:
            await asyncio.sleep(0)
    wire.world.assert_even()


async def test_a_server_of_its_own_is_bound_to_its_principal() -> None:
    wire = Wire()
    wire.interceptor = grpc_aio.WardenInterceptor(wire.world.services, wire.upstream, wire.live, listener="[::1]:8015")
    async with wire.client() as channel:
        call = channel.unary_unary(INFER)
        assert await call(REQUEST, timeout=20) == ANSWER
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(REQUEST, metadata=CREDENTIAL, timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    (admission,) = [entry for kind, entry in wire.world.ports.entries if kind == "admitted"]
    assert admission.call.credential.kind == "listener"  # type: ignore[attr-defined]
    wire.world.assert_even()

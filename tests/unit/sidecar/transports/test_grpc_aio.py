"""The portable wire as real clients of a real grpc.aio server meet it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from sidecar.transports import grpc_aio
from sidecar.transports.live import LiveRpcs
from sidecar.triton.methods import HEALTH, KSERVE
from tests.support import kserve
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
        await server.start()
        try:
            # Not a channel of the process' shared pool: another test's server may have had this port.
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
                yield channel
        finally:
            await server.stop(0)


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
    wire.world.assert_even()

"""RPCs to Triton through a grpc.aio channel, over bytes: the portable wire's upstream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio

from sidecar.core.model import Method
from sidecar.core.reasons import Code
from sidecar.transports.exchange import UpstreamEnd
from sidecar.transports.upstream import Metadata, Restricted, UpstreamCall

# Both ways without a bound, as Triton and tritonclient have it; ours is bounds.message_bytes. No keepalive pings, which
# Triton answers with GOAWAY (facts/triton.md §6); no retries, which would be calls that nobody recorded. A Triton that
# is away is tried each second: by gRPC's own backoff calls were refused for two minutes after it was back.
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def connect(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class GrpcUpstream:
    """Opens RPCs on one ``grpc.aio.Channel``, within the event loop it was made in."""

    def __init__(self, channel: Any, restricted: Restricted | None = None) -> None:
        self._channel = channel
        self._restricted = restricted

    def unary(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        metadata = self._with_secret(metadata)
        # grpc takes one buffer, so here a suffix does cost a copy; a message without one is passed as it is.
        sent = message + suffix if suffix else message
        return _Unary(lambda: self._channel.unary_unary(method.path, None, None)(sent, metadata=metadata))

    def stream(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        metadata = self._with_secret(metadata)
        return _Stream(self._channel.stream_stream(method.path, None, None)(None, metadata=metadata), message + suffix)

    def _with_secret(self, metadata: Metadata) -> Metadata:
        return metadata if self._restricted is None else (*metadata, *self._restricted.metadata())


async def _end(call: Any) -> UpstreamEnd:
    code: grpc.StatusCode = await call.code()
    return UpstreamEnd(code.value[0], await call.details() or "")


class _Unary:
    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._call: Any = None

    async def receive(self) -> bytes | UpstreamEnd:
        if self._call is not None:
            return UpstreamEnd(Code.OK)
        self._call = self._start()
        try:
            message: bytes = await self._call
        except grpc.aio.AioRpcError as fault:
            return UpstreamEnd(fault.code().value[0], fault.details() or "")
        return message

    async def send(self, message: bytes, suffix: bytes) -> None:  # noqa: ARG002 — the Protocol's shape
        """Only a stream takes more: whoever asks it of a unary call broke the contract."""
        raise RuntimeError("a unary call has one message")

    def half_close(self) -> None:
        """A unary call is half-closed from the start."""

    async def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()


class _Stream:
    def __init__(self, call: Any, message: bytes) -> None:
        self._call = call
        self._unsent: deque[bytes] = deque([message])
        self._writing = asyncio.Lock()  # grpc.aio takes one write at a time; a read beside it is fine
        self._closing = False

    async def send(self, message: bytes, suffix: bytes) -> None:
        self._unsent.append(message + suffix)
        # One that fails ended the RPC: ``receive`` says how.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._write()

    async def _write(self) -> None:
        async with self._writing:
            while self._unsent:
                await self._call.write(self._unsent.popleft())

    async def receive(self) -> bytes | UpstreamEnd:
        try:
            if self._unsent:
                await self._write()
            if self._closing:
                self._closing = False
                await self._call.done_writing()
            item: bytes | object = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return await _end(self._call)  # the RPC ended while we wrote
        return item if isinstance(item, bytes) else await _end(self._call)

    def half_close(self) -> None:
        self._closing = True

    async def cancel(self) -> None:
        self._call.cancel()

"""The portable wire: a grpc.aio interceptor over bytes, for any grpc.aio server. Holds no rule of governance.

What gRPC's C library does before it hands a message over is beyond the budget: it decompresses by itself, up to
``message_bytes`` each, and holds uploads that are not whole yet, up to ``streams_per_connection`` × ``message_bytes``
for each connection. The production wire counts and times both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio

from sidecar.core.model import Action, Denial, Method
from sidecar.transports import health, render, unary
from sidecar.transports.budget import Held
from sidecar.transports.context import EXPIRED, FIRST_WORD, RpcContext, Services, governed, read
from sidecar.transports.exchange import CRASHED, NO_BUFFER
from sidecar.transports.live import LiveRpc, LiveRpcs
from sidecar.transports.outbox import ClientGone
from sidecar.transports.relay import StreamRelay
from sidecar.transports.upstream import Upstream
from sidecar.triton import methods

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
# What grpc.aio raises from writing to a client that is gone; its ExecuteBatchError is an InternalError.
_GONE: Final = (grpc.aio.UsageError, grpc.aio.AbortError, grpc.aio.InternalError, asyncio.InvalidStateError)
_OURS: Final = (methods.KSERVE, methods.HEALTH)
Context = Any  # grpc.aio.ServicerContext: its type names no read(), write() for bytes


def server_options(message_bytes: int, metadata_bytes: int, streams: int) -> tuple[tuple[str, int], ...]:
    """Options of a server that carries the interceptor; sizes in bytes, ``streams`` at once on one connection."""
    return (
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", metadata_bytes),
        ("grpc.absolute_max_metadata_size", metadata_bytes),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.so_reuseport", 0),  # otherwise a second server shares the port, unnoticed
    )


class WardenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Governs the inference service and gRPC health; other services of its server are left to their own handlers.

    ``listener``: the address of its server, where that is bound to one principal. Such a server has no other port.
    """

    def __init__(self, services: Services, upstream: Upstream, live: LiveRpcs, *, listener: str = "") -> None:
        self._services = services
        self._upstream = upstream
        self._live = live
        self._listener = listener
        self._watches = health.Watches(live)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        method = methods.lookup(path)
        if method.action is Action.UNKNOWN and not path.startswith(_OURS):
            other = await continuation(handler_call_details)
            if other is not None:
                return other
        return self._handler(method)

    def _handler(self, method: Method) -> Any:
        # Coroutine functions, not lambdas: grpc.aio looks at the function to know how to call it.
        async def stream(_: Any, context: Context) -> None:
            await self._stream(method, context)

        async def unary(_: Any, context: Context) -> bytes:
            return await self._unary(method, context)

        if method.streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        # Read as a stream, because grpc.aio takes the first of several messages for the only one, and waits until the
        # deadline where there is none; and so that who is turned away is told before the message is read.
        return grpc.stream_unary_rpc_method_handler(unary)

    def _context(self, method: Method, context: Context) -> RpcContext:
        remaining = context.time_remaining()
        timeout = None if remaining is None else max(0, int(remaining * 1e9))
        return read(
            self._services,
            method,
            tuple(context.invocation_metadata() or ()),
            _peer(context.peer()),
            certificate=_uris(context),
            listener=self._listener,
            timeout=timeout,
        )

    async def _unary(self, method: Method, context: Context) -> bytes:
        """The outermost frame is the crash barrier: grpc.aio would tell the client what was raised, text and all."""
        rpc = self._context(method, context)
        try:
            await _begin(context, rpc)
            answer = await self._serve(rpc, context)
        except ClientGone:
            return b""  # nobody is sent it
        except Exception as fault:  # noqa: BLE001 — DESIGN rule 7: crash the call, closed
            self._services.crashed(rpc.id, fault)
            answer = unary.Answer(None, render.status(CRASHED, rpc.id))
        if answer.message is not None:
            if answer.status.limits is not None:
                context.set_trailing_metadata(_fields(answer.status.limits))
            return answer.message
        await _abort(context, answer.status)
        raise AssertionError("abort returned")

    async def _serve(self, rpc: RpcContext, context: Context) -> unary.Answer:
        if not governed(rpc.method):
            return await self._health(rpc, context)
        held = unary.received(self._services, rpc)
        if isinstance(held, render.Status):
            return unary.Answer(None, held)
        context.add_done_callback(lambda _: held.release())  # the answer is sent by then; here it is only returned
        with self._live.track(rpc.credential) as live:
            try:
                return await self._answer(rpc, context, held, live)
            except asyncio.CancelledError:
                if live.ending is None:
                    raise
                return unary.Answer(None, render.status(live.ending, rpc.id))

    async def _health(self, rpc: RpcContext, context: Context) -> unary.Answer:
        if not health.names_service(rpc):
            return unary.Answer(health.answer(self._services, rpc), render.OK)
        asked = await self._asked(rpc, context)
        if isinstance(asked, Denial):
            return unary.Answer(None, render.status(asked, rpc.id))
        answer = health.check(self._services, rpc, asked)
        return unary.Answer(answer, render.OK) if isinstance(answer, bytes) else unary.Answer(None, answer)

    async def _asked(self, rpc: RpcContext, context: Context) -> bytes | Denial:
        """The first message of a request for health."""
        try:
            async with asyncio.timeout(health.patience(self._services, rpc)):
                message = await context.read()
        except TimeoutError:
            return EXPIRED
        if not isinstance(message, bytes):
            return unary.miscounted(0)
        return message if len(message) <= health.REQUEST_BYTES else health.TOO_LARGE

    async def _answer(self, rpc: RpcContext, context: Context, held: Held, live: LiveRpc) -> unary.Answer:
        found = []
        try:
            async with asyncio.timeout(rpc.remaining(self._services.now())):
                async for message in _messages(context, held):
                    found.append(message)
                    if len(found) > 1:
                        break
        except TimeoutError:
            return unary.Answer(None, unary.reject(self._services, rpc, EXPIRED))
        except BufferError:
            return unary.Answer(None, unary.reject(self._services, rpc, NO_BUFFER))
        if len(found) != 1:
            return unary.Answer(None, unary.reject(self._services, rpc, unary.miscounted(len(found))))
        return await unary.serve(self._services, rpc, self._upstream, held, live, found[0])

    async def _stream(self, method: Method, context: Context) -> None:
        rpc = self._context(method, context)
        try:
            await _begin(context, rpc, _fields(unary.begins(self._services, rpc)) if governed(method) else ())
            status = await self._serve_stream(rpc, context)
        except ClientGone:
            return
        except Exception as fault:  # noqa: BLE001 — as in _unary
            self._services.crashed(rpc.id, fault)
            status = render.status(CRASHED, rpc.id)
        if status.code != 0:
            await _abort(context, status)

    async def _serve_stream(self, rpc: RpcContext, context: Context) -> render.Status:
        if not governed(rpc.method):
            return render.status(await self._watch(rpc, context), rpc.id)
        status = unary.refuse(self._services, rpc)
        if status is None:
            return await self._relay(rpc, context)
        with suppress(TimeoutError):  # as on the production wire: asgi._first_word says why
            async with asyncio.timeout(FIRST_WORD):
                await context.read()
        return status

    async def _watch(self, rpc: RpcContext, context: Context) -> Denial:
        """How the Watch ended; grpc.aio ends it with its client."""
        with self._watches.one() as live:
            if live is None:
                return health.TOO_MANY
            write = _writer(context)
            try:
                asked = await self._asked(rpc, context)
                served = asked if isinstance(asked, Denial) else health.known(asked)
                if isinstance(served, Denial):
                    return served
                async for message in health.changes(self._services, rpc, served=served):
                    await write(message)
            except asyncio.CancelledError:
                if live.ending is None:
                    raise
                return health.ENDED
        return EXPIRED

    async def _relay(self, rpc: RpcContext, context: Context) -> render.Status:
        with unary.hold(self._services, rpc) as held:
            relay = StreamRelay(self._services, rpc, self._upstream, _writer(context), held, framed=False)
            with self._live.track(rpc.credential, relay.end_with, relay.idle) as live:
                try:
                    return await relay.run(_messages(context, held))
                except asyncio.CancelledError:
                    if live.ending is None:
                        raise
                    return render.status(live.ending, rpc.id)


async def _begin(context: Context, rpc: RpcContext, more: tuple[tuple[str, str], ...] = ()) -> None:
    try:
        await context.send_initial_metadata((("x-warden-call-id", rpc.id), *more))
    except _GONE as fault:
        raise ClientGone from fault


def _writer(context: Context) -> Callable[[bytes], Awaitable[None]]:
    async def write(message: bytes) -> None:
        try:
            await context.write(message)
        except _GONE as fault:
            raise ClientGone from fault

    return write


async def _messages(context: Context, held: Held) -> AsyncIterator[bytes]:
    while True:
        message = await context.read()
        if not isinstance(message, bytes):
            return
        if not held.take(len(message)):
            raise BufferError
        yield message


async def _abort(context: Context, status: render.Status) -> None:
    details: list[tuple[str, str | bytes]] = []
    if status.details:
        details.append(("grpc-status-details-bin", status.details))
    if status.regions is not None:
        details.append((render.REGIONS_HEADER, status.regions))
    details += _fields(status.limits)
    await context.abort(_CODES[int(status.code)], status.message, tuple(details))


def _fields(limits: render.RateFields | None) -> tuple[tuple[str, str], ...]:
    return () if limits is None else (("ratelimit-policy", limits[0]), ("ratelimit", limits[1]))


def _peer(peer: str) -> str:
    """``ipv4:127.0.0.1:52144`` → ``127.0.0.1:52144``; ``ipv6:%5B::1%5D:52144`` → ``[::1]:52144``."""
    return unquote(peer.partition(":")[2]) if peer.startswith(("ipv4:", "ipv6:")) else peer


def _uris(context: Context) -> tuple[str, ...]:
    """The URIs of the client's certificate, where it showed one; the server has verified it then."""
    found = context.auth_context().get("peer_uri", ())
    return tuple(uri.decode("utf-8", "replace") for uri in found)

"""The production wire: an ASGI app that Envoy hosts (pyvoy). Turns HTTP/2 into calls and back; holds no rule."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakKeyDictionary

from sidecar.core.model import Denial, MalformedRequest
from sidecar.core.reasons import Reason
from sidecar.transports import health, render, unary, xfcc
from sidecar.transports.asgi_exchange import Body, Receive, Reply, Send
from sidecar.transports.budget import Held
from sidecar.transports.context import EXPIRED, FIRST_WORD, RpcContext, Services, governed, read
from sidecar.transports.departures import Departures
from sidecar.transports.exchange import CRASHED, NO_BUFFER
from sidecar.transports.grpc_frames import FrameReader, UnsupportedEncoding
from sidecar.transports.live import LiveRpc, LiveRpcs
from sidecar.transports.outbox import ClientGone
from sidecar.transports.promptly import within
from sidecar.transports.relay import StreamRelay
from sidecar.transports.upstream import Upstream
from sidecar.triton import methods

Scope = dict[str, Any]

_NOT_GRPC: Final = Denial(Reason.METHOD_UNKNOWN, "this port speaks gRPC (content-type application/grpc)")
_NOT_HTTP2: Final = Denial(Reason.METHOD_UNKNOWN, "gRPC is spoken over HTTP/2 here, whose trailers end each answer")


class AsgiWire:
    """Serves gRPC to tenants; ``upstream`` works inside a request only, as pyvoy's client does.

    ``listeners``: the ports that are bound to one principal, and their addresses. The port is of the socket that the
    connection was taken on; nothing that a client sends changes it (facts/envoy.md).
    """

    def __init__(
        self,
        services: Services,
        upstream: Upstream,
        live: LiveRpcs,
        listeners: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._services = services
        self._upstream = upstream
        self._live = live
        self._listeners = listeners
        self._watches = health.Watches(live)
        self._departures: WeakKeyDictionary[asyncio.AbstractEventLoop, Departures] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. The outermost frame is the crash barrier: an app that raises is answered as an empty 200."""
        pairs = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
        certificate = next((xfcc.uris(value.decode("latin-1")) for name, value in pairs if name == xfcc.HEADER), ())
        method = methods.lookup(_path(scope))
        listener = self._listeners.get(scope["server"][1], "") if self._listeners else ""
        context = read(self._services, method, pairs, _peer(scope), certificate=certificate, listener=listener)
        reply = Reply(send, context.id, self._services)
        try:
            if not _is_grpc(scope):
                await reply.problem(_NOT_GRPC)
                return
            if scope["http_version"] != "2":
                await reply.problem(_NOT_HTTP2)
                return
            await self._serve(context, receive, reply)
        except ClientGone:
            return
        except Exception as fault:  # noqa: BLE001 — DESIGN rule 7: crash the call, closed
            self._services.crashed(context.id, fault)
            with suppress(ClientGone):
                await reply.finish(render.status(CRASHED, context.id))

    async def _serve(self, context: RpcContext, receive: Receive, reply: Reply) -> None:
        if not governed(context.method):
            await self._answer(context, receive, reply)
            return
        status = unary.received(self._services, context)
        if isinstance(status, Held):
            with status as held:
                body = Body(receive, held, self._services.bounds, context.encoding)
                serve = self._stream if context.method.streaming else self._unary
                with self._departures_here().watch(body.client_gone):
                    status = await serve(context, body, reply, held)
        elif context.method.streaming:
            await _first_word(receive)
        await reply.finish(status)

    def _departures_here(self) -> Departures:
        """One for each listener's loop."""
        loop = asyncio.get_running_loop()
        found = self._departures.get(loop)
        return self._departures.setdefault(loop, Departures()) if found is None else found

    async def _answer(self, context: RpcContext, receive: Receive, reply: Reply) -> None:
        if context.method.streaming:
            with self._watches.one() as live:
                denial = health.TOO_MANY if live is None else await self._watch(context, receive, reply, live)
            await reply.finish(render.status(denial, context.id))
            return
        answer: bytes | render.Status
        if health.names_service(context):
            asked = await self._asked(context, receive)
            if isinstance(asked, Denial):
                answer = render.status(asked, context.id)
            else:
                answer = health.check(self._services, context, asked)
        else:
            answer = health.answer(self._services, context)
        if isinstance(answer, bytes):
            await reply.message(answer)
            answer = render.OK
        await reply.finish(answer)

    async def _asked(self, context: RpcContext, receive: Receive) -> bytes | Denial:
        """The one message of a request for health. Taken from no budget: probes must not fail of that."""
        try:
            return await within(health.patience(self._services, context), _only(receive, context.encoding))
        except TimeoutError:
            return EXPIRED
        except MalformedRequest as fault:
            return Denial(fault.reason, fault.detail, rule="health")
        except UnsupportedEncoding as fault:
            return unary.undecodable(str(fault))

    async def _watch(self, context: RpcContext, receive: Receive, reply: Reply, live: LiveRpc) -> Denial:
        """How the Watch ended. Its client's departure is looked for all the while: nothing else may ever be sent."""

        async def gone() -> bool:
            return bool((await receive())["type"] == "http.disconnect")

        try:
            asked = await self._asked(context, receive)
            served = asked if isinstance(asked, Denial) else health.known(asked)
            if isinstance(served, Denial):
                return served
            with self._departures_here().watch(gone):
                async for message in health.changes(self._services, context, served=served):
                    await reply.message(message)
        except asyncio.CancelledError:
            if live.ending is None:
                raise
            return health.ENDED
        return EXPIRED

    # --- governed --------------------------------------------------------------------------------------------------

    async def _unary(self, context: RpcContext, body: Body, reply: Reply, held: Held) -> render.Status:
        with self._live.track(context.credential) as live:
            try:
                message = await self._only_message(context, body)
                if isinstance(message, render.Status):
                    return message
                answer = await unary.serve(self._services, context, self._upstream, held, live, message)
                if answer.message is not None:
                    await reply.message(answer.message)
            except asyncio.CancelledError:
                if live.ending is None:
                    raise
                return render.status(live.ending, context.id)
            else:
                return answer.status

    async def _only_message(self, context: RpcContext, body: Body) -> bytes | render.Status:
        """A unary RPC's one message; a status where there is none, or more, or it can't be read in time."""
        try:
            found = await within(context.remaining(self._services.now()), body.first(2))
        except TimeoutError:
            return unary.reject(self._services, context, EXPIRED)
        except MalformedRequest as fault:
            return unary.reject(self._services, context, Denial(fault.reason, fault.detail))
        except UnsupportedEncoding as fault:
            return unary.reject(self._services, context, unary.undecodable(str(fault)))
        except BufferError:
            return unary.reject(self._services, context, NO_BUFFER)
        if len(found) == 1:
            return found[0]
        return unary.reject(self._services, context, unary.miscounted(len(found)))

    async def _stream(self, context: RpcContext, body: Body, reply: Reply, held: Held) -> render.Status:
        relay = StreamRelay(self._services, context, self._upstream, reply.data, held, framed=True)
        with self._live.track(context.credential, relay.end_with, relay.idle) as live:
            await reply.start(render.rate_headers(unary.begins(self._services, context)))
            await reply.data(b"")  # pyvoy keeps headers back until the first data, which may be long in coming
            try:
                return await relay.run(body.messages())
            except asyncio.CancelledError:
                if live.ending is None:
                    raise
                return render.status(live.ending, context.id)


async def _first_word(receive: Receive) -> None:
    """A stream is refused once its client has sent something, or a second later.

    tritonclient raises, without the reason, from sending on a stream that was closed before its first message.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_WORD):
            await receive()


async def _only(receive: Receive, encoding: str) -> bytes:
    """A request's one message; raises ``ClientGone``, ``MalformedRequest``, ``UnsupportedEncoding``."""
    frames, size = FrameReader(health.REQUEST_BYTES, encoding), 0
    found: list[bytes] = []
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        data = event.get("body", b"")
        size += len(data)
        if size > health.REQUEST_BYTES:
            raise MalformedRequest(health.TOO_LARGE.detail, health.TOO_LARGE.reason)
        found += frames.feed(data)
        if not event.get("more_body", False):
            break
    frames.end()
    if len(found) != 1:
        raise MalformedRequest(unary.miscounted(len(found)).detail)
    return found[0]


def _path(scope: Scope) -> str:
    """The path as it was sent, query included: gRPC's has neither that nor escapes, and the portable wire reads it so.

    Unescaped, ``/…/Model%49nfer`` would be a method here that a proxy before us, by its rules, did not take it for.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    query: bytes = scope.get("query_string", b"")
    return (raw + b"?" + query if query else raw).decode("latin-1")


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


def _is_grpc(scope: Scope) -> bool:
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return scope["method"] == "POST" and (kind == b"application/grpc" or kind.startswith(b"application/grpc+proto"))

"""RPCs to Triton through Envoy's own HTTP/2 client (pyvoy's HTTPTransport); facts/envoy.md says what bites here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from pyqwest import Headers, ReadError, Request, Response, StreamError, WriteError

from sidecar.core.model import MalformedRequest, Method
from sidecar.core.reasons import Code
from sidecar.transports.budget import Budget, Held
from sidecar.transports.exchange import NO_BUFFER, UpstreamEnd
from sidecar.transports.grpc_frames import FrameReader, UnsupportedEncoding, decode_message, prefix
from sidecar.transports.upstream import Metadata, Restricted, UpstreamCall

if TYPE_CHECKING:
    from pyvoy.asgi.httpclient import HTTPTransport

CLUSTER: Final = "triton"
_ORIGIN: Final = "http://triton"
_JOIN_BELOW: Final = 64 * 1024  # bytes: below it one joined write is cheaper than a second chunk
_RESPONSE_LIMIT: Final = 2**31 - 1  # gRPC's own bound on a message
# pyvoy ends the upstream request with the server request's end; that is how a client's departure shows here.
_CLIENT_GONE: Final = "server request"


class _Reset(Exception):  # noqa: N818 — raised in a request body to reset its stream, seen by nobody else
    """Raised inside an open request body: the one way to cancel an upstream call before its headers are there."""


class EnvoyUpstream:
    """Opens RPCs on the cluster ``triton`` of the Envoy that hosts us."""

    def __init__(self, transport: HTTPTransport, budget: Budget, restricted: Restricted | None = None) -> None:
        self._transport = transport
        self._budget = budget
        self._restricted = restricted

    def unary(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        content: bytes | AsyncIterator[bytes]
        size = len(message) + len(suffix)
        content = _chunks(prefix(size), message, suffix) if size >= _JOIN_BELOW else prefix(size) + message + suffix
        return _EnvoyCall(self._transport, self._budget, self._request(method, metadata, content), None)

    def stream(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        body = _OpenBody(message, suffix)
        return _EnvoyCall(self._transport, self._budget, self._request(method, metadata, body.chunks()), body)

    def _request(self, method: Method, metadata: Metadata, content: bytes | AsyncIterator[bytes]) -> Request:
        if self._restricted is not None:
            metadata = (*metadata, *self._restricted.metadata())
        headers = Headers([("content-type", "application/grpc"), ("te", "trailers"), *metadata])
        return Request("POST", _ORIGIN + method.path, headers, content)


async def _chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        if part:
            yield part


class _OpenBody:
    """A request body that stays open after its messages until it is half-closed, or reset."""

    def __init__(self, message: bytes, suffix: bytes) -> None:
        self._parts: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._over = self._reset = False
        self.put(message, suffix)

    def put(self, message: bytes, suffix: bytes) -> None:
        parts = (prefix(len(message) + len(suffix)), message, suffix)
        if sum(map(len, parts)) < _JOIN_BELOW:
            self._parts.append(b"".join(parts))
        else:
            self._parts.extend(part for part in parts if part)
        self._wake.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        while not self._reset:
            if self._parts:
                yield self._parts.popleft()
            elif self._over:
                return
            else:
                self._wake.clear()
                await self._wake.wait()
        raise _Reset

    def half_close(self) -> None:
        self._over = True
        self._wake.set()

    def reset(self) -> None:
        """Where it is not half-closed yet."""
        if not self._over:
            self._reset = True
            self._wake.set()


class _EnvoyCall:
    """One upstream RPC; see ``UpstreamCall``. What is held of a message that is not whole yet is of the budget."""

    def __init__(self, transport: HTTPTransport, budget: Budget, request: Request, body: _OpenBody | None) -> None:
        self._transport = transport
        self._held = Held(budget)
        self._request: Request | None = request
        self._body = body
        self._response: Response | None = None
        self._content: AsyncIterator[bytes | memoryview | bytearray] | None = None
        self._frames = FrameReader(_RESPONSE_LIMIT)
        self._messages: deque[bytes] = deque()
        self._end: UpstreamEnd | None = None

    async def receive(self) -> bytes | UpstreamEnd:
        if self._messages:
            return self._messages.popleft()
        if self._end is not None:
            return self._end
        try:
            return await self._next()
        except (ReadError, WriteError, StreamError) as fault:
            text = str(fault)
            self._end = UpstreamEnd(Code.UNAVAILABLE, "upstream connect error: " + text, _CLIENT_GONE in text)
        except TimeoutError:
            self._end = UpstreamEnd(Code.DEADLINE_EXCEEDED, "upstream request timeout")
        except (MalformedRequest, UnsupportedEncoding) as fault:
            self._end = UpstreamEnd(Code.INTERNAL, f"unreadable response: {fault}")
        return self._end

    async def _next(self) -> bytes | UpstreamEnd:
        if self._request is not None:
            request, self._request = self._request, None
            self._response = await self._transport.execute(request)
            self._content = aiter(self._response.content)
        assert self._response is not None
        assert self._content is not None
        async for chunk in self._content:
            if not self._held.take(len(chunk)):
                self._end = UpstreamEnd(Code.RESOURCE_EXHAUSTED, denial=NO_BUFFER)
                return self._end
            self._messages.extend(self._frames.feed(bytes(chunk)))
            self._held.give(self._held.size - self._frames.buffered)
            if self._messages:
                return self._messages.popleft()
        end = _status(self._response)
        if end.code == Code.OK:
            self._frames.end()  # a good status behind half a message is no good end
        self._end = end
        return end

    async def send(self, message: bytes, suffix: bytes) -> None:
        assert self._body is not None
        self._body.put(message, suffix)

    def half_close(self) -> None:
        if self._body is not None:
            self._body.half_close()

    async def cancel(self) -> None:
        if self._body is not None:
            self._body.reset()
        self._held.give(self._held.size)
        if self._response is not None and (self._end is None or self._end.denial is not None):
            await self._response.aclose()


def _status(response: Response) -> UpstreamEnd:
    """The gRPC status of a finished response: in its trailers, or among its headers where it had no message."""
    for fields in (response.trailers, response.headers):
        value = fields.get("grpc-status")
        if value is not None:
            code = int(value) if value.isascii() and value.isdigit() else Code.UNKNOWN
            return UpstreamEnd(code, decode_message(fields.get("grpc-message", "")))
    return UpstreamEnd(Code.UNAVAILABLE, f"upstream connect error: HTTP {response.status} without a gRPC status")

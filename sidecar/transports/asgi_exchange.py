"""One gRPC request and its response as ASGI tells them: messages out of body events, events out of messages."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from sidecar.core.model import Denial, MalformedRequest
from sidecar.core.reasons import Reason
from sidecar.transports import render
from sidecar.transports.budget import Held
from sidecar.transports.context import Bounds, Services
from sidecar.transports.exchange import BLOCKED
from sidecar.transports.grpc_frames import ENCODINGS, FrameReader, encode_message
from sidecar.transports.outbox import ClientGone, pieces
from sidecar.transports.promptly import within

__all__ = ["Body", "Receive", "Reply", "Send"]

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_HEADERS: Final = [(b"content-type", b"application/grpc"), (b"grpc-accept-encoding", ",".join(ENCODINGS).encode())]
_OK_TRAILERS: Final = [(b"grpc-status", b"0")]


class Body:
    """The request's messages as they arrive. What is held of them counts against the budget."""

    def __init__(self, receive: Receive, held: Held, bounds: Bounds, encoding: str) -> None:
        self._receive = receive
        self._held = held
        self._blocked = bounds.blocked_write
        self._frames = FrameReader(bounds.message_bytes, encoding)
        self._whole = False

    async def client_gone(self) -> bool:
        """Whether the client has left, asked once its request is whole: until then ``messages`` finds out by itself.

        From then on pyvoy answers at once, with an empty request while the client is there (facts/envoy.md).
        """
        return self._whole and (await self._receive())["type"] == "http.disconnect"

    async def first(self, most: int) -> list[bytes]:
        """The first messages, ``most`` of them or until their end; raises as ``messages`` does."""
        event = await self._event()
        if event["type"] == "http.request" and not event.get("more_body", False):  # all at once: nearly always
            message = self._frames.alone(event.get("body", b""))
            if message is not None:
                self._take(len(message))
                self._whole = True
                return [message]
        return [message async for message in self.messages(most, event)]

    async def messages(self, most: int | None = None, event: dict[str, Any] | None = None) -> AsyncIterator[bytes]:
        """Each message is taken from the budget; who is given it gives it back. ``event``: the first, where it is here.

        Raises ``ClientGone``, ``MalformedRequest``, ``UnsupportedEncoding``, ``BufferError`` (the budget is spent).
        """
        count = 0
        while True:
            event = event or await self._event()
            if event["type"] == "http.disconnect":
                raise ClientGone
            data = event.get("body", b"")
            self._take(len(data))
            for flag, sent in self._frames.frames(data):
                on_wire = self._frames.wire_bytes
                message = sent if flag == 0 else await self._inflated(flag, sent)
                self._held.give(on_wire if flag else on_wire - len(sent))
                yield message
                count += 1
                if count == most:
                    return
            if not event.get("more_body", False):
                self._whole = True
                self._frames.end()
                return
            event = None

    def _take(self, size: int) -> None:
        if not self._held.take(size):
            raise BufferError

    async def _event(self) -> dict[str, Any]:
        """The next one. Half a message that does not go on would be held until the deadline."""
        if not self._frames.buffered:
            return await self._receive()
        try:
            return await within(self._blocked, self._received())
        except TimeoutError as fault:
            raise MalformedRequest(
                f"no more of a message came for {self._blocked:g} s", Reason.MEMORY_TENSOR
            ) from fault

    async def _received(self) -> dict[str, Any]:
        return await self._receive()

    async def _inflated(self, flag: int, message: bytes) -> bytes:
        """Others have their turn between two pieces, each of which is taken from the budget first."""
        whole = io.BytesIO()  # its value is not copied
        for piece in self._frames.inflate(flag, message):
            self._take(len(piece))
            if whole.tell():
                await asyncio.sleep(0)
            whole.write(piece)
        return whole.getvalue()


class Reply:
    """One response: headers once, data, trailers once; a blocked client is given ``blocked_write`` seconds."""

    def __init__(self, send: Send, call_id: str, services: Services) -> None:
        self._send = send
        self._call_id = call_id
        self._blocked_write = services.bounds.blocked_write
        self._cut_off = services.cut_off
        self._started = False
        self._finished = False

    async def _event(self, event: dict[str, Any]) -> None:
        try:
            await self._send(event)
        except OSError as fault:  # pyvoy's ClientDisconnectedError is one
            raise ClientGone from fault

    async def start(self, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._started = True
        headers = [*_HEADERS, (b"x-warden-call-id", self._call_id.encode()), *more]
        await self._event({"type": "http.response.start", "status": 200, "headers": headers, "trailers": True})

    async def data(self, data: bytes) -> None:
        await self._event({"type": "http.response.body", "body": data, "more_body": True})

    async def message(self, message: bytes) -> None:
        """One message; raises ``ClientGone`` too where the client takes nothing for too long."""
        if not self._started:
            await self.start()
        for piece in pieces(message):
            try:
                await within(self._blocked_write, self.data(piece))
            except TimeoutError as fault:  # a stream's client is cut off, and counted, by its relay
                self._cut_off(str(BLOCKED.reason))
                raise ClientGone from fault

    async def _bounded(self, write: Coroutine[Any, Any, None]) -> None:
        try:
            await within(self._blocked_write, write)
        except TimeoutError as fault:
            raise ClientGone from fault

    async def finish(self, status: render.Status) -> None:
        """End the RPC: trailers, after headers where nothing was sent yet.

        Not gRPC's trailers-only answer: clients would find the call id among the trailing metadata then, and among the
        initial metadata otherwise.
        """
        if not self._finished:
            self._finished = True
            await self._bounded(self._end(status))

    async def _end(self, status: render.Status) -> None:
        if not self._started:
            await self.start()
        await self._event({"type": "http.response.body", "body": b"", "more_body": False})
        await self._event(
            {"type": "http.response.trailers", "headers": _status_headers(status), "more_trailers": False}
        )

    async def problem(self, denial: Denial) -> None:
        """The whole answer to what speaks plain HTTP."""
        self._started = self._finished = True
        status, headers, body = render.problem(denial, self._call_id)
        await self._event({"type": "http.response.start", "status": status, "headers": headers})
        await self._bounded(self._event({"type": "http.response.body", "body": body}))


def _status_headers(status: render.Status) -> list[tuple[bytes, bytes]]:
    if status.code == 0:
        return _OK_TRAILERS if status.limits is None else [*_OK_TRAILERS, *render.rate_headers(status.limits)]
    fields = [
        (b"grpc-status", str(int(status.code)).encode()),
        (b"grpc-message", encode_message(status.message).encode()),
    ]
    if status.details:
        fields.append((b"grpc-status-details-bin", render.details_header(status.details)))
    if status.regions is not None:
        fields.append((render.REGIONS_HEADER.encode(), status.regions.encode()))
    return fields + render.rate_headers(status.limits)

"""An app that passes a unary gRPC call on, untouched, through Envoy's client: the least that a hosted wire can do."""

from __future__ import annotations

from typing import Any

from pyqwest import Headers, Request
from pyvoy.asgi.httpclient import HTTPTransport

_TRANSPORT = HTTPTransport("triton", timeout=600.0)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The ASGI app."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    headers = Headers([("content-type", "application/grpc"), ("te", "trailers")])
    response = await _TRANSPORT.execute(Request("POST", "http://triton" + scope["path"], headers, body))
    started = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/grpc")]}
    await send({**started, "trailers": True})
    async for chunk in response.content:
        await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    status = response.trailers.get("grpc-status", "2").encode()
    await send({"type": "http.response.trailers", "headers": [(b"grpc-status", status)], "more_trailers": False})

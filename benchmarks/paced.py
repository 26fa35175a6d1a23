"""A stand-in for a model that speaks at a steady pace; each token carries the moment it was sent."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.setup import STREAM, STREAM_MODEL, framed, token_response, told_of_itself

MARK: Final = b"@"
_DIGITS: Final = 19  # of monotonic ns, until 300 years after the machine's start
_READY: Final = b"\x08\x01"  # ServerReadyResponse{ready: true}
_BLANK: Final = MARK + b"0" * _DIGITS


def sent_ns(message: bytes) -> int | None:
    """The monotonic clock (one for all processes of a machine) when this token was sent; None: it is no token."""
    at = message.find(MARK)
    return int(message[at + 1 : at + 1 + _DIGITS]) if at >= 0 else None


def answer(tokens: int) -> tuple[int, int]:
    """The DATA bytes of one stream's tokens, and of its final response, which is empty."""
    return tokens * len(framed(token_response(_BLANK))), len(framed(token_response(b"", final=True)))


class _Paced(grpc.GenericRpcHandler):
    def __init__(self, tokens: int, every_s: float) -> None:
        self._tokens, self._every_s = tokens, every_s
        before, _, after = token_response(_BLANK).partition(_BLANK)
        self._before, self._after = before + MARK, after
        self._final = token_response(b"", final=True)
        self._told = told_of_itself(STREAM_MODEL)

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        told = self._told.get(handler_call_details.method.rpartition("/")[2], _READY)

        async def tell(_request: bytes, _context: Any) -> bytes:
            return told

        return grpc.unary_unary_rpc_method_handler(tell)

    async def _stream(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            due = time.monotonic()
            for _ in range(self._tokens):
                due += self._every_s
                if self._every_s:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                yield self._before + b"%019d" % time.monotonic_ns() + self._after
            yield self._final
            return


async def _serve(port: int, tokens: int, every_ms: int) -> None:
    server = grpc.aio.server(handlers=[_Paced(tokens, every_ms / 1000)], options=[("grpc.so_reuseport", 0)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:4])))

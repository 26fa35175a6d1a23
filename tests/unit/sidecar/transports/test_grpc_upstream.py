"""The portable wire's channel to Triton: one that is away is tried again soon, however long it has been."""

from __future__ import annotations

import asyncio
import time

from sidecar.transports.grpc_upstream import connect


async def attempts(wanted: int, within_s: float) -> int:
    """How often a peer that takes connections and drops them is connected to."""
    seen = 0

    async def drop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    channel = connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    until = time.monotonic() + within_s
    try:
        while seen < wanted and time.monotonic() < until:
            channel.get_state(try_to_connect=True)
            await asyncio.sleep(0.05)
    finally:
        await channel.close()
        server.close()
    return seen


def test_it_is_tried_each_second() -> None:
    """By gRPC's own backoff the sixth attempt comes after 16 s, and later ones after two minutes each."""
    assert asyncio.run(attempts(6, 12.0)) == 6

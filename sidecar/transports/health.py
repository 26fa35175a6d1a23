"""What the sidecar answers itself, to anyone, on either wire: is it alive, is it ready. Never recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from sidecar.transports.context import RpcContext, Services
from sidecar.triton import answers

POLL: Final = 1.0  # seconds between two looks of a Watch: health changes at the pace of its own checks


def answer(services: Services, context: RpcContext) -> bytes:
    """The one response message of ServerLive, ServerReady and Health/Check."""
    match context.method.name:
        case "ServerLive":
            return answers.server_live(live=True)
        case "ServerReady":
            return answers.server_ready(ready=services.ready())
        case _:
            return answers.health(serving=services.ready())


async def changes(services: Services, context: RpcContext) -> AsyncIterator[bytes]:
    """Health/Watch: the state now, then each change, until the deadline."""
    told: bool | None = None
    while context.remaining(services.now()) > 0:
        serving = services.ready()
        if serving is not told:
            told = serving
            yield answers.health(serving=serving)
        await asyncio.sleep(POLL)

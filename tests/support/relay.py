"""One client's stream on a world of its own, and the messages that go through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sidecar.transports import render
from sidecar.transports.budget import Held
from sidecar.transports.live import LiveRpcs
from sidecar.transports.relay import StreamRelay
from tests.support import kserve
from tests.support.wire import (
    STREAM_INFER,
    FakeClient,
    FakeUpstream,
    World,
    sending,
)


def ask(request_id: str = "r1", *, sequence: int = 0, empty_final: bool = False) -> bytes:
    message = kserve.chat(b"hello")
    message.id = request_id
    if sequence:
        message.parameters["sequence_id"].int64_param = sequence
        message.parameters["sequence_start"].bool_param = True
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    data: bytes = message.SerializeToString()
    return data


def token(text: bytes, *, request_id: str = "r1", final: bool = False) -> bytes:
    return kserve.streamed(
        kserve.response(("text_output", "BYTES", [1], kserve.packed(text)), id=request_id), final=final
    )


FINAL = kserve.streamed(kserve.response(id="r1"), final=True)  # the empty one of a decoupled model


class Rpc:
    """One client stream on a world of its own."""

    def __init__(self, upstream: FakeUpstream, **world: Any) -> None:
        self.world = World(**world)
        self.client = FakeClient()
        self.upstream = upstream
        self.live = LiveRpcs()

    async def run(
        self,
        *messages: bytes | Exception,
        forever: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
        source: Callable[[Held], AsyncIterator[bytes]] | None = None,
    ) -> render.Status:
        world = self.world
        with Held(world.budget) as held:
            context = world.context(STREAM_INFER, *headers)
            relay = StreamRelay(world.services, context, self.upstream, self.client.send, held, framed=False)
            with self.live.track(on_end=relay.end_with) as live:
                incoming = source(held) if source else sending(*messages, held=held, forever=forever)
                try:
                    return await relay.run(incoming)
                except asyncio.CancelledError:
                    assert live.ending or asyncio.current_task().cancelling()  # type: ignore[union-attr]  # we are in one
                    raise

    @property
    def told(self) -> list[str]:
        """What the client was sent: texts, refusals' reasons, or "final"."""
        found = []
        for each in self.client.streamed():
            answer = each.infer_response
            if each.error_message:
                found.append(answer.parameters["warden_reason"].string_param or f"error {each.error_message}")
            else:
                found.append(answer.raw_output_contents[0][4:].decode() if answer.outputs else "final")
        return found


async def until(holds: Callable[[], object]) -> None:
    for _ in range(200):
        if holds():
            return
        await asyncio.sleep(0)
    pytest.fail("the condition never came true")

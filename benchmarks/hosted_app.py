"""The production wire's own Python for one unary call, without Envoy: what of a hosted call is ours to cut."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import uvloop

from benchmarks.governance import Rig, rig
from benchmarks.setup import UNARY, framed
from sidecar.transports.asgi import AsgiWire
from sidecar.transports.exchange import UpstreamEnd
from sidecar.transports.live import LiveRpcs

_END = UpstreamEnd(0)


class _Upstream:
    """Answers at once."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def unary(self, *_: object) -> _Answer:
        return _Answer(self._answer)

    def stream(self, *_: object) -> _Answer:
        raise AssertionError("the benchmark makes unary calls only")


class _Answer:
    def __init__(self, answer: bytes) -> None:
        self._items: list[bytes | UpstreamEnd] = [_END, answer]

    async def receive(self) -> bytes | UpstreamEnd:
        return self._items.pop() if len(self._items) > 1 else self._items[0]

    def half_close(self) -> None:
        return

    async def cancel(self) -> None:
        return


class App:
    """The wire over a rig's rooms, called as Envoy's host calls it."""

    def __init__(self, made: Rig) -> None:
        self.wire = AsgiWire(made.services, _Upstream(made.response), LiveRpcs())
        self._body = {"type": "http.request", "body": framed(made.request), "more_body": False}
        self._scope = {
            "type": "http", "http_version": "2", "method": "POST", "path": UNARY, "client": ("127.0.0.1", 50000),
            "headers": [(name.encode(), value) for name, value in made.headers],
        }  # fmt: skip

    async def call(self) -> None:
        events: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return self._body

        async def send(event: dict[str, Any]) -> None:
            events.append(event)

        await self.wire(dict(self._scope), receive, send)
        assert (b"grpc-status", b"0") in events[-1]["headers"], events

    async def calls(self, number: int) -> None:
        """One after the other, each a task as the host makes it one."""
        loop = asyncio.get_running_loop()
        for _ in range(number):
            await loop.create_task(self.call())


def measure(*, quick: bool) -> dict[str, float]:
    """CPU µs a call: least and median round. Governance is in it."""
    with rig() as made:
        return run(made, rounds=4 if quick else 9, calls=1000 if quick else 2000)


def run(made: Rig, *, rounds: int, calls: int) -> dict[str, float]:
    """The same over rooms that are there already."""
    app = App(made)
    found: list[float] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(app.calls(200))
        for _ in range(rounds):
            began = time.process_time_ns()
            runner.run(app.calls(calls))
            found.append((time.process_time_ns() - began) / calls / 1000)
    return {"cpu_us_min": round(min(found), 1), "cpu_us_median": round(statistics.median(found), 1)}

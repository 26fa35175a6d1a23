"""Sends calls at a steady pace from a process of its own, so that what is measured is not the test's own time."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from tests.support.sidecar import INFER

_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)  # each place its own connection
_CALL_S: Final = 60.0
_WARM: Final = 5  # calls at each place before, which aren't counted
_SOON_S: Final = 0.5  # from when it is connected until the first calls are due


@dataclass(frozen=True, slots=True)
class Place:
    """Where ``each_second`` calls go, evenly spaced; ``warm``: headers of a few calls before, which aren't counted."""

    address: str
    headers: Mapping[str, str]
    warm: Mapping[str, str]
    each_second: float


@dataclass(frozen=True, slots=True)
class Sent:
    """One call: to which place, when (seconds after the beginning), and its gRPC code."""

    place: int
    due: float
    sent: float
    done: float
    code: str


class Pacer:
    """Open loop: who is slow to answer is sent no less. ``begins`` (monotonic) is when the first calls are due."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, begins: float) -> None:
        self._process, self._out, self.begins = process, out, begins

    def wait(self) -> list[Sent]:
        assert self._process.wait(600) == 0, "its stderr says why"
        return [Sent(*each) for each in json.loads(self._out.read_text())]


@contextmanager
def pacing(directory: Path, places: Sequence[Place], message: bytes, seconds: float) -> Iterator[Pacer]:
    """``message`` is a ModelInfer's request."""
    out = directory / f"sent-{time.monotonic_ns()}.json"
    plan = {
        "places": [[each.address, dict(each.headers), dict(each.warm), each.each_second] for each in places],
        "message": message.hex(), "seconds": seconds, "out": str(out),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.support.paced"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin, process.stdout as stdout:
            stdin.write(json.dumps(plan).encode())
            stdin.close()
            begins = stdout.readline()
        assert begins, "its stderr says why"
        yield Pacer(process, out, float(begins))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def _run(plan: Mapping[str, Any]) -> None:
    seen: list[Sent] = []
    message, places = bytes.fromhex(plan["message"]), [Place(*each) for each in plan["places"]]
    async with AsyncExitStack() as open_channels:
        channels = [grpc.aio.insecure_channel(each.address, options=_OPTIONS) for each in places]
        methods = [(await open_channels.enter_async_context(each)).unary_unary(INFER) for each in channels]
        for place, method in zip(places, methods, strict=True):
            for _ in range(_WARM):
                await method(message, metadata=tuple(place.warm.items()), timeout=_CALL_S)
        begins = time.monotonic() + _SOON_S
        print(begins, flush=True)
        async with asyncio.TaskGroup() as running:
            for number, (place, method) in enumerate(zip(places, methods, strict=True)):
                running.create_task(_place(running, number, place, method, message, begins, plan["seconds"], seen))
    told = [[each.place, each.due, each.sent, each.done, each.code] for each in seen]
    Path(plan["out"]).write_text(json.dumps(told))


async def _place(
    running: asyncio.TaskGroup, number: int, place: Place, method: Any, message: bytes, begins: float, seconds: float,
    seen: list[Sent],
) -> None:  # fmt: skip
    metadata = tuple(place.headers.items())

    async def one(due: float) -> None:
        sent = time.monotonic() - begins
        call = method(message, metadata=metadata, timeout=_CALL_S)
        code = await call.code()
        seen.append(Sent(number, due, sent, time.monotonic() - begins, code.name))

    for n in range(int(place.each_second * seconds)):
        due = (n + number / 8) / place.each_second  # places take turns
        await asyncio.sleep(max(0.0, begins + due - time.monotonic()))
        running.create_task(one(due))


if __name__ == "__main__":
    _plan = json.load(sys.stdin)
    gc.disable()  # a collection in the middle would be told as an answer's time; what is kept is a few MB
    asyncio.run(_run(_plan))

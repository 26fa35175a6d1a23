"""What a transport stands between, as fakes: ids in order, a Triton by script, a client; and cancellation anywhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sidecar.core.governor import Mode
from sidecar.core.model import Denial, Instant, Method
from sidecar.core.ports import Reader
from sidecar.transports.budget import Budget
from sidecar.transports.context import Bounds, Header, RpcContext, Services, read
from sidecar.transports.exchange import UpstreamEnd
from sidecar.triton.methods import KSERVE, METHODS
from sidecar.triton.protos import ModelStreamInferResponse
from tests.support.core import Clock, FakePorts, Stage, later
from tests.support.models import described, sequential
from tests.support.reading import reader as real_reader

if TYPE_CHECKING:
    from sidecar.core.governor import Recorded
from sidecar.transports.upstream import Metadata, Upstream, UpstreamCall
from sidecar.transports.waiting import WaitingRoom

MODEL_INFER = METHODS[KSERVE + "ModelInfer"]
STREAM_INFER = METHODS[KSERVE + "ModelStreamInfer"]
OK_END = UpstreamEnd(0)
BOUNDS = Bounds(message_bytes=100_000, stream_bytes=50_000, calls_per_stream=16, blocked_write=30.0, call_timeout=60.0)
_T = TypeVar("_T")


@dataclass
class CountedIds:
    """``Ids``, one after the other."""

    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def call(self, at: Instant) -> str:
        return f"call-{next(self.numbers)}"

    def trace(self) -> str:
        return f"{next(self.numbers):032x}"

    def span(self) -> str:
        return f"{next(self.numbers):016x}"

    def sampled(self) -> bool:
        return True


# The model of these tests: it speaks vLLM's contract, as the fake policy says, and keeps sequences too.
SEQUENTIAL: Final = described("chat", sequential("TYPE_UINT64") + "model_transaction_policy { decoupled: true }")


class World:
    """Services around a real governor and the real reader; all else is fake."""

    def __init__(
        self,
        *,
        bounds: Bounds = BOUNDS,
        buffer: int = 10**6,
        ports: FakePorts | None = None,
        mode: Mode = Mode.ENFORCE,
        reader: Reader | None = None,
    ) -> None:
        self.ports = ports or FakePorts()
        self.stage = Stage(self.ports, reader=reader or real_reader(SEQUENTIAL), mode=mode)
        self.clock = Clock()
        self.budget = Budget(buffer)
        self.crashes: list[BaseException] = []
        self.cut_off: list[str] = []
        self.ready = True
        self.durable: Callable[[Recorded], Future[Denial | None] | None] = lambda _: None
        self.services = Services(
            governor=self.stage.governor,
            now=self.clock,
            ids=CountedIds(),
            bounds=bounds,
            budget=self.budget,
            durable=self._durable,
            ready=lambda: self.ready,
            crashed=lambda _, fault: self.crashes.append(fault),
            cut_off=self.cut_off.append,
            waiting=WaitingRoom(),
        )

    def _durable(self, recorded: Recorded) -> Future[Denial | None] | None:
        return self.durable(recorded)

    def context(self, method: Method, *headers: Header) -> RpcContext:
        return read(self.services, method, (("x-api-key", "key"), *headers), "127.0.0.1:5000")

    @property
    def outcomes(self) -> dict[str, tuple[str, str]]:
        """How each settled call ended: id → (kind, reason)."""
        settled = [entry for kind, entry in self.ports.entries if kind == "settled"]
        return {entry[0]: (str(entry[2].kind), str(entry[2].reason or "")) for entry in settled}  # type: ignore[index]

    def assert_even(self) -> None:
        """Nothing is held any more, and every admitted call has just one outcome."""
        assert self.budget.used == 0
        self.stage.governor.sweep(later(1e9))  # by then Triton has ended all that was cancelled
        assert not self.ports.held
        assert self.stage.governor.in_flight == 0
        admitted = [entry.call.id for kind, entry in self.ports.entries if kind == "admitted"]  # type: ignore[attr-defined]
        settled = [entry[0] for kind, entry in self.ports.entries if kind == "settled"]  # type: ignore[index]
        assert sorted(admitted) == sorted(settled)


# --- Triton -------------------------------------------------------------------------------------------------------

Item = bytes | UpstreamEnd | Exception | asyncio.Event


class FakeCall:
    """One RPC by script: messages and the end are received, faults raised, events waited for; then it waits on."""

    def __init__(self, script: Iterable[Item], message: bytes, metadata: Metadata, streaming: bool) -> None:
        self.message = message
        self.metadata = metadata
        self.streaming = streaming
        self.more: list[bytes] = []  # messages behind the first
        self.half_closed = False
        self.cancelled = 0
        self.ended = False
        self._script = list(script)
        self._closed = asyncio.Event()

    async def receive(self) -> bytes | UpstreamEnd:
        await asyncio.sleep(0)
        while self._script:
            item = self._script.pop(0)
            match item:
                case asyncio.Event():
                    await item.wait()
                case Exception():
                    raise item
                case UpstreamEnd():
                    self.ended = True
                    return item
                case _:
                    return item
        await self._closed.wait()
        self.ended = True
        return OK_END

    async def send(self, message: bytes, suffix: bytes) -> None:
        await asyncio.sleep(0)
        self.more.append(message + suffix)

    def half_close(self) -> None:
        self.half_closed = True
        self._closed.set()

    async def cancel(self) -> None:
        self.cancelled += 1
        await asyncio.sleep(0)


class FakeUpstream:
    """``Upstream`` that answers the n-th RPC by the n-th script, and the rest by the last."""

    def __init__(self, *scripts: Iterable[Item]) -> None:
        self._scripts = [list(script) for script in scripts]
        self.calls: list[FakeCall] = []

    def _open(self, message: bytes, metadata: Metadata, streaming: bool) -> FakeCall:
        call = FakeCall(self._scripts[min(len(self.calls), len(self._scripts) - 1)], message, metadata, streaming)
        self.calls.append(call)
        return call

    def unary(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        return self._open(message + suffix, metadata, streaming=False)

    def stream(self, method: Method, message: bytes, suffix: bytes, metadata: Metadata) -> UpstreamCall:
        return self._open(message + suffix, metadata, streaming=True)


def _is_an_upstream(fake: FakeUpstream) -> Upstream:
    return fake


# --- the client ---------------------------------------------------------------------------------------------------


class FakeClient:
    """What a client was sent; ``blocked`` set, it takes nothing until the event is set. ``fault`` is raised instead."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.blocked: asyncio.Event | None = None
        self.fault: Exception | None = None

    async def send(self, data: bytes) -> None:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        if self.blocked is not None:
            await self.blocked.wait()
        self.received.append(data)

    def streamed(self) -> list[Any]:
        """As messages of ModelStreamInfer (for a client that is sent no frames)."""
        return [ModelStreamInferResponse.FromString(data) for data in self.received]


async def sending(*messages: bytes | Exception, held: Any, forever: bool = False) -> AsyncIterator[bytes]:
    """A client's messages as a wire gives them, taken from the budget; it half-closes, or stays, at their end."""
    for message in messages:
        await asyncio.sleep(0)
        if isinstance(message, Exception):
            raise message
        assert held.take(len(message))
        yield message
    if forever:
        await asyncio.Event().wait()


# --- cancellation -------------------------------------------------------------------------------------------------


async def cancelled_at(step: int, work: Coroutine[Any, Any, object], *, again: int | None = None) -> bool:
    """Run ``work``, cancel it after ``step`` turns of the loop (and again, later); False where it had ended by then."""
    task = asyncio.ensure_future(work)
    for _ in range(step):
        await asyncio.sleep(0)
    reached = not task.done()
    task.cancel()
    if again is not None:
        for _ in range(again):
            await asyncio.sleep(0)
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return reached


async def quiet(*besides: str) -> None:
    """Until no other task is left (but those of these names); fails where one stays."""
    for _ in range(50):
        await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    left = {task for task in others if task.get_name() not in besides}
    assert not left, left


def done(result: _T) -> Future[_T]:
    """A future that has come true."""
    future: Future[_T] = Future()
    future.set_result(result)
    return future

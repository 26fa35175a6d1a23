"""Calls that wait for room: let in when there is some, refused and recorded when there is none in time."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.core.model import Denial, Forward, replace
from sidecar.core.reasons import Reason
from sidecar.transports.exchange import Exchange
from sidecar.transports.waiting import LINE, WAITING
from sidecar.triton.methods import KSERVE, lookup
from tests.support.core import FakePorts
from tests.support.kserve import chat
from tests.support.wire import World

INFER = lookup(KSERVE + "ModelInfer")
REQUEST = chat().SerializeToString()
FULL = Denial(Reason.CONCURRENCY, retry_after=1.0, queue_ns=200_000_000)


def waiting(denial: Denial) -> tuple[World, Exchange, asyncio.Task[Forward | Denial]]:
    world = World(ports=FakePorts(denials={"reserve": denial}))
    exchange = Exchange(world.services, world.context(INFER).call(REQUEST))
    return world, exchange, asyncio.create_task(exchange.opened(world.context(INFER)))


async def until_waiting(world: World) -> None:
    while not world.services.waiting._lines:
        await asyncio.sleep(0)


async def test_a_call_is_let_in_when_something_is_given_back() -> None:
    world, exchange, task = waiting(FULL)
    await until_waiting(world)
    assert world.ports.entries == []  # it is not refused yet
    world.ports.denials.clear()
    world.services.waiting.wake()
    assert isinstance(await task, Forward)
    assert exchange.unsettled
    exchange.complete()
    world.assert_even()
    assert len(world.services.waiting) == 0


async def test_woken_in_vain_it_waits_on_and_is_refused_once_its_time_is_over() -> None:
    world, _, task = waiting(FULL)
    for _ in range(3):
        await until_waiting(world)
        world.services.waiting.wake()
        await asyncio.sleep(0)
    await until_waiting(world)
    world.clock.pass_ms(200)
    world.services.waiting.wake()
    assert await task == FULL
    assert world.stage.kinds == ["refused"]
    assert len(world.services.waiting) == 0


async def test_a_limit_of_time_that_has_no_room_in_time_refuses_at_once() -> None:
    world, _, task = waiting(Denial(Reason.RATE_REQUESTS, retry_after=0.201, queue_ns=200_000_000))
    assert isinstance(await task, Denial)
    assert world.stage.kinds == ["refused"]


async def test_a_limit_of_time_is_waited_out() -> None:
    world, _, task = waiting(Denial(Reason.RATE_REQUESTS, retry_after=0.001, queue_ns=200_000_000))
    await until_waiting(world)
    world.ports.denials.clear()
    assert isinstance(await task, Forward)


async def test_nobody_waits_beyond_the_deadline() -> None:
    world = World(ports=FakePorts(denials={"reserve": FULL}))
    context = world.context(INFER, ("grpc-timeout", "0m"))
    exchange = Exchange(world.services, context.call(REQUEST))
    assert await exchange.opened(context) == FULL


async def test_a_client_that_leaves_while_it_waits_is_recorded_as_refused() -> None:
    world, _, task = waiting(FULL)
    await until_waiting(world)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert world.stage.kinds == ["refused"]
    assert not world.services.waiting._lines
    assert len(world.services.waiting) == 0


async def test_no_more_wait_than_there_is_room_for() -> None:
    world, _, task = waiting(FULL)
    world.services.waiting._count = WAITING
    assert await task == FULL
    assert world.stage.kinds == ["refused"]


async def test_who_comes_later_is_not_let_in_before_those_who_wait() -> None:
    world, first, task = waiting(FULL)
    await until_waiting(world)
    world.ports.denials.clear()  # there is room now, but nobody was told yet
    later = Exchange(world.services, replace(world.context(INFER).call(REQUEST), id="later"))
    behind = asyncio.create_task(later.opened(world.context(INFER)))
    while len(world.services.waiting) < 2:
        await asyncio.sleep(0)
    assert not behind.done()
    world.services.waiting.wake()
    done, _ = await asyncio.wait({task, behind}, return_when=asyncio.FIRST_COMPLETED)
    assert task in done
    assert isinstance(await behind, Forward)  # who got in made way for the next
    for exchange in (first, later):
        exchange.complete()
    world.assert_even()


async def test_another_models_line_does_not_wait() -> None:
    world, _, task = waiting(FULL)
    await until_waiting(world)
    world.ports.denials.clear()
    other = Exchange(
        world.services, replace(world.context(INFER).call(chat(model="rag").SerializeToString()), id="other")
    )
    assert isinstance(await other.opened(world.context(INFER)), Forward)
    other.complete()
    world.services.waiting.wake()
    await task


@pytest.mark.parametrize("models", [("chat",), ("chat", "rag", "embed")])
async def test_one_tenant_does_not_take_the_whole_room(models: tuple[str, ...]) -> None:
    world = World(ports=FakePorts(denials={"reserve": FULL}))
    tasks = []
    requests = [chat(model=model).SerializeToString() for model in models]
    for n in range(LINE + 3):
        exchange = Exchange(world.services, replace(world.context(INFER).call(requests[n % len(models)]), id=f"c{n}"))
        tasks.append(asyncio.create_task(exchange.opened(world.context(INFER))))
    while sum(task.done() for task in tasks) < 3:
        await asyncio.sleep(0)
    assert len(world.services.waiting) == LINE
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(world.services.waiting) == 0
    assert not world.services.waiting._of
    assert world.stage.kinds == ["refused"] * (LINE + 3)

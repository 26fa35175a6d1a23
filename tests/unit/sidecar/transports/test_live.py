"""The RPCs under way: known while they are, and cut from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sidecar.transports.live import LiveRpc, LiveRpcs


async def test_an_rpc_is_known_while_it_lives() -> None:
    live = LiveRpcs()
    with live.track():
        assert len(live) == 1
    assert len(live) == 0
    with pytest.raises(ZeroDivisionError), live.track():
        raise ZeroDivisionError
    assert len(live) == 0


async def test_cutting_from_another_thread_tells_the_rpc_and_cancels_it_once() -> None:
    live, told = LiveRpcs(), []
    seen: list[LiveRpc] = []

    async def rpc() -> None:
        with live.track(lambda: told.append("drained")) as mine:
            seen.append(mine)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(rpc())
    while not seen:
        await asyncio.sleep(0)
    await asyncio.to_thread(live.cut_all)
    await asyncio.to_thread(live.cut_all)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (told, seen[0].drained, task.cancelling(), len(live)) == (["drained"], True, 1, 0)


async def test_cutting_an_rpc_that_has_ended_does_nothing() -> None:
    live = LiveRpcs()
    found: list[LiveRpc] = []

    async def rpc() -> None:
        with live.track() as mine:
            found.append(mine)

    await asyncio.ensure_future(rpc())
    found[0].cut()
    await asyncio.sleep(0)
    assert not found[0].drained


async def test_only_streams_with_nothing_under_way_are_cut_as_idle() -> None:
    live, busy = LiveRpcs(), [True]

    async def rpc(idle: Callable[[], bool] | None) -> None:
        with live.track(idle=idle):
            await asyncio.Event().wait()

    unary, stream = asyncio.ensure_future(rpc(None)), asyncio.ensure_future(rpc(lambda: not busy[0]))
    while len(live) < 2:
        await asyncio.sleep(0)
    await asyncio.to_thread(live.cut_idle)
    await asyncio.sleep(0)
    assert len(live) == 2
    busy[0] = False
    await asyncio.to_thread(live.cut_idle)
    with pytest.raises(asyncio.CancelledError):
        await stream
    assert not unary.done()
    unary.cancel()

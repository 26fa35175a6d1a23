"""The RPCs under way: known while they are, and cut from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sidecar.core.model import Credential, Denial, Secret
from sidecar.core.reasons import Reason
from sidecar.transports.exchange import DRAINED
from sidecar.transports.live import LiveRpc, LiveRpcs

REVOKED = Denial(Reason.KEY_REVOKED)


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
        with live.track(on_end=told.append) as mine:
            seen.append(mine)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(rpc())
    while not seen:
        await asyncio.sleep(0)
    await asyncio.to_thread(live.cut_all, DRAINED)
    await asyncio.to_thread(live.cut_all, REVOKED)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (told, seen[0].ending, task.cancelling(), len(live)) == ([DRAINED], DRAINED, 1, 0)


async def test_cutting_an_rpc_that_has_ended_does_nothing() -> None:
    live = LiveRpcs()
    found: list[LiveRpc] = []

    async def rpc() -> None:
        with live.track() as mine:
            found.append(mine)

    await asyncio.ensure_future(rpc())
    found[0].cut(DRAINED)
    await asyncio.sleep(0)
    assert found[0].ending is None


async def test_only_the_rpcs_of_a_withdrawn_credential_end() -> None:
    live = LiveRpcs()
    mine, theirs = Credential("api_key", Secret(b"a")), Credential("api_key", Secret(b"b"))
    seen: list[LiveRpc] = []

    async def rpc(credential: Credential | None) -> None:
        with live.track(credential) as tracked:
            seen.append(tracked)
            await asyncio.Event().wait()

    tasks = [asyncio.ensure_future(rpc(credential)) for credential in (mine, theirs, None)]
    while len(seen) < 3:
        await asyncio.sleep(0)
    await asyncio.to_thread(live.end_withdrawn, lambda credential: REVOKED if credential is mine else None)
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert [each.ending for each in seen] == [REVOKED, None, None]
    live.cut_all(DRAINED)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(live) == 0


async def test_only_streams_with_nothing_under_way_are_cut_as_idle() -> None:
    live, busy = LiveRpcs(), [True]

    async def rpc(idle: Callable[[], bool] | None) -> None:
        with live.track(idle=idle):
            await asyncio.Event().wait()

    unary, stream = asyncio.ensure_future(rpc(None)), asyncio.ensure_future(rpc(lambda: not busy[0]))
    while len(live) < 2:
        await asyncio.sleep(0)
    await asyncio.to_thread(live.cut_idle, DRAINED)
    await asyncio.sleep(0)
    assert len(live) == 2
    busy[0] = False
    await asyncio.to_thread(live.cut_idle, DRAINED)
    with pytest.raises(asyncio.CancelledError):
        await stream
    assert not unary.done()
    unary.cancel()

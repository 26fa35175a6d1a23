"""A client that left is noticed within a period, and only then is its task ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sidecar.transports.departures import Departures
from sidecar.transports.outbox import ClientGone


def asked(answers: list[bool]) -> Callable[[], asyncio.Future[bool]]:
    """Gives ``answers`` one after the other, the last one again and again."""

    async def gone() -> bool:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return gone  # type: ignore[return-value]  # a coroutine is awaited as well


async def test_a_client_that_leaves_ends_its_task() -> None:
    departures = Departures(0.001)
    with pytest.raises(ClientGone), departures.watch(asked([False, False, True])):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_one_that_stays_does_not_and_the_watcher_ends_with_the_last() -> None:
    departures = Departures(0.001)
    looks = 0
    enough = asyncio.Event()

    async def gone() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            enough.set()
        return False

    with departures.watch(gone):
        await enough.wait()
    watcher = departures._watcher
    assert watcher is not None
    await watcher


async def test_a_cancellation_by_others_stays_one() -> None:
    departures = Departures(60)

    async def serve() -> None:
        with departures.watch(asked([False])):
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert departures._watcher is not None
    departures._watcher.cancel()


async def test_a_look_that_fails_tells_nothing() -> None:
    departures = Departures(0.001)
    answers = [OSError(), True]

    async def gone() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with pytest.raises(ClientGone), departures.watch(gone):
        await asyncio.Event().wait()
    assert answers == []

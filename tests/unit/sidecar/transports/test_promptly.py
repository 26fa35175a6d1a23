"""``within`` behaves as ``asyncio.timeout`` around the same work, whether it waits or not."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.transports.promptly import within


async def _steps(seen: list[str], *waits: asyncio.Future[str] | None) -> str:
    try:
        for wait in waits:
            said = await (_pause() if wait is None else wait)
            seen.append(said)
    except BaseException as fault:
        seen.append(type(fault).__name__)
        raise
    return "done"


async def _pause() -> str:
    await asyncio.sleep(0)
    return "paused"


async def _asked(seen: list[str]) -> None:
    """Until the work has been asked to wait."""
    while not seen:
        await asyncio.sleep(0)


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def test_work_that_need_not_wait_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "timeout", lambda _: pytest.fail("a timer was set"))
    assert await within(1.0, _steps([])) == "done"


async def test_what_it_raises_at_once_is_raised() -> None:
    async def fails() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await within(1.0, fails())


async def test_work_that_waits_goes_on_through_every_step() -> None:
    first, second, seen = _loop().create_future(), _loop().create_future(), []
    task = asyncio.create_task(within(30.0, _steps(seen, None, first, None, second)))
    await _asked(seen)
    first.set_result("one")
    second.set_result("two")
    assert await task == "done"
    assert seen == ["paused", "one", "paused", "two"]


@pytest.mark.parametrize("waits_before", [0, 1])
async def test_what_takes_too_long_is_ended_and_told(waits_before: int) -> None:
    seen: list[str] = []
    with pytest.raises(TimeoutError):
        await within(0.01, _steps(seen, *[None] * waits_before, _loop().create_future()))
    assert seen[-1] == "CancelledError"


@pytest.mark.parametrize("waits_before", [0, 1])
async def test_a_cancellation_reaches_the_work(waits_before: int) -> None:
    seen: list[str] = []
    task = asyncio.create_task(within(30.0, _steps(seen, *[None] * waits_before, _loop().create_future())))
    for _ in range(4):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[-1] == "CancelledError"


async def test_what_is_waited_for_may_fail() -> None:
    wait, seen = _loop().create_future(), []
    task = asyncio.create_task(within(30.0, _steps(seen, wait)))
    await asyncio.sleep(0)
    wait.set_exception(OSError("reset"))
    with pytest.raises(OSError, match="reset"):
        await task
    assert seen == ["OSError"]

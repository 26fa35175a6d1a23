"""Waiting with a bound, with a timer only where there is something to wait for; and for what was cancelled to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")
_GONE_ON: Final = object()  # the first step was handed on


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns; raises ``TimeoutError`` where it takes more than ``seconds``.

    A timer costs 4 µs, and nearly every write is done as soon as it is begun; so the first step is made without one.
    """
    try:
        first = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(seconds):
        return await _Begun(work, first)


class _Begun(Generator[Any, Any, T]):
    """A coroutine whose first step is made: hands on what that step waits for, then goes on as the coroutine does."""

    __slots__ = ("_first", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], first: Any) -> None:
        self._work, self._first = work, first

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        first, self._first = self._first, _GONE_ON
        return self._work.send(value) if first is _GONE_ON else first

    def throw(self, *fault: Any) -> Any:
        self._first = _GONE_ON
        return self._work.throw(*fault)

    def close(self) -> None:
        self._work.close()


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel ``tasks`` and wait for the last of them, also where we are cancelled (again) meanwhile.

    Each is cancelled once: a second time would cut short its own way out, or let it outlive who waits for it.
    """
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    interrupted = False
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError:
            interrupted = True
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: what it means was decided where its result was read
    if interrupted:
        raise asyncio.CancelledError

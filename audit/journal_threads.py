"""When a journal's fsync, measuring and read-back are due, and the two threads that do them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from audit.journal_bounds import (
    MEND_FIRST_S,
    MEND_LAST_S,
    PROBE_PERIOD_S,
    STATE_PERIOD_S,
    SYNC_DEADLINE_S,
    SYNC_PERIOD_S,
)
from audit.segments import JournalFault

__all__ = ["Ticker"]


class Ticked(Protocol):
    """The journal, as its threads see it."""

    @property
    def waited_for(self) -> bool: ...

    def sync(self) -> JournalFault | None: ...

    def measure(self) -> None: ...

    def look(self) -> None:
        """Read back, and release what may go."""
        ...

    def stall(self, seconds: float | None) -> None:
        """The sync under way has not answered for ``seconds``; None: it has."""
        ...

    @property
    def broken(self) -> bool:
        """Whether ``mend`` may help."""
        ...

    def mend(self) -> JournalFault | None: ...

    def bug(self, fault: Exception) -> None: ...


class Ticker:
    """Two threads, so that a disk that hangs in fsync doesn't also stop the one that would notice."""

    def __init__(self, journal: Ticked) -> None:
        self._journal = journal
        self._syncing_since: float | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._due = {"sync": 0.0, "state": 0.0, "probe": 0.0, "mend": 0.0}
        self._pause = MEND_FIRST_S

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def syncing(self) -> bool:
        return self._syncing_since is not None

    def wake(self) -> None:
        """Somebody waits for an fsync."""
        self._wake.set()

    def tick(self, now: float) -> None:
        """What is due at ``now`` (monotonic seconds)."""
        self.sync_tick(now)
        self.watch_tick(now)

    def sync_tick(self, now: float) -> None:
        if self._journal.waited_for or now >= self._due["sync"]:
            self._due["sync"] = now + SYNC_PERIOD_S
            self._syncing_since = now
            self._journal.sync()
            self._mend(now)
            self._syncing_since = None
            self._journal.stall(None)

    def _mend(self, now: float) -> None:
        """At once, then ever more seldom while it doesn't help: it may write whole segments anew."""
        if not self._journal.broken:
            if now >= self._due["mend"]:
                self._pause = MEND_FIRST_S
        elif now >= self._due["mend"]:
            self._due["mend"] = now + self._pause
            self._pause = min(self._pause * 2, MEND_LAST_S)
            self._journal.mend()

    def watch_tick(self, now: float) -> None:
        since = self._syncing_since
        if since is not None and now - since > SYNC_DEADLINE_S:
            self._journal.stall(now - since)
        if now >= self._due["state"]:
            self._due["state"] = now + STATE_PERIOD_S
            self._journal.measure()
        if now >= self._due["probe"]:
            self._due["probe"] = now + PROBE_PERIOD_S
            self._journal.look()

    def start(self, monotonic: Callable[[], float]) -> None:
        def guarded(tick: Callable[[float], None]) -> None:
            try:
                tick(monotonic())
            except Exception as bug:  # noqa: BLE001 — without its threads a journal proves nothing: closed, not silent
                self._journal.bug(bug)

        def sync() -> None:
            while not self._stop.is_set():
                self._wake.wait(SYNC_PERIOD_S)
                self._wake.clear()
                guarded(self.sync_tick)

        def watch() -> None:
            while not self._stop.wait(STATE_PERIOD_S):
                guarded(self.watch_tick)

        for name, run in (("journal-sync", sync), ("journal-watch", watch)):
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> str:
        """The name of a thread that did not end ("": all did): it hangs in the kernel."""
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(SYNC_DEADLINE_S)
            if thread.is_alive():
                return thread.name
        return ""

"""The refresher's thread outlives any fault of one turn, and the ring is told of each."""

from __future__ import annotations

import time

import pytest

from sidecar.core.model import Secret
from sidecar.identity.keys import KeyRing
from sidecar.identity.refresh import KeyRefresher
from tests.support.store import wait_until


def test_a_crash_of_one_turn_is_an_outage_and_does_not_end_the_refreshing(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(Secret(b"p" * 32), "live", max_age=60)
    refresher = KeyRefresher("host=/nowhere", ring, refresh=1, clock=time.time, monotonic=time.monotonic)
    turns: list[int] = []

    def crash() -> None:
        turns.append(len(turns))
        raise ZeroDivisionError

    monkeypatch.setattr(refresher, "_connect", crash)
    refresher.start()
    try:
        wait_until(lambda: len(turns) >= 2)
        assert ring.state.away
        assert refresher.status.fault == "ZeroDivisionError"
    finally:
        refresher.stop()

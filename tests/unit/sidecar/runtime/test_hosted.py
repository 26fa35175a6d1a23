"""The way out of the hosted process: whatever fails on it, the process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sidecar.runtime import drain, hosted
from sidecar.runtime.drain import Drain
from sidecar.transports.live import LiveRpcs
from tests.support.core import Stage


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the process would have been sent; the signal to drain has come."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(drain, "wait_for_signal", lambda: signal.SIGTERM)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def crash() -> None:
    raise RuntimeError("a bug of ours")


@pytest.mark.parametrize("finish", [crash, lambda: None], ids=["a bug", "no Envoy"])
def test_a_drain_that_fails_still_ends_the_process(
    killed: list[tuple[int, int]], tmp_path: Path, finish: Callable[[], None]
) -> None:
    sidecar = SimpleNamespace(drain=Drain(Stage().governor, LiveRpcs(), 0.0), stop=finish)
    hosted._way_out(sidecar, tmp_path)  # type: ignore[arg-type]  # all of a Sidecar that the way out asks
    assert killed == [(os.getpid(), signal.SIGKILL)]

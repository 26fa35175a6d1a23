"""`warden ship` as a child: kept running, with a growing pause, and ended with the sidecar."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.runtime import shipper as module
from sidecar.runtime.shipper import Shipper
from tests.support.store import wait_until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "_LAST_PAUSE", 0.04)
    monkeypatch.setattr(module, "_GRACE", 5.0)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Shipper]]:
    """Shippers to be ended with the test."""
    made: list[Shipper] = []
    yield made
    for each in made:
        each.stop()


def shell(script: str, started: list[Shipper], environment: dict[str, str] | None = None) -> Shipper:
    shipper = Shipper(("/bin/sh", "-c", script), environment or {"PATH": os.environ["PATH"]})
    started.append(shipper)
    shipper.start()
    return shipper


def pauses(caplog: pytest.LogCaptureFixture) -> list[float]:
    return [record.warden["restart_in"] for record in caplog.records if hasattr(record, "warden")]  # type: ignore[attr-defined]  # logs.event


def test_a_child_that_ends_is_started_anew_after_a_growing_pause(
    started: list[Shipper], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "warden.ship"):
        shipper = shell("exit 3", started)
        wait_until(lambda: shipper.restarts >= 4)
    assert pauses(caplog)[:4] == [0.01, 0.02, 0.04, 0.04]
    assert [record.warden["exit_code"] for record in caplog.records][:4] == [3] * 4  # type: ignore[attr-defined]  # logs.event


def test_a_child_that_ran_well_is_restarted_at_once(
    started: list[Shipper], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLED", 0.0)
    with caplog.at_level(logging.ERROR, "warden.ship"):
        shipper = shell("exit 0", started)
        wait_until(lambda: shipper.restarts >= 3)
    assert set(pauses(caplog)) == {0.01}


def test_a_child_that_cannot_be_started_is_tried_again(
    started: list[Shipper], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    program = tmp_path / "ship"
    shipper = Shipper((str(program),), {})
    started.append(shipper)
    with caplog.at_level(logging.ERROR, "warden.ship"):
        shipper.start()
        wait_until(lambda: shipper.restarts >= 2)
    assert caplog.records[0].message == "ship.unstarted"
    ran = tmp_path / "ran"
    whole = tmp_path / "whole"
    whole.write_text(f"#!/bin/sh\ntouch {ran}\n")
    whole.chmod(0o700)
    whole.rename(program)
    wait_until(ran.exists)


def test_stopping_asks_the_child_to_finish_and_waits(started: list[Shipper], tmp_path: Path) -> None:
    ready, finished = tmp_path / "ready", tmp_path / "finished"
    shipper = shell(f"trap 'touch {finished}; exit 0' TERM; touch {ready}; while :; do sleep 0.02; done", started)
    wait_until(ready.exists)
    shipper.stop()
    assert finished.exists()
    assert shipper.restarts == 0
    assert not shipper._thread.is_alive()


def test_a_child_that_will_not_end_is_killed(
    started: list[Shipper], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.2)
    ready = tmp_path / "ready"
    shipper = shell(f"trap '' TERM; touch {ready}; while :; do sleep 0.02; done", started)
    wait_until(ready.exists)
    shipper.stop()
    wait_until(lambda: not shipper._thread.is_alive())
    assert shipper._process is not None
    assert shipper._process.returncode == -9


def test_stopping_during_a_pause_starts_nothing_more(started: list[Shipper], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 60.0)
    shipper = shell("exit 1", started)
    wait_until(lambda: shipper.restarts == 1)
    shipper.stop()
    assert (shipper.restarts, shipper._thread.is_alive()) == (1, False)


def test_the_child_has_the_environment_it_was_given_and_no_more(started: list[Shipper], tmp_path: Path) -> None:
    told = tmp_path / "told"
    shell(f"env > {told}.part; mv {told}.part {told}; sleep 5", started, {"PATH": os.environ["PATH"], "ONLY": "this"})
    wait_until(told.exists)
    names = {line.partition("=")[0] for line in told.read_text().splitlines()}
    assert "ONLY" in names
    assert names <= {"PATH", "ONLY", "WARDEN_PARENT", "PWD", "SHLVL", "_", "OLDPWD"}

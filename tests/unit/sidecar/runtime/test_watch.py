"""The watch over a bundle's directory: what can't be loaded is told, once, whatever it is, and the old one stays."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from policies.source import BundleSource
from sidecar.runtime import watch
from sidecar.runtime.compose import check
from sidecar.runtime.inforce import Announcer
from sidecar.runtime.settings import load
from sidecar.runtime.watch import PolicyWatch
from sidecar.telemetry.instruments import PrometheusInstruments
from sidecar.triton.methods import METHODS
from tests.support.config import write


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PolicyWatch, BundleSource]:
    monkeypatch.setattr(watch, "LOOKS", 0)
    settings = load(write(tmp_path))
    settings.audit.journal.directory.mkdir(parents=True, exist_ok=True)
    source = check(settings)
    monkeypatch.setattr(source, "stirred", lambda: True)  # each look finds that something was written
    announcer = Announcer(lambda *_: None, lambda _: None)
    return PolicyWatch(
        settings, source, PrometheusInstruments(METHODS.values()), announcer, (sys.executable, {})
    ), source


def test_a_fault_of_the_loader_is_told_as_a_bad_bundle_is(
    watching: tuple[PolicyWatch, BundleSource], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy, source = watching
    before = source.current().digest

    def crashes(at: float) -> None:
        raise RecursionError("what it quotes is nobody's business")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "warden.lifecycle"):
        patch.setattr(source, "reload", crashes)
        policy.look()
        policy.look()
    assert policy.refusing
    assert source.current().digest == before
    assert "a fault of the loader's own: RecursionError" in policy.checks()["bundle"].detail
    assert [name for name in caplog.messages if name.startswith("bundle.")] == ["bundle.crashed", "bundle.refused"]
    policy.look()
    assert not policy.refusing

"""``warden policy replay``: what it says where it is stopped, and what it asks for before it opens contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from policies.replay import Told
from sidecar.cli import changes
from sidecar.cli.past import Replaying
from sidecar.cli.policy import app
from tests.support.policy import DEMO_BUNDLE


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["replay", str(DEMO_BUNDLE), *arguments])
    return result.exit_code, result.stdout, result.stderr


def stopped(self: Replaying, progress: Callable[[], None]) -> Iterator[Told]:
    """As where somebody presses Ctrl-C after three calls."""
    self.calls, self.at = 3, datetime(2026, 12, 1, tzinfo=UTC)
    progress()
    yield from ()
    raise KeyboardInterrupt


def test_one_that_was_stopped_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replaying, "changed", stopped)
    code, out, err = run("--since", "2026-11-30")
    assert code == changes.STOPPED
    assert out.splitlines()[-1] == "the first 3 calls of 2026-11-30T00:00:00+00:00 to 2026-12-01T00:00:00+00:00"
    assert err == "warden: stopped at 2026-12-01T00:00:00+00:00: not whole\n"
    code, out, err = run("--since", "2026-11-30", "--json")
    assert (code, out) == (changes.STOPPED, '{"changed": ['), "no JSON, so it passes for no whole answer"


def test_contents_are_opened_for_a_reason_only() -> None:
    code, out, err = run("--content")
    assert (code, out) == (2, "")
    assert "--content needs --reason TEXT" in err

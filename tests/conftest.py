"""Which tests run beside which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer


_ALONE = ("copies", "issuer", "journal", "lifecycle")  # none of them uses the session's sidecars


class _WiresBesideOthers(LoadScopeScheduling):
    """Three groups for `-n 2`: the tests on the wires, which mostly wait, beside all others; and whoever is done first
    has those on the wires that start sidecars of their own.

    Each group in one process and in order, so that it starts one Triton, one Postgres and one sidecar a wire.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not file.startswith("tests/integration/wire/"):
            return "others"
        return "alone" if file.removesuffix(".py").partition("/test_")[2] in _ALONE else "wires"


@pytest.hookimpl(optionalhook=True)  # with `-p no:xdist` nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Not xdist's own groups: its 3.8 finds none under pytest 9.2."""
    return _WiresBesideOthers(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests were run again because Triton died under them, and what it said: what kills it must not go unseen."""
    told = {
        (report.nodeid, words)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, words in getattr(report, "user_properties", ())
        if name == "again"
    }
    for nodeid, words in sorted(told):
        terminalreporter.line(f"run again, Triton died: {nodeid}: {words}")

"""Which tests run beside which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer


class _WiresBesideOthers(LoadScopeScheduling):
    """Two groups for `-n 2`: the tests on the wires, which mostly wait, and all others.

    Each group in one process and in order, so that it starts one Triton, one Postgres and one sidecar a wire.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "wires" if nodeid.startswith("tests/integration/wire/") else "others"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Not xdist's own groups: its 3.8 finds none under pytest 9.2."""
    return _WiresBesideOthers(config, log)

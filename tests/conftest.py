"""Which tests run beside which."""

from __future__ import annotations

from pathlib import Path

import pytest

_WIRES = Path(__file__).parent / "integration" / "wire"


@pytest.hookimpl(tryfirst=True)  # before xdist itself looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two groups for `-n 2 --dist loadgroup`: the tests on the wires, which mostly wait, and all others.

    Each group in one process and in order, so that it starts one Triton, one Postgres and one sidecar a wire.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group("wires" if item.path.is_relative_to(_WIRES) else "others"))

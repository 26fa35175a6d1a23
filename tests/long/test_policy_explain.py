"""What `policy explain` tells is what sidecars on the production wire do, over the whole grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_policy_explain import GRID, Pod, bundle, check_grid, pods

__all__ = ["bundle", "pods"]

pytestmark = pytest.mark.long


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("wire", ["envoy"])
def test_explain_and_the_running_sidecars_agree_over_the_grid(pods: dict[str, Pod], bundle: Path, wire: str) -> None:
    check_grid(pods, bundle, GRID)

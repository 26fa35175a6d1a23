"""Residency on real parts, over many topologies: prints what was stored where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import Server
from tests.support.stores import made, tours

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def test_what_is_kept_lies_where_its_tenant_lets_it_lie(postgres: Server, tmp_path: Path) -> None:
    """As tests/integration/audit/test_residency.py, of two hundred topologies."""
    stores = made(postgres, tmp_path)
    tours(stores, 200)
    print(stores.tally)
    assert stores.tally["with content"] > 0
    assert stores.tally["exceptions"] > 0
    assert stores.tally["retried"] > 0

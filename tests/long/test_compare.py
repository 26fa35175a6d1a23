"""``policy diff`` against every question of many random pairs of bundles, each put to both."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_compare import BUNDLES, Written, check_named

pytestmark = pytest.mark.long


@pytest.mark.timeout(3600)
@settings(max_examples=60, deadline=None)
@given(BUNDLES, BUNDLES, st.randoms(use_true_random=False))
def test_every_change_is_named_and_nothing_else(one: Written, other: Written, random: Random) -> None:
    """As in tests/property, but with every question of the grid, and every one of the others."""
    check_named(one, other, random, questions=10**9)

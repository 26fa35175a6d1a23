"""Ten thousand tokens with random kids, and more until two cooldowns have passed: what the issuer notices of them."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from sidecar.core.reasons import Reason
from tests.integration.wire.test_issuer import COOLDOWN_S, Forger, bearer, few_fetches, flood, issuer, reason, trusting
from tests.support.issuer import JwksServer
from tests.support.sidecar import Sidecar, echo
from tests.support.stack import eventually

__all__ = ["issuer", "trusting"]
pytestmark = [pytest.mark.integration, pytest.mark.long]

FLOOD = 10_000


def test_a_flood_over_two_cooldowns_makes_one_fetch_in_each(trusting: Sidecar, issuer: JwksServer) -> None:
    """With the cooldown of 30 s that a source by URL has."""
    forger, seen, began = Forger(time.time()), Counter[str](), time.monotonic()
    with trusting.bare() as bare:
        eventually(lambda: reason(bare.unary(echo(), bearer(forger.good()))) == "OK", what="the issuer's keys")
        while seen.total() < FLOOD or time.monotonic() - began < 2 * COOLDOWN_S + 5:
            seen += flood(bare, forger, 1000)
        assert set(seen) == {Reason.TOKEN_SIGNATURE}
        took = time.monotonic() - began
        print(
            f"\n{trusting.wire}: {seen.total()} random kids in {took:.0f} s: {few_fetches(issuer)}; every good one OK"
        )
        assert 3 <= len(issuer.asked) <= 2 + took // COOLDOWN_S  # at the start, and one a cooldown

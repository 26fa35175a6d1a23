"""Invariant: whatever the sidecar lets through, protobuf, the sidecar and Triton read as the same request."""

from __future__ import annotations

import random

import grpc
import pytest

from tests.support.differential import Tally, compare, mutated, seeds
from tests.support.stack import Triton

pytestmark = pytest.mark.long

MUTATIONS = 60_000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_tens_of_thousands_of_changed_requests(triton: Triton, seed: int) -> None:
    tally, rng = Tally(), random.Random(seed)
    with grpc.insecure_channel(triton.grpc) as channel:
        for _ in range(MUTATIONS):
            compare(channel, mutated(rng.choice(seeds()), rng), tally)
    print(dict(tally.ways))
    assert tally.differences == []
    assert tally.ways["compared"] > MUTATIONS // 20, tally.ways

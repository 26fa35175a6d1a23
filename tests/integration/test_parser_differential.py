"""Invariant: whatever the sidecar lets through, protobuf, the sidecar and Triton read as the same request."""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc
import pytest

from tests.support.differential import Tally, compare, mutated, seeds
from tests.support.stack import Triton

MUTATIONS = 3_000  # tests/long makes tens of thousands


@pytest.fixture
def channel(triton: Triton) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(triton.grpc) as channel:
        yield channel


def test_unchanged_requests_are_read_alike(channel: grpc.Channel) -> None:
    tally = Tally()
    for data in seeds():
        compare(channel, data, tally)
    assert tally.differences == []
    assert tally.ways == {"compared": len(seeds())}


def test_changed_requests_are_read_alike_or_refused(channel: grpc.Channel) -> None:
    tally, rng = Tally(), random.Random(3)
    for _ in range(MUTATIONS):
        compare(channel, mutated(rng.choice(seeds()), rng), tally)
    assert tally.differences == []
    assert tally.ways["compared"] > MUTATIONS // 20, tally.ways
    assert tally.ways["refused"] > MUTATIONS // 10, tally.ways

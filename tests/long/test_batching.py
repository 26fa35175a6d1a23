"""Requests of many tenants still meet in one batch: the mean batch through the sidecar against Triton's own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc.aio
import pytest

from tests.support.bundle import add_tenants
from tests.support.kserve import request
from tests.support.sidecar import INFER, Launch, Metadata
from tests.support.stack import Triton, eventually

pytestmark = [pytest.mark.integration, pytest.mark.long]

MODEL: Final = "simple"  # up to 8 a batch, which takes as long as one request: 40 ms
CONCURRENCY: Final = 12
REQUESTS: Final = 40  # of each worker, in one round
ROUNDS: Final = 3
TENANTS: Final = tuple(f"batch-{n}" for n in range(CONCURRENCY))
OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)


@dataclass(frozen=True, slots=True)
class Batches:
    """What the model was given meanwhile."""

    requests: float
    executions: float

    @property
    def mean(self) -> float:
        return self.requests / self.executions


def counted(triton: Triton, requests: float = 0) -> Batches:
    """Once the model's counters, which follow its answers, say at least so many ``requests``."""
    eventually(lambda: triton.metric("nv_inference_count", model=MODEL) >= requests, what="all of them counted")
    return Batches(
        triton.metric("nv_inference_count", model=MODEL), triton.metric("nv_inference_exec_count", model=MODEL)
    )


async def load(address: str, callers: Sequence[Metadata]) -> None:
    """Each caller asks again as soon as it has its answer, on a connection of its own."""
    values = struct.pack("<16i", *range(16))
    message = request(MODEL, *((f"INPUT{n}", "INT32", [1, 16], values) for n in range(2))).SerializeToString()

    async def one(headers: Metadata) -> None:
        async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
            call = channel.unary_unary(INFER)
            for _ in range(REQUESTS):
                await call(message, metadata=tuple(headers.items()), timeout=60)

    await asyncio.gather(*map(one, callers))


def test_the_mean_batch_is_within_a_tenth_of_triton_s_own(own: Launch, triton: Triton, bundle: Path, wire: str) -> None:
    add_tenants(bundle, TENANTS, models=[MODEL])
    sidecar = own()
    ways = {
        "direct": (triton.grpc, [{}] * CONCURRENCY),
        "through the sidecar": (sidecar.grpc, [sidecar.headers(tenant) for tenant in TENANTS]),
    }
    seen = {name: [0.0, 0.0] for name in ways}
    for _ in range(ROUNDS):  # by turns, so that both meet the same machine
        for name, (address, callers) in ways.items():
            before = counted(triton)
            asyncio.run(load(address, callers))
            after = counted(triton, before.requests + CONCURRENCY * REQUESTS)
            seen[name][0] += after.requests - before.requests
            seen[name][1] += after.executions - before.executions
    means = {name: Batches(*both).mean for name, both in seen.items()}
    print(f"\n{wire}: " + ", ".join(f"mean batch {name} {mean:.2f}" for name, mean in means.items()))
    for name, (requests, _) in seen.items():
        assert requests == ROUNDS * CONCURRENCY * REQUESTS, name
    assert means["direct"] > 2  # the model does batch
    assert abs(means["through the sidecar"] / means["direct"] - 1) <= 0.1
    sidecar.settles()

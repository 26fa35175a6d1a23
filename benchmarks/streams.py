"""Tokens of living streams: how many a second one core carries, and how much later each arrives."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from benchmarks import h2load
from benchmarks.h2load import Shape
from benchmarks.paced import answer, sent_ns
from benchmarks.routes import DIRECT, ENVOY, Route
from benchmarks.setup import STREAM, framed, stream_request

STREAMS = 4


def flood(routes: Sequence[Route], *, tokens: int, rounds: int) -> dict[str, Any]:
    """Four streams of ``tokens`` each, as fast as they come: CPU per token, and what that makes for one core."""
    cost: dict[str, list[float]] = {route.name: [] for route in routes}
    rate: dict[str, list[float]] = {route.name: [] for route in routes}
    body, (whole, last) = framed(stream_request(tokens)), answer(tokens)
    for number in range(rounds + 1):
        for route in routes:
            # The sidecar leaves the empty final response out where its client hasn't asked for it.
            expected = whole if route.governed else whole + last
            before = route.cpu()
            load = h2load.run(
                route.address, STREAM, body, Shape(STREAMS, clients=1, streams=STREAMS), token=route.token,
                answer_bytes=expected,
            )  # fmt: skip
            if number:  # the first is to warm up
                cost[route.name].append((route.cpu() - before) / (STREAMS * tokens))
                rate[route.name].append(STREAMS * tokens / load.took)
            route.shipped()
    return {
        name: {
            "rate": round(max(rate[name])),
            "cpu_us": round(min(costs), 2),
            "per_core": round(1e6 / min(costs)) if min(costs) else None,
        }
        for name, costs in cost.items()
        if name != DIRECT
    }


def paced(routes: Sequence[Route], *, streams: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Streams at a steady pace: from the model's sending a token to the client's having it, and CPU per token."""
    late: dict[str, list[list[float]]] = {route.name: [] for route in routes}
    cost: dict[str, list[float]] = {route.name: [] for route in routes}
    for _ in range(rounds):
        for route in routes:
            before = route.cpu()
            late[route.name].append(sorted(asyncio.run(_listen(route, streams, tokens))))
            cost[route.name].append((route.cpu() - before) / (streams * tokens))
            route.shipped()
    told: dict[str, Any] = {}
    for name, each in late.items():
        told[name] = {
            "p50_us": round(statistics.median(times[len(times) // 2] for times in each)),
            "p99_us": round(statistics.median(times[int(len(times) * 0.99)] for times in each)),
            "cpu_us": round(min(cost[name]), 1),
        }
    for row in told.values():
        row["p99_added_us"] = row["p99_us"] - told[ENVOY]["p99_us"]
    return told


async def _listen(route: Route, streams: int, tokens: int) -> list[float]:
    async with grpc.aio.insecure_channel(route.address) as channel:
        found = await asyncio.gather(*(_one(channel, route, tokens, number) for number in range(streams)))
    return [late for each in found for late in each]


async def _one(channel: grpc.aio.Channel, route: Route, tokens: int, number: int) -> list[float]:
    call: Any = channel.stream_stream(STREAM)(metadata=(("authorization", f"Bearer {route.token}"),), timeout=60)
    await call.write(stream_request(tokens, request_id=f"bench-{number}"))
    late: list[float] = []
    while len(late) < tokens:
        message = await call.read()
        sent = sent_ns(message) if message is not grpc.aio.EOF else None
        if sent is None:
            raise h2load.LoadFault(f"{route.name}: stream ended after {len(late)} of {tokens} tokens: {message!r}")
        late.append((time.monotonic_ns() - sent) / 1000)
    call.cancel()
    return late

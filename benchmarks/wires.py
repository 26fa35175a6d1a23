"""CPU, latency and throughput of one ModelInfer of 1 KB, each way in turn, round after round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from benchmarks import h2load
from benchmarks.h2load import Load, Shape
from benchmarks.processes import rss_mb
from benchmarks.routes import DIRECT, ENVOY, Route, warden
from benchmarks.setup import UNARY, framed, unary_request, unary_response

_CALM: Final = Shape(300, clients=1, streams=1)


@dataclass(slots=True)
class Measured:
    """One way, over all rounds."""

    cpu: list[float] = field(default_factory=list)  # µs per RPC, at full load
    cpu_half: list[float] = field(default_factory=list)  # the same at half load
    ship: list[float] = field(default_factory=list)  # µs per RPC
    rate: list[float] = field(default_factory=list)  # RPC/s
    calm: list[Load] = field(default_factory=list)  # one at a time
    half: list[Load] = field(default_factory=list)  # at half of what the sidecar can do
    rss: tuple[float, float] | None = None  # MB: at rest, after
    ship_rss: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """``requests`` of a full-load round; ``full`` names its shape; half load lasts ``half_s`` seconds."""

    rounds: int
    requests: int
    half_s: float
    answer_bytes: int


def measure(routes: Sequence[Route], plan: Plan) -> dict[str, Measured]:
    """Interleaved: each round goes every way once, so that what the machine does meanwhile hits all alike."""
    found = {route.name: Measured() for route in routes}
    body = framed(unary_request())
    warm = Shape(max(200, plan.requests // 10))
    for route in routes:
        _note_rss(route, found[route.name], first=True)
    for route in routes:
        _run(route, body, warm, plan)
        route.shipped()
    for _ in range(plan.rounds):
        for route in routes:
            _full(route, found[route.name], body, plan)
        rate = max(50, int(statistics.median(found[warden("envoy")].rate) / 2))
        for route in routes:
            _calm(route, found[route.name], body, rate, plan)
    for route in routes:
        _note_rss(route, found[route.name], first=False)
    return found


def _run(route: Route, body: bytes, shape: Shape, plan: Plan) -> Load:
    return h2load.run(route.address, UNARY, body, shape, token=route.token, answer_bytes=plan.answer_bytes)


def _full(route: Route, into: Measured, body: bytes, plan: Plan) -> None:
    before, ship = route.cpu(), route.ship_cpu()
    load = _run(route, body, Shape(plan.requests), plan)
    into.cpu.append((route.cpu() - before) / plan.requests)
    into.rate.append(load.rate)
    route.shipped()
    into.ship.append((route.ship_cpu() - ship) / plan.requests)


def _calm(route: Route, into: Measured, body: bytes, rate: int, plan: Plan) -> None:
    into.calm.append(_run(route, body, _CALM, plan))
    requests = max(100, int(rate * plan.half_s))
    before = route.cpu()
    into.half.append(_run(route, body, Shape(requests, clients=2, streams=32, rate=rate), plan))
    into.cpu_half.append((route.cpu() - before) / requests)
    route.shipped()


def _note_rss(route: Route, into: Measured, *, first: bool) -> None:
    for pid, name in ((route.pid, "rss"), (route.ship, "ship_rss")):
        if pid is not None:
            seen = rss_mb(pid)
            setattr(into, name, (seen, seen) if first else (getattr(into, name)[0], seen))


def summary(found: dict[str, Measured]) -> dict[str, Any]:
    """Least and median per way, and the ratio to the plain Envoy of the same round (median of rounds)."""
    plain = found[ENVOY]
    told: dict[str, Any] = {}
    for name, way in found.items():
        row: dict[str, Any] = {"rate": round(max(way.rate))}
        if name != DIRECT:
            row["cpu_us"] = {"min": round(min(way.cpu), 1), "median": round(statistics.median(way.cpu), 1)}
            row["cpu_half_us"] = round(statistics.median(way.cpu_half), 1)
            ratios = [mine / theirs for mine, theirs in zip(way.cpu, plain.cpu, strict=True) if theirs]
            row["cpu_ratio"] = round(statistics.median(ratios), 2)
        if name.startswith("warden"):
            row["ship_us"] = round(statistics.median(way.ship), 1)
        row["calm_us"] = _latency(way.calm)
        row["half_us"] = _latency(way.half)
        row["p50_ratio"] = round(row["calm_us"]["p50"] / _latency(plain.calm)["p50"], 2)
        row["p99_added_half_us"] = row["half_us"]["p99"] - _latency(plain.half)["p99"]
        if way.rss is not None:
            row["rss_mb"] = [round(mb) for mb in way.rss]
        if way.ship_rss is not None:
            row["ship_rss_mb"] = [round(mb) for mb in way.ship_rss]
        told[name] = row
    return told


def _latency(loads: Sequence[Load]) -> dict[str, int]:
    """The median round's p50 and p99."""
    return {
        "p50": round(statistics.median(load.percentile(50) for load in loads)),
        "p99": round(statistics.median(load.percentile(99) for load in loads)),
    }


def standin_plan(*, quick: bool) -> Plan:
    size = len(framed(unary_response()))
    return Plan(1, 1500, 1.0, size) if quick else Plan(3, 3000, 2.0, size)


def triton_plan(answer_bytes: int, *, quick: bool) -> Plan:
    return Plan(1, 400, 1.0, answer_bytes) if quick else Plan(2, 800, 2.0, answer_bytes)


def answer_size(address: str) -> int:
    """How many DATA bytes the upstream itself answers with, asked once by a stock client."""
    with grpc.insecure_channel(address) as channel:
        answer: bytes = channel.unary_unary(UNARY)(unary_request(), timeout=20)
    return len(framed(answer))

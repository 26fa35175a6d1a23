"""How long a forged, mangled or hostile credential takes to be refused, on both wires, each kind many times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.routes import WIRES
from benchmarks.setup import lifted_bundle, unary_request, warden_stack
from sidecar.cli.demo.stack import Parts, Stack
from sidecar.cli.demo.triton import Addresses
from tests.support.http2 import Raw
from tests.support.siege import issuers, suite

BAR_MS: Final = 5.0  # each, as the client sees it
_HEALTH: Final = "/grpc.health.v1.Health/Check"


def measure(directory: Path, around: Parts, upstream: str, *, quick: bool) -> dict[str, Any]:
    """By wire. Times in ms, seen by a client on one warm connection, so its own time and the wire's are in them."""
    directory.mkdir()
    bundle = lifted_bundle(directory / "bundle")
    found = {}
    for wire in WIRES:
        with _sidecar(directory / wire, around, upstream, bundle, wire) as stack:
            found[wire] = _besiege(stack, rounds=5 if quick else 25)
    return found


@contextmanager
def _sidecar(directory: Path, around: Parts, upstream: str, bundle: Path, wire: str) -> Iterator[Stack]:
    parts = Parts(around.otlp, Addresses(upstream, around.triton.http, around.triton.metrics), around.postgres_dsn)
    named = {"name": f"bench-refusals-{wire}", "identity": {"issuers": issuers(directory.parent)}}
    stack = warden_stack(directory, parts, wire, bundle, **named)
    stack.start()
    try:
        yield stack
    finally:
        stack.stop()


def _besiege(stack: Stack, *, rounds: int) -> dict[str, Any]:
    """Every attack in turn, round after round, so that what the machine does meanwhile meets all alike."""
    key = str(stack.info["tenants"]["acme"]["api_key"]).encode()
    raw, body = Raw(str(stack.info["grpc"])), unary_request()
    took: dict[str, list[float]] = {}
    health, good = list[float](), list[float]()
    for each in range(rounds + 1):
        for kind, (headers, reason) in suite(key, time.time()).items():  # made anew: some are of this very moment
            spent = _timed(lambda headers=headers: raw.call(body, headers), wanted=str(reason))
            if each:  # the first round warms up
                took.setdefault(kind, []).append(spent)
        for _ in range(10):
            health.append(_timed(lambda: raw.call(b"", (), path=_HEALTH), wanted="OK"))
            good.append(_timed(lambda: raw.call(body, [("x-api-key", key)]), wanted="OK"))
    raw.close()
    return _summary(took, health, good)


def _timed(call: Callable[[], Any], *, wanted: str) -> float:
    began = time.perf_counter()
    answer = call()
    spent = (time.perf_counter() - began) * 1e3
    if answer.reason != wanted:
        raise AssertionError(f"{answer.reason}, not {wanted}")
    return spent


def _summary(took: dict[str, list[float]], health: list[float], good: list[float]) -> dict[str, Any]:
    """The least of a kind's times is what it costs; its median, what it costs beside whoever else runs here."""
    least = {kind: min(times) for kind, times in took.items()}
    median = {kind: statistics.median(times) for kind, times in took.items()}
    every = sorted(spent for times in took.values() for spent in times)
    slowest = max(least, key=lambda kind: least[kind])
    calm = min(health)
    return {
        "attacks": len(took),
        "each": len(next(iter(took.values()))),
        "p50_ms": round(statistics.median(every), 2),
        "p99_ms": round(every[int(len(every) * 0.99)], 2),
        "slowest": slowest,
        "slowest_ms": round(least[slowest], 2),
        "slowest_median_ms": round(max(median.values()), 2),
        "over_bar": sum(spent > BAR_MS for spent in least.values()),
        "over_bar_median": sum(spent > BAR_MS for spent in median.values()),
        "health_ms": round(calm, 2),  # answered before anyone is identified: the client and the wire alone
        "added_ms": round(max(least.values()) - calm, 2),
        "good_p50_ms": round(statistics.median(good), 2),
    }

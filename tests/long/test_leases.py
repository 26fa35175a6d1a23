"""Three sidecars' quotas in processes of their own and a real Redis: 30 s over one limit, Redis hung and killed.

``pytest -m long -s tests/long/test_leases.py`` prints what was admitted and how long admissions took.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Usage
from sidecar.quotas.leases import LeaseKeeper, Posture
from sidecar.quotas.reach import Access, connect
from sidecar.quotas.shared import SharedQuotas
from tests.support.redis import RedisServer

pytestmark = pytest.mark.long
RATE, BURST, SECONDS, PODS = 100, 20, 30.0, 3
# What may be out when a window begins: for each pod two rounds' use and one advance of a round's part.
LEASES = PODS * (2 * RATE * 0.05 + RATE * 0.05)


def pod(url: str, name: str, begins: float, answers: Any) -> None:
    quotas = SharedQuotas(round_s=0.05)
    keeper = LeaseKeeper(
        quotas, connect(Access(url)), pod=name, prefix="eu", posture=Posture.FAIR_SHARE, monotonic=time.monotonic,
        between=random.uniform,
    )  # fmt: skip
    keeper.start()
    limits, admitted, took = Limits(requests=RequestRate(RATE, BURST)), [], []
    while time.monotonic() < begins:
        time.sleep(0.001)
    while (now := time.monotonic()) < begins + SECONDS:
        at = Instant(time.time_ns(), time.monotonic_ns())
        found = quotas.reserve("acme", "chat", limits, Demand(), at, enforce=True)
        took.append(time.monotonic() - now)
        if not isinstance(found, Denial):
            admitted.append(now - begins)
            quotas.settle(found, Usage(), at)
        time.sleep(0.004)  # 250 a second a pod are asked for: more than twice the whole
    keeper.stop()
    answers.put((admitted, took, keeper.round_trips))


@pytest.mark.parametrize("ill", ["well", "hung", "killed"])
def test_thirty_seconds_over_the_limit(ill: str, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    begins = time.monotonic() + 3.0
    pods = [context.Process(target=pod, args=(server.url, f"pod-{n}", begins, answers)) for n in range(PODS)]
    try:
        for each in pods:
            each.start()
        time.sleep(begins + 10 - time.monotonic())
        if ill == "hung":
            server.hang()
        elif ill == "killed":
            server.kill()
        time.sleep(5)
        if ill == "hung":
            server.go_on()
        elif ill == "killed":
            server.start()
        found = [answers.get(timeout=60) for _ in pods]
    finally:
        for each in pods:
            each.join(10)
        server.stop()
    admitted = sorted(moment for times, _, _ in found for moment in times)
    took = sorted(each for _, times, _ in found for each in times)
    calls = len(took)
    p99 = took[int(calls * 0.99)] * 1000
    worst = most_above(admitted)
    trips = sum(trips for _, _, trips in found)
    print(
        f"\n{ill}: {calls} calls, {len(admitted)} admitted in {SECONDS:g} s ({len(admitted) / SECONDS:.1f}/s), "
        f"most above rate x window + burst: {worst:.1f} (bound {LEASES:g}); admission p99 {p99:.3f} ms, "
        f"max {took[-1] * 1000:.2f} ms; {1000 * trips / calls:.0f} round trips per 1,000 calls"
    )
    assert worst <= LEASES
    assert len(admitted) >= 0.85 * RATE * SECONDS


def most_above(times: list[float]) -> float:
    """The most by which any window's count is above burst + rate x its length."""
    worst, lowest = float("-inf"), float("inf")
    for number, moment in enumerate(times):
        lowest = min(lowest, number - RATE * moment)
        worst = max(worst, number + 1 - RATE * moment - lowest)
    return worst - BURST

"""Leases from a real Redis: never above the whole, lost memory counts as spent, an outage is gone through."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Reservation, Usage
from sidecar.core.reasons import Reason
from sidecar.quotas.leases import POD_TTL_MS, LeaseKeeper, Posture, connect
from sidecar.quotas.shared import SharedQuotas
from tests.support.redis import RedisServer
from tests.support.stack import eventually

pytestmark = pytest.mark.integration
LIMITS = Limits(requests=RequestRate(100, 20))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.stop()


class Pod:
    """One sidecar's shared quotas; ``turn`` is a round of its keeper, at a time of the test's own."""

    def __init__(self, server: RedisServer, name: str, posture: Posture = Posture.FAIR_SHARE) -> None:
        self.quotas = SharedQuotas(round_s=0.05)
        self.keeper = LeaseKeeper(
            self.quotas, connect(server.url), pod=name, prefix="eu", posture=posture, monotonic=time.monotonic,
            between=random.uniform,
        )  # fmt: skip
        self.held: list[Reservation] = []
        self.now = 0.0

    def turn(self, seconds: float = 0.05) -> None:
        self.now += seconds
        self.keeper.round(self.now, seconds)

    def ask(self, limits: Limits = LIMITS, demand: Demand = Demand(), *, keep: bool = False) -> Denial | None:  # noqa: B008
        at = Instant(time.time_ns(), time.monotonic_ns())
        found = self.quotas.reserve("acme", "chat", limits, demand, at, enforce=True)
        if isinstance(found, Denial):
            return found
        if keep:
            self.held.append(found)
        else:
            self.quotas.settle(found, Usage(input_tokens=demand.tokens), at)
        return None

    def admitted(self, tries: int) -> int:
        return sum(self.ask() is None for _ in range(tries))


def aged(server: RedisServer) -> None:
    """A server that has been there for long: its buckets are full."""
    import redis  # noqa: PLC0415

    redis.Redis(port=server.port).set("{warden:eu}:born", 1)


def test_a_tenants_first_call_is_let_in_before_there_is_a_lease(server: RedisServer) -> None:
    pod = Pod(server, "a")
    assert pod.ask() is None
    denials = [pod.ask() for _ in range(10)]
    assert Reason.RATE_REQUESTS in {denial.reason for denial in denials if denial}


def test_pods_together_take_no_more_than_the_whole(server: RedisServer) -> None:
    aged(server)
    pods = [Pod(server, name) for name in "abc"]
    began = time.monotonic()
    admitted = 0
    for _ in range(20):
        for pod in pods:
            admitted += pod.admitted(50)
            pod.turn()
    admitted += sum(lease.left for pod in pods for lease in pod.quotas._shared["acme"].leases.values())
    took = time.monotonic() - began
    advances = 3 * 5  # what each pod may have spent before its round told of it: a round's part of the rate
    assert 20 - 3 <= admitted <= 20 + 100 * took + advances


def test_a_redis_that_lost_its_memory_counts_as_spent(server: RedisServer) -> None:
    aged(server)
    pod = Pod(server, "a")
    pod.admitted(50)
    pod.turn()
    pod.turn()
    server.kill()
    server.start()
    pod = Pod(server, "a")
    pod.admitted(1)
    began = time.monotonic()
    pod.admitted(50)
    pod.turn()
    admitted = pod.admitted(50)
    assert admitted <= 100 * (time.monotonic() - began) + 3  # and not the burst of 20 once more


def test_while_redis_is_away_a_pod_goes_on_with_its_share_and_pays_for_it(server: RedisServer) -> None:
    aged(server)
    pods = [Pod(server, name) for name in "ab"]
    for _ in range(3):
        for pod in pods:
            pod.ask()
            pod.turn()
    assert [pod.quotas.pods for pod in pods] == [2, 2]
    server.kill()
    for pod in pods:
        pod.turn()
        pod.turn()
        assert pod.quotas.away
        pod.admitted(200)  # its last lease
        pod.now -= 0.0
    share = 0
    for _ in range(8):
        pods[0].keeper._retry_at = pods[0].now + 10
        pods[0].turn()
        share += pods[0].admitted(50)
    assert share == 8 * 50 * 0.05 == 20
    server.start()
    pods[0].keeper._retry_at = 0.0
    pods[0].turn()
    assert not pods[0].quotas.away


def test_posture_refuse_ends_with_the_last_lease(server: RedisServer) -> None:
    aged(server)
    pod = Pod(server, "a", Posture.REFUSE)
    pod.ask()
    pod.turn()
    server.kill()
    pod.turn()
    pod.turn()
    pod.admitted(100)
    pod.turn(1.0)
    assert pod.ask() is not None


def test_a_hung_redis_holds_up_no_admission(server: RedisServer) -> None:
    aged(server)
    pod = Pod(server, "a")
    pod.keeper.start()
    pod.admitted(10)
    server.hang()
    slowest = 0.0
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        began = time.monotonic()
        pod.ask()
        slowest = max(slowest, time.monotonic() - began)
    assert pod.quotas.away
    assert slowest < 0.1  # the keeper's own timeout: nobody waited for it
    server.go_on()
    eventually(lambda: not pod.quotas.away, what="Redis to be seen again")
    pod.keeper.stop()


def test_slots_are_shared_and_those_of_a_killed_pod_come_back(server: RedisServer) -> None:
    limits = Limits(concurrency=10)
    first, second = Pod(server, "a"), Pod(server, "b")
    for _ in range(12):
        first.ask(limits, keep=True)
        first.turn()
    assert len(first.held) == 10
    second.ask(limits, keep=True)
    second.turn()
    assert len(second.held) <= 1
    assert second.ask(limits) is not None
    # The first is killed: it says nothing any more, and its lease ends.
    eventually(
        lambda: (second.turn(), second.ask(limits, keep=True))[1] is None,
        what="the slots of a pod that is gone",
        within_s=POD_TTL_MS / 1000 + 3,
    )


def test_tokens_that_were_not_used_go_back_into_the_lease(server: RedisServer) -> None:
    aged(server)
    pod, limits = Pod(server, "a"), Limits(tokens_per_minute=600)
    at = Instant(0, 0)
    found = pod.quotas.reserve("acme", "chat", limits, Demand(tokens=500), at, enforce=True)
    assert isinstance(found, Reservation)
    pod.turn()
    pod.quotas.settle(found, Usage(input_tokens=100), at)
    assert pod.ask(limits, Demand(tokens=400)) is None
    refused = pod.ask(limits, Demand(tokens=601))
    assert refused is not None
    assert refused.retry_after is None

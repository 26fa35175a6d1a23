"""A pod that alone cannot reach Redis: its part is left to it, until it stops, takes its leave or is succeeded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Reservation, Usage
from sidecar.quotas.leases import LeaseKeeper, Posture
from sidecar.quotas.reach import Access, connect
from sidecar.quotas.script import POD_TTL_MS
from sidecar.quotas.shared import SharedQuotas
from tests.support.redis import RedisServer

pytestmark = pytest.mark.integration
RATE: Final = 100
BURST: Final = 30
LIMITS: Final = Limits(requests=RequestRate(RATE, BURST))
ROUND: Final = 0.2  # seconds; its own, so that a minute is few of them
ALONE: Final = 30.0
NOTICED: Final = POD_TTL_MS / 1000 + 2 * ROUND  # seconds until a pod is missed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


class Pod:
    def __init__(self, server: RedisServer, name: str, alone: float) -> None:
        self.quotas = SharedQuotas(round_s=ROUND)
        self._ask = connect(Access(server.url))
        self.cut_off = False
        self.keeper = LeaseKeeper(
            self.quotas, self.run, pod=name, prefix="eu", posture=Posture.FAIR_SHARE, monotonic=time.monotonic,
            between=lambda low, _: low, alone_s=alone,
        )  # fmt: skip
        self.held: list[Reservation] = []
        self.admitted = 0

    def run(self, keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        if self.cut_off:
            raise ConnectionError("no route to host")
        return self._ask(keys, arguments)


class Fleet:
    """Three pods that go by the test's own clock, and Redis with them."""

    def __init__(self, server: RedisServer, names: str = "abc", alone: float = ALONE) -> None:
        self._client = redis.Redis(port=server.port)
        self._client.flushall()
        now = int(time.time() * 1000)  # its buckets are full: it has been there for long
        self._client.hset("{warden:eu}:clock", mapping={"born": 1, "wall": now, "now": now})
        self.server, self.alone = server, alone
        self.pods = {name: Pod(server, name, alone) for name in names}
        self._began, self.now = time.monotonic(), 0.0
        self.rounds(2, calls=0)

    @property
    def seconds(self) -> float:
        """What passed, for Redis the most: the test's rounds take it some time too."""
        return self.now + time.monotonic() - self._began

    def rounds(self, count: int, *, calls: int = 12, limits: Limits = LIMITS, keep: bool = False) -> None:
        for _ in range(count):
            self.now += ROUND
            self._client.hincrby("{warden:eu}:clock", "wall", -int(ROUND * 1000))
            at = Instant(time.time_ns(), int(self.now * 1e9))
            for pod in self.pods.values():
                for _ in range(calls):
                    found = pod.quotas.reserve("acme", "chat", limits, Demand(), at, enforce=True)
                    if not isinstance(found, Denial):
                        pod.admitted += 1
                        pod.held.append(found)
                        if not keep:
                            pod.quotas.settle(pod.held.pop(), Usage(), at)
                pod.keeper.round(self.now, ROUND)

    def for_s(self, seconds: float, **more: int) -> int:
        """How many were admitted in that time."""
        before = self.admitted
        self.rounds(round(seconds / ROUND), **more)
        return self.admitted - before

    @property
    def admitted(self) -> int:
        return sum(pod.admitted for pod in self.pods.values())


@pytest.fixture
def fleet(server: RedisServer) -> Fleet:
    return Fleet(server)


def test_who_is_cut_off_alone_adds_its_part_for_seconds_and_no_longer(fleet: Fleet) -> None:
    fleet.for_s(4)
    fleet.pods["c"].cut_off = True
    first = fleet.for_s(NOTICED + 1)
    assert first > RATE * (NOTICED + 1) * 1.1  # which is what it adds until it is missed
    assert fleet.pods["a"].keeper.summary == "3 pods share; 1 of them not heard of, whose part is held back"
    before = fleet.seconds
    alone = fleet.pods["c"].admitted
    rest = fleet.for_s(20)
    seconds = fleet.seconds - before
    assert rest <= RATE * seconds + 3 * 2 * RATE * ROUND / 3
    assert rest >= 0.9 * RATE * 20
    assert fleet.pods["c"].admitted - alone == pytest.approx(RATE / 3 * 20, rel=0.02)


def test_after_its_time_alone_it_stops_and_the_others_have_the_whole(fleet: Fleet) -> None:
    fleet.for_s(4)
    fleet.pods["c"].cut_off = True
    fleet.for_s(ALONE + 1)
    alone = fleet.pods["c"].admitted
    assert fleet.pods["c"].keeper.summary == "away; refuses: ConnectionError: no route to host"
    fleet.for_s(NOTICED)
    assert fleet.pods["a"].keeper.summary == "2 pods share"
    assert fleet.for_s(10) == pytest.approx(RATE * 10, rel=0.1)
    assert fleet.pods["c"].admitted == alone
    fleet.pods["c"].cut_off = False
    fleet.for_s(4)
    assert fleet.pods["a"].keeper.summary == fleet.pods["c"].keeper.summary == "3 pods share"
    assert fleet.pods["c"].admitted > alone
    fleet.pods["c"].cut_off = True  # and has as long again
    alone = fleet.pods["c"].admitted
    fleet.for_s(ALONE - 1)
    assert fleet.pods["c"].admitted - alone == pytest.approx(RATE / 3 * ALONE, rel=0.1)


def test_all_that_cannot_reach_it_have_the_whole_together_and_stop_together(fleet: Fleet) -> None:
    fleet.for_s(4)
    for pod in fleet.pods.values():
        pod.cut_off = True
    before = fleet.seconds
    admitted = fleet.for_s(ALONE - 1)
    assert admitted == pytest.approx(RATE * (ALONE - 1), rel=0.1)
    assert admitted <= RATE * (fleet.seconds - before) + BURST + 3 * 2 * RATE * ROUND
    fleet.for_s(2)
    assert fleet.for_s(5) == 0


def test_slots_that_one_may_go_on_with_are_left_to_it(fleet: Fleet) -> None:
    limits = Limits(concurrency=9)
    fleet.rounds(4, calls=1, limits=limits, keep=True)
    assert fleet.admitted == 9
    for pod in fleet.pods.values():
        at = Instant(time.time_ns(), int(fleet.now * 1e9))
        while pod.held:
            pod.quotas.settle(pod.held.pop(), Usage(), at)
    fleet.pods["c"].cut_off = True
    fleet.rounds(round(NOTICED / ROUND) + 2, calls=12, limits=limits)  # each ends at once
    fleet.rounds(6, calls=12, limits=limits, keep=True)
    assert len(fleet.pods["c"].held) == 3
    assert sum(len(pod.held) for pod in fleet.pods.values()) == 9


def test_who_takes_its_leave_is_not_waited_for(fleet: Fleet) -> None:
    limits = Limits(requests=RequestRate(RATE, BURST), concurrency=6)
    fleet.rounds(10, calls=2, limits=limits)
    leaving = fleet.pods.pop("c")
    leaving.keeper._thread.start()
    leaving.keeper.stop()
    fleet.rounds(4, calls=0)
    assert fleet.pods["a"].keeper.summary == "2 pods share"
    assert fleet.for_s(10) == pytest.approx(RATE * 10, rel=0.15)
    assert fleet._client.hget("{warden:eu}:concurrency:acme", "c") is None


@pytest.mark.parametrize("how", ["hung", "cut off"])
def test_who_ends_without_redis_is_not_held_up_by_it(fleet: Fleet, how: str) -> None:
    fleet.for_s(2)
    gone = fleet.pods.pop("c")
    gone.keeper._thread.start()
    gone.cut_off = how == "cut off"
    if how == "hung":
        fleet.server.hang()
    try:
        began = time.monotonic()
        gone.keeper.stop()
        assert time.monotonic() - began < 10
    finally:
        if how == "hung":
            fleet.server.go_on()
    fleet.for_s(NOTICED)
    if how == "cut off":  # one that hung reads it later
        assert "1 of them not heard of" in fleet.pods["a"].keeper.summary


def test_who_takes_crashed_ones_places_says_so(fleet: Fleet) -> None:
    fleet.pods["b2"] = Pod(fleet.server, "b2", ALONE)
    fleet.for_s(2)
    fleet.pods.pop("c")
    fleet.pods.pop("b2")
    fleet.for_s(NOTICED)
    assert "2 of them not heard of" in fleet.pods["a"].keeper.summary
    fleet.pods["d"] = Pod(fleet.server, "d", ALONE)
    fleet.pods["d"].keeper.predecessors = ("c", "b2", "never there")
    fleet.rounds(2)
    assert {pod.keeper.summary for pod in fleet.pods.values()} == {"3 pods share"}
    assert fleet.pods["d"].keeper.predecessors == ()


def test_a_rate_that_fills_in_ages_is_a_lease_too(fleet: Fleet) -> None:
    limits = Limits(requests=RequestRate(1e-18, 100))
    fleet.rounds(6, calls=30, limits=limits)
    assert not any(pod.quotas.away for pod in fleet.pods.values())
    assert 0 < fleet.admitted <= 100


CUT = st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.sampled_from([1, 4, 12, 40])), min_size=1, max_size=4)


@given(CUT)
@settings(max_examples=15, deadline=None)
def test_whoever_is_cut_off_whenever_all_together_stay_within_what_is_said(
    server: RedisServer, phases: list[tuple[set[str], int]]
) -> None:
    """Invariant: admitted <= rate x time + burst + leases + for each time that one was cut off its part of burst and of
    the seconds until it was missed."""
    fleet = Fleet(server)
    cuts, before = 0, set[str]()
    for cut, seconds in phases:
        cuts += len(cut - before)
        before = cut
        for name, pod in fleet.pods.items():
            pod.cut_off = name in cut
        fleet.for_s(seconds)
    leases = 3 * 3 * RATE * ROUND
    each = BURST / 3 + RATE / 3 * NOTICED + 2 * RATE * ROUND
    assert fleet.admitted <= RATE * fleet.seconds + BURST + leases + cuts * each

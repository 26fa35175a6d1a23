"""Leases from a real Redis: never above the whole, lost memory counts as spent, an outage is gone through."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Reservation, Usage
from sidecar.core.reasons import Reason
from sidecar.quotas.leases import LeaseKeeper, Posture
from sidecar.quotas.reach import Access, Timely, connect
from sidecar.quotas.script import POD_TTL_MS
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
        self.quotas = SharedQuotas(round_s=0.05, fair=posture is Posture.FAIR_SHARE)
        self.keeper = LeaseKeeper(
            self.quotas, connect(Access(server.url)), pod=name, prefix="eu", posture=posture, monotonic=time.monotonic,
            between=random.uniform,
        )  # fmt: skip
        self.held: list[Reservation] = []
        self.now = time.monotonic()

    def turn(self, seconds: float = 0.05) -> None:
        self.now += seconds
        self.keeper.round(self.now, seconds)

    def ask(self, limits: Limits = LIMITS, demand: Demand = Demand(), *, keep: bool = False) -> Denial | None:  # noqa: B008
        at = Instant(time.time_ns(), max(time.monotonic_ns(), int(self.now * 1e9)))
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

    now = int(time.time() * 1000)
    redis.Redis(port=server.port).hset("{warden:eu}:clock", mapping={"born": 1, "wall": now, "now": now})


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
    admitted += sum(lease.left for pod in pods for _, lease in pod.quotas._leases["acme"].of_time())
    took = time.monotonic() - began
    advances = 3 * 5  # what each pod may have spent before its round told of it: a round's part of the rate
    assert 20 - 3 <= admitted <= 20 + 100 * took + advances


@pytest.mark.parametrize("count", [1, 3])
def test_a_spent_whole_is_not_spent_again_in_advance_by_who_waits_a_second(server: RedisServer, count: int) -> None:
    """Never more than the whole, and one call in advance for each pod, however often a pod falls idle between."""
    aged(server)
    limits, demand = Limits(tokens_per_minute=6000), Demand(tokens=6000)
    pods = [Pod(server, f"p{number}") for number in range(count)]
    admitted = 0
    for _ in range(10):
        admitted += sum(pod.ask(limits, demand) is None for pod in pods)
        for _ in range(25):  # rounds without a call: a lease is returned after 20
            for pod in pods:
                pod.turn()
    assert admitted == count  # not one a second and pod, as long as the bucket is owed them


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
        for _ in range(20):
            pod.turn()
        assert pod.quotas.away
        pod.admitted(200)  # its last lease
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


def test_who_finds_redis_back_first_takes_no_more_than_its_part_until_all_have(server: RedisServer) -> None:
    """Redis's time is moved on with the pods': 50 ms a round, in which each pod is asked for 80 a second."""
    import redis  # noqa: PLC0415

    pods, client, admitted, up = [Pod(server, name) for name in "abc"], redis.Redis(port=server.port), 0, True

    def rounds(count: int) -> None:
        nonlocal admitted
        for _ in range(count):
            for pod in pods:
                admitted += pod.admitted(4)
                pod.turn()
            if up and client.exists("{warden:eu}:clock"):
                client.hincrby("{warden:eu}:clock", "wall", -50)

    rounds(20)
    server.kill()
    up, admitted = False, 0
    rounds(20)
    server.start()
    up = True
    for pod, after in zip(pods, (0.0, 1.2, 1.2), strict=True):  # the first asks at once, the others as late as may be
        pod.keeper._retry_at = pod.now + after
    began = time.monotonic()
    rounds(100)
    seconds = 120 * 0.05 + time.monotonic() - began  # the rounds themselves take Redis's own time
    leases = 3 * (2 * 100 * 0.05 + 100 * 0.05 / 3)
    assert admitted <= 100 * seconds + leases
    assert admitted >= 0.8 * 100 * 120 * 0.05
    assert {pod.keeper.summary for pod in pods} == {"3 pods share"}


@pytest.mark.parametrize("kind", ["requests", "tokens", "concurrency"])
@pytest.mark.parametrize("broken", ["another type", "other words"])
def test_one_key_that_is_no_lease_costs_its_tenant_that_limit_and_no_other_anything(
    server: RedisServer, kind: str, broken: str
) -> None:
    import redis  # noqa: PLC0415

    aged(server)
    client, key = redis.Redis(port=server.port), f"{{warden:eu}}:{kind}:acme"
    limits = {
        "requests": Limits(requests=RequestRate(100, 20)), "tokens": Limits(tokens_per_minute=600),
        "concurrency": Limits(concurrency=8),
    }[kind]  # fmt: skip
    pod, demand, told = Pod(server, "a"), Demand(tokens=10), []
    pod.keeper._key_told = lambda *what: told.append(what)

    def ask(tenant: str) -> bool:
        at = Instant(time.time_ns(), int(pod.now * 1e9))
        found = pod.quotas.reserve(tenant, "chat", limits, demand, at, enforce=True)
        if isinstance(found, Denial):
            return False
        pod.quotas.settle(found, Usage(input_tokens=10), at)
        return True

    if broken == "another type":
        client.lpush(key, "mine")
    elif kind == "concurrency":
        client.hset(key, "another", "mine")
    else:
        client.set(key, "mine")
    for _ in range(6):
        for tenant in ("acme", "birch"):
            ask(tenant)
        pod.turn()
    assert not ask("acme")
    assert ask("birch")
    assert not pod.quotas.away
    assert told == [(key, False)]
    assert key in pod.keeper.summary
    client.delete(key)
    for _ in range(40):
        ask("acme")
        pod.turn()
    eventually(lambda: (pod.turn(), ask("acme"))[1], what="its leases again")
    assert told == [(key, False), (key, True)]
    assert pod.keeper.summary == "1 pods share"


@pytest.mark.parametrize(
    "broken",
    [
        lambda client: client.set("{warden:eu}:clock", "mine"),
        lambda client: client.hset("{warden:eu}:clock", "now", "later"),
        lambda client: client.hdel("{warden:eu}:clock", "wall"),
        lambda client: client.hset("{warden:eu}:clock", "now", "9" * 23),
        lambda client: client.hset("{warden:eu}:clock", "now", "9" * 400),
        lambda client: client.hset("{warden:eu}:clock", "born", int(time.time() * 1000) + 3_600_000),
        lambda client: client.hset("{warden:eu}:clock", "held", "9" * 400),
        lambda client: (client.delete("{warden:eu}:pods"), client.lpush("{warden:eu}:pods", "a", "b")),
        lambda client: client.zadd("{warden:eu}:pods", {"nobody": 1e300, "tomorrow": time.time() * 1000 + 86_400_000}),
    ],
    ids=[
        "clock of another type",
        "no time",
        "half a clock",
        "far from now",
        "endless",
        "not born yet",
        "endless held",
        "pods of another type",
        "pods of tomorrow",
    ],
)
def test_something_else_at_a_key_of_all_pods_is_a_new_birth_and_no_outage(server: RedisServer, broken: Any) -> None:
    import redis  # noqa: PLC0415

    aged(server)
    pods = [Pod(server, name) for name in "ab"]
    for pod in pods:
        pod.turn()
    admitted = sum(pod.admitted(30) for pod in pods)
    began = time.monotonic()
    broken(redis.Redis(port=server.port))
    for _ in range(4):
        for pod in pods:
            pod.turn()
            admitted += pod.admitted(30)
    assert not any(pod.quotas.away for pod in pods)
    assert [pod.quotas.pods for pod in pods] == [2, 2]
    assert admitted <= 20 + 100 * (time.monotonic() - began) + 20, "a burst, what has flowed in, and what was out"
    for pod in pods:
        eventually(lambda pod=pod: (pod.turn(), pod.ask() is None)[1], what="leases of what has flowed in since")


def test_tokens_that_come_back_late_never_put_more_there_than_a_full_bucket(server: RedisServer) -> None:
    """What was reserved has flowed back into the whole by itself while the call ran."""
    aged(server)
    pod, limits = Pod(server, "a"), Limits(tokens_per_minute=600)
    began = Instant(0, int(pod.now * 1e9))
    found = pod.quotas.reserve("acme", "chat", limits, Demand(tokens=600), began, enforce=True)
    assert isinstance(found, Reservation)
    pod.turn()
    for minutes, room in ((0.5, 300), (2.0, 0)):
        at = Instant(0, int((pod.now + minutes * 60) * 1e9))
        assert abs(pod.quotas.room(pod.quotas._leases["acme"].tokens, at.mono_ns) - room) <= 2
    pod.quotas.settle(found, Usage(input_tokens=100), at)
    assert pod.quotas._leases["acme"].tokens.left == 0  # the whole is full again


def test_slots_are_as_fresh_as_the_answer_that_told_of_them(server: RedisServer) -> None:
    """An answer for other tenants doesn't renew them: theirs may have run out in Redis meanwhile."""
    aged(server)
    pod, limits = Pod(server, "a"), Limits(concurrency=6)
    for _ in range(3):
        pod.ask(limits, keep=True)
        pod.turn()
    pod.quotas.pods = 3
    pod.now += 6.0  # its own were not asked for, for so long
    pod.quotas.answered(3, 0, int(pod.now * 1e9))
    assert pod.ask(limits) is not None  # its part of three is two, and three still run


@pytest.mark.parametrize("whose", ["model", "key"])
def test_limits_of_a_model_and_of_a_key_are_shared_as_the_tenants_own(server: RedisServer, whose: str) -> None:
    """Not once a pod: together no more than the whole, and what is out as leases."""
    aged(server)
    narrow = Limits(requests=RequestRate(1, 20), concurrency=6)
    wide = Limits(requests=RequestRate(1000, 1000))
    pods, admitted, held = [Pod(server, name) for name in "abc"], 0, []

    def ask(pod: Pod) -> Reservation | Denial:
        return pod.quotas.reserve(
            "acme", "chat", wide, Demand(), Instant(0, int(pod.now * 1e9)), enforce=True, key="ci",
            model_limits=narrow if whose == "model" else None, key_limits=narrow if whose == "key" else None,
        )  # fmt: skip

    for _ in range(20):
        for pod in pods:
            found = ask(pod)
            if isinstance(found, Reservation):
                admitted += 1
                held.append((pod, found))
            pod.turn()
    assert 5 <= len(held) <= 6 + 3  # one in advance for each pod
    assert sum(pod.quotas._leases[f"acme {whose}:{'chat' if whose == 'model' else 'ci'}"].slots for pod in pods) <= 6
    for pod, found in held:
        pod.quotas.settle(found, Usage(), Instant(0, int(pod.now * 1e9)))
    for _ in range(40):
        for pod in pods:
            found = ask(pod)
            if isinstance(found, Reservation):
                admitted += 1
                pod.quotas.settle(found, Usage(), Instant(0, int(pod.now * 1e9)))
            pod.turn()
    assert 15 <= admitted <= 20 + 2 + 3  # the burst, what comes back meanwhile, one in advance for each pod


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
    asked, until = 0, time.monotonic() + 30.0
    while not pod.quotas.away:
        pod.ask()
        asked += 1
        assert time.monotonic() < until
    assert asked > 100  # nobody waited for the keeper's timeouts, of which two make it away
    server.go_on()
    eventually(lambda: not pod.quotas.away, what="Redis to be seen again")
    pod.keeper.stop()


def test_slots_are_shared_and_those_of_a_killed_pod_come_back(server: RedisServer) -> None:
    aged(server)
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


def test_what_streams_use_beyond_their_reservation_comes_from_the_lease(server: RedisServer) -> None:
    aged(server)
    pod, limits = Pod(server, "a"), Limits(tokens_per_minute=600, expected=True)
    at = Instant(0, 0)
    for _ in range(20):  # so many are known to end after 8 tokens
        found = pod.quotas.reserve("acme", "chat", limits, Demand(tokens=20, prompt_tokens=10), at, enforce=True)
        assert isinstance(found, Reservation)
        pod.quotas.settle(found, Usage(input_tokens=10, output_tokens=8, responses=8), at)
        pod.turn()
    found = pod.quotas.reserve("acme", "chat", limits, Demand(tokens=110, prompt_tokens=10), at, enforce=True)
    assert isinstance(found, Reservation)
    assert found.ask.tokens < 20  # type: ignore[attr-defined]  # Held
    cut = None
    for tokens in range(20, 2000, 4):
        pod.turn(0.0)
        cut = pod.quotas.grow(found, tokens, at, exact=False)
        if cut is not None:
            break
    assert cut is not None
    assert cut.reason is Reason.RATE_TOKENS
    assert tokens <= 600 + 8  # the whole, and an advance of a round's part


def test_streams_that_grow_within_one_round_are_not_cut_while_the_whole_has_room(server: RedisServer) -> None:
    aged(server)
    pod, limits, at = Pod(server, "a"), Limits(tokens_per_minute=60_000, expected=True), Instant(0, time.monotonic_ns())
    demand = Demand(tokens=110, prompt_tokens=10)
    streams = []
    for _ in range(30):
        found = pod.quotas.reserve("acme", "chat", limits, demand, at, enforce=True)
        assert isinstance(found, Reservation)
        streams.append(found)
        pod.turn()
    for tokens in (200, 400):
        cuts = [pod.quotas.grow(each, tokens, at, exact=True) for each in streams]
        assert cuts == [None] * 30
        pod.turn()
    for each in streams:
        pod.quotas.settle(each, Usage(input_tokens=10, output_tokens=390), at)
    pod.turn()
    assert pod.quotas.pods == 1


def test_two_pods_of_one_name_are_two(server: RedisServer) -> None:
    """compose gives each process a suffix of its own; here what would happen without: they share one lease of slots."""
    aged(server)
    pods = [Pod(server, "same-1"), Pod(server, "same-2")]
    for pod in pods:
        pod.ask()
        pod.turn()
    pods[0].ask()
    pods[0].turn()
    assert pods[0].quotas.pods == 2


def test_flushed_memory_gives_nobody_more(server: RedisServer) -> None:
    import redis  # noqa: PLC0415

    aged(server)
    limits = Limits(concurrency=6, requests=RequestRate(100, 20))
    first, second = Pod(server, "a"), Pod(server, "b")
    for _ in range(12):
        for pod in (first, second):
            pod.ask(limits, keep=True)
            pod.turn()
    assert len(first.held) + len(second.held) == 6
    redis.Redis(port=server.port).flushall()
    for _ in range(8):
        for pod in (second, first):
            pod.ask(limits, keep=True)
            pod.turn()
    assert len(first.held) + len(second.held) == 6
    assert not first.quotas.away  # NOSCRIPT is answered by sending it again


@pytest.mark.parametrize("leap_ms", [3_600_000, -3_600_000])
def test_a_leap_of_redis_clock_frees_no_slot_and_fills_no_bucket(server: RedisServer, leap_ms: int) -> None:
    """As seen by a script whose last call was at another time of day: the test moves what it remembers."""
    import redis  # noqa: PLC0415

    aged(server)
    limits = Limits(concurrency=4)
    first, second = Pod(server, "a"), Pod(server, "b")
    for _ in range(8):
        first.ask(limits, keep=True)
        first.turn()
    assert len(first.held) == 4
    client = redis.Redis(port=server.port)
    wall = int(client.hget("{warden:eu}:clock", "wall") or 0)
    client.hset("{warden:eu}:clock", "wall", wall - leap_ms)
    if leap_ms > 0:
        client.delete("{warden:eu}:concurrency:acme")  # its time to live is over too
    for _ in range(4):
        second.ask(limits, keep=True)
        second.turn()
        first.turn()
    assert len(second.held) <= 1  # one in advance of its lease


def test_a_pod_that_slept_has_lost_its_slots(server: RedisServer) -> None:
    aged(server)
    limits = Limits(concurrency=6)
    pod = Pod(server, "a")
    for _ in range(3):
        pod.ask(limits, keep=True)
        pod.turn()
    pod.quotas.pods = 3
    pod.quotas._leases["acme"].answered_ns = time.monotonic_ns() - 60_000_000_000  # stopped for a minute
    assert pod.ask(limits, keep=True) is not None  # its part of three is two, and three still run
    pod.turn()
    pod.turn()
    assert pod.ask(limits, keep=True) is None


def test_a_pod_that_redis_never_answered_knows_no_share(server: RedisServer) -> None:
    server.kill()
    unknown, hinted = Pod(server, "a"), Pod(server, "b")
    hinted.quotas = hinted.keeper._quotas = SharedQuotas(round_s=0.05, pods=4)
    for pod in (unknown, hinted):
        for _ in range(3):
            pod.turn()
        assert pod.quotas.away
        pod.admitted(5)
        pod.turn(2.0)
    assert unknown.admitted(50) == 0
    assert hinted.admitted(50) == 20 // 4


def test_what_hangs_longer_than_an_answer_may_take_is_waited_for_no_longer() -> None:
    """A name that does not resolve has no deadline of its own: getaddrinfo takes what it takes."""
    let, asked = threading.Event(), []

    def hangs(keys: Sequence[str], _arguments: Sequence[str]) -> list[int]:
        asked.append(keys)
        let.wait()
        return [1]

    run = Timely(hangs)
    with pytest.raises(TimeoutError):
        run(["a"], [])
    with pytest.raises(TimeoutError, match="still not answered"):
        run(["b"], [])
    let.set()
    eventually(lambda: run._last is not None and run._last.done(), what="its late answer")
    assert run(["c"], []) == [1]
    assert asked == [["a"], ["c"]]

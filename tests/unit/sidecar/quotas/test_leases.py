"""A Redis that lies: what was never asked for is no lease, and an answer that is none is no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Usage
from sidecar.quotas import leases as leases_module
from sidecar.quotas.leases import PODS, LeaseKeeper, Posture
from sidecar.quotas.reach import Access
from sidecar.quotas.script import PER_LEASE
from sidecar.quotas.shared import SharedQuotas

LIMITS = Limits(requests=RequestRate(100, 20), tokens_per_minute=6000, concurrency=8)
Answer = Callable[[list[int]], list[int]]


class Pod:
    """Asks a Redis whose honest answer ``lie`` makes another of."""

    def __init__(self, lie: Answer) -> None:
        self.lie = lie
        self.quotas = SharedQuotas(round_s=0.05)
        self.told: list[str] = []
        self.keeper = LeaseKeeper(
            self.quotas, self.run, pod="p", prefix="eu", posture=Posture.REFUSE, monotonic=lambda: 0.0,
            between=lambda low, _: low, told=self.told.append,
        )  # fmt: skip

    def run(self, keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        asked = [int(arguments[3 + PER_LEASE * number + 3]) for number in range(len(keys) - 2)]
        return self.lie([1, 0, *(each for units in asked for each in (units, 0))])

    def ask(self) -> bool:
        found = self.quotas.reserve("acme", "chat", LIMITS, Demand(tokens=1), Instant(0, 0), enforce=True)
        return not isinstance(found, Denial)


def test_an_honest_one() -> None:
    pod = Pod(lambda answer: answer)
    assert pod.ask()
    pod.keeper.round(0.0, 0.05)
    assert (pod.keeper.fault, pod.quotas.away) == ("", False)
    assert pod.ask()


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer: [],
        lambda answer: answer[:-1],
        lambda answer: [*answer, 1],
        lambda answer: [*answer[:2], *[10**12, 0] * (len(answer) // 2 - 1)],
        lambda answer: [*answer[:2], *[-2, 0] * (len(answer) // 2 - 1)],
        lambda answer: [*answer[:2], *[0, -1] * (len(answer) // 2 - 1)],
        lambda answer: [0, *answer[1:]],
        lambda answer: [-(10**9), *answer[1:]],
        lambda answer: [PODS + 1, *answer[1:]],
        lambda answer: [3, 3, *answer[2:]],
        lambda answer: [3, -1, *answer[2:]],
    ],
    ids=[
        "nothing",
        "cut off",
        "more",
        "gives too much",
        "takes",
        "no time",
        "nobody",
        "less than nobody",
        "a crowd",
        "none heard of",
        "more than all heard of",
    ],
)
def test_a_lying_one_counts_as_away_and_gives_nothing(lie: Answer) -> None:
    pod = Pod(lie)
    assert pod.ask()  # the advance
    pod.keeper.round(0.0, 0.05)
    pod.keeper.round(0.05, 0.05)
    assert pod.quotas.away
    assert len(pod.told) == 1
    assert "ValueError: Redis" in pod.told[0]
    lease = pod.quotas._leases["acme"]
    assert (lease.requests.left, lease.tokens.left) == (0, 0)
    assert lease.requests.owed == 1  # what was spent is still to be told
    assert not any(pod.ask() for _ in range(5))


def test_where_redis_is_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(Access("redis://:hunter2@redis.example"))


def test_a_round_looks_only_at_tenants_that_something_happened_to_or_whose_time_has_come() -> None:
    """With its lease back after 20 idle rounds, as if it had been looked at in each of them."""
    pod, looks = Pod(lambda answer: answer), list[tuple[int, str]]()
    look = pod.quotas._tenants_wants
    pod.quotas._tenants_wants = lambda tenant, leases: (looks.append((turn, tenant)), look(tenant, leases))[1]  # type: ignore[method-assign]
    limits = Limits(requests=RequestRate(100, 20))
    for number in range(3):
        pod.quotas.reserve(f"t{number}", "chat", limits, Demand(), Instant(0, 0), enforce=False)
    for turn in range(60):
        if turn == 30:
            at = Instant(0, turn * 50_000_000)
            found = pod.quotas.reserve("t0", "chat", limits, Demand(), at, enforce=True)
            assert not isinstance(found, Denial)
            pod.quotas.settle(found, Usage(), at)
        pod.keeper.round(turn * 0.05, 0.05)
    assert [turn for turn, tenant in looks if tenant == "t1"] == [0, 4, 20, 40]  # one still runs, so it is kept
    assert [turn for turn, tenant in looks if tenant == "t0"] == [0, 4, 20, 30, 34, 40, 50]  # 40 was put in for before
    assert [pod.quotas._leases[f"t{number}"].requests.left for number in range(3)] == [0, 0, 0]


class Broken(Pod):
    """At some keys of its Redis there is something else than a lease."""

    def __init__(self, *keys: str) -> None:
        super().__init__(list)
        self.keys, self.asked, self.heard = set(keys), list[str](), list[tuple[str, bool]]()
        self.keeper._key_told = lambda key, usable: self.heard.append((key, usable))
        self.at = 0.0

    def run(self, keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        self.asked += keys[2:]
        answer = super().run(keys, arguments)
        for number, key in enumerate(keys[2:]):
            if key in self.keys:
                answer[2 + 2 * number] = -1
        return answer

    def call(self, tenant: str) -> None:
        at = Instant(0, int(self.at * 1e9))
        found = self.quotas.reserve(tenant, "chat", Limits(requests=RequestRate(100, 20)), Demand(), at, enforce=True)
        if not isinstance(found, Denial):
            self.quotas.settle(found, Usage(), at)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.at += 0.05
            self.keeper.round(self.at, 0.05)


@pytest.mark.parametrize("kind", ["requests", "tokens", "concurrency"])
def test_a_key_that_is_no_lease_is_looked_at_until_it_is_one_also_when_its_tenant_is_idle(kind: str) -> None:
    key = f"{{warden:eu}}:{kind}:acme"
    pod = Broken(key)
    pod.ask()
    pod.quotas.release(
        pod.quotas.reserve("acme", "chat", LIMITS, Demand(), Instant(0, 0), enforce=False), Instant(0, 0)
    )
    pod.rounds(2)
    assert (pod.heard, pod.keeper.unusable) == ([(key, False)], {key})
    pod.quotas._leases.clear()  # its tenant is idle, and forgotten
    pod.asked.clear()
    pod.rounds(330)
    assert 2 <= pod.asked.count(key) <= 3  # every 5 s
    assert (pod.heard, pod.keeper.unusable) == ([(key, False)], {key})
    pod.keys.clear()
    pod.rounds(101)
    assert (pod.heard, pod.keeper.unusable) == ([(key, False), (key, True)], set())
    pod.asked.clear()
    pod.rounds(220)
    assert pod.asked == []


def test_a_key_that_is_no_lease_is_told_once_there_is_room_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "_NAMED", 2)
    keys = [f"{{warden:eu}}:requests:t{number}" for number in range(3)]
    pod = Broken(*keys)
    for number in range(3):
        pod.call(f"t{number}")
        pod.rounds(1)
    assert pod.heard == [(keys[0], False), (keys[1], False)]
    pod.keys.remove(keys[0])
    pod.rounds(220)  # t0 is idle
    assert (keys[0], True) in pod.heard
    for _ in range(3):
        pod.call("t2")
        pod.rounds(1)
    assert pod.heard[-1] == (keys[2], False)
    assert pod.keeper.unusable == {keys[1], keys[2]}


class Turns:
    """A guard that counts what changed while somebody held it."""

    def __init__(self, guard: Any, state: Callable[[], list[object]]) -> None:
        self.guard, self.state, self.most, self.holds = guard, state, 0, 0

    def __enter__(self) -> None:
        self.guard.__enter__()
        self.before = self.state()

    def __exit__(self, *raised: object) -> None:
        changed = sum(one != other for one, other in zip(self.before, self.state(), strict=True))
        self.most, self.holds = max(self.most, changed), self.holds + 1
        self.guard.__exit__(*raised)


def test_admissions_have_their_turn_whatever_a_round_does_to_many_tenants() -> None:
    pod, count = Broken(), 1000
    for number in range(count):
        pod.call(f"t{number}")
    pod.rounds(1)
    quotas, names = pod.quotas, [f"t{number}" for number in range(count)]
    turns = Turns(quotas._guard, lambda: [quotas._leases[each].booked for each in names])
    quotas._guard = turns  # type: ignore[assignment]
    for _ in range(4):  # in the last of which all of them are due again
        quotas.wants()
    assert 0 < turns.most <= 256
    turns.state, turns.most = (lambda: [each in quotas._sharing for each in names]), 0
    quotas.gone()
    assert (turns.most, set(quotas._sharing)) == (256, set(names))
    turns.state, turns.most = (lambda: [n < len(quotas._agenda._soon) for n in range(count)]), 0
    quotas.back()
    assert (turns.most, set(quotas._agenda._soon)) == (256, set(names))

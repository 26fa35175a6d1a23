"""A Redis that lies: what was never asked for is no lease, and an answer that is none is no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sidecar.core.model import Demand, Denial, Instant, Limits, RequestRate, Usage
from sidecar.quotas.leases import PODS, Access, LeaseKeeper, Posture
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
        asked = [int(arguments[2 + 7 * number + 3]) for number in range(len(keys) - 2)]
        return self.lie([1, *(each for units in asked for each in (units, 0))])

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
        lambda answer: [answer[0], *[10**12, 0] * (len(answer) // 2)],
        lambda answer: [answer[0], *[-2, 0] * (len(answer) // 2)],
        lambda answer: [answer[0], *[0, -1] * (len(answer) // 2)],
        lambda answer: [0, *answer[1:]],
        lambda answer: [-(10**9), *answer[1:]],
        lambda answer: [PODS + 1, *answer[1:]],
    ],
    ids=["nothing", "cut off", "more", "gives too much", "takes", "no time", "nobody", "less than nobody", "a crowd"],
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

"""Request rate, in whole nanoseconds."""

from __future__ import annotations

from sidecar.core.model import RequestRate
from sidecar.quotas.gcra import Gcra

SECOND = 1_000_000_000


def gcra(rate: float, burst: int, at: int = 0) -> Gcra:
    made = Gcra()
    made.configure(RequestRate(rate, burst), at)
    return made


def take(limiter: Gcra, at: int) -> bool:
    if limiter.wait_ns(at) != 0:
        return False
    limiter.take(at)
    return True


def test_a_burst_at_once_then_one_every_interval() -> None:
    limiter = gcra(5, 3)
    assert [take(limiter, 0) for _ in range(4)] == [True, True, True, False]
    assert limiter.wait_ns(0) == SECOND // 5
    assert not take(limiter, SECOND // 5 - 1)
    assert take(limiter, SECOND // 5)
    assert not take(limiter, SECOND // 5)


def test_a_rate_that_does_not_divide_a_second_is_never_exceeded() -> None:
    limiter = gcra(3, 1)
    admitted = sum(take(limiter, at) for at in range(0, SECOND, 1_000_000))
    assert limiter.interval_ns == 333_333_334
    assert admitted == 3


def test_slow_rates() -> None:
    limiter = gcra(0.01, 1)
    assert take(limiter, 0)
    assert limiter.wait_ns(0) == 100 * SECOND


def test_nothing_never_fits() -> None:
    assert gcra(0, 5).wait_ns(0) is None
    assert gcra(5, 0).wait_ns(0) is None


def test_idle_is_paid_for() -> None:
    limiter = gcra(5, 3)
    assert limiter.idle(0)
    take(limiter, 0)
    assert not limiter.idle(SECOND // 5 - 1)
    assert limiter.idle(SECOND // 5)


def test_a_new_limit_keeps_what_is_owed() -> None:
    limiter = gcra(10, 10)
    for _ in range(10):
        assert take(limiter, 0)
    limiter.configure(RequestRate(5, 10), 0)  # ten requests are owed still, at half the rate
    assert limiter.wait_ns(0) == SECOND // 5
    limiter.configure(RequestRate(5, 2), 0)
    assert limiter.wait_ns(0) == 9 * SECOND // 5
    limiter.configure(RequestRate(5, 20), 0)
    assert limiter.wait_ns(0) == 0
    limiter.configure(RequestRate(0, 20), 0)
    assert limiter.wait_ns(0) is None

"""The bytes in flight: bounded, and given back whole."""

from __future__ import annotations

import threading

import pytest

from sidecar.transports.budget import Budget, Held


def test_what_does_not_fit_is_not_taken() -> None:
    budget = Budget(10)
    assert budget.take(10)
    assert not budget.take(1)
    assert budget.take(0)
    assert (budget.used, budget.limit) == (10, 10)
    budget.give(4)
    assert budget.take(4)


def test_an_rpc_gives_back_what_it_still_holds_even_when_it_fails() -> None:
    budget = Budget(10)
    held = Held(budget)

    def fail() -> None:
        with held:
            assert held.take(7)
            held.give(2)
            assert not held.take(6)
            assert (held.size, budget.used) == (5, 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (held.size, budget.used) == (0, 0)


def test_two_loops_never_take_more_than_there_is() -> None:
    budget, most = Budget(100), []

    def work() -> None:
        for n in range(2000):
            if budget.take(n % 61):
                most.append(budget.used)
                budget.give(n % 61)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.used == 0
    assert max(most) <= 100


def test_no_tenant_can_lock_the_others_out() -> None:
    budget = Budget(10)
    with Held(budget, "acme") as first, Held(budget, "acme") as second, Held(budget, "globex") as other:
        assert first.take(3)
        assert second.take(2)
        assert not second.take(1)
        assert other.take(5)
        assert not Held(budget).take(1)  # whoever's: the whole is spent
        first.give(3)
        assert second.take(3)
    assert budget.used == 0
    assert budget._shares == {}  # who holds nothing is not remembered

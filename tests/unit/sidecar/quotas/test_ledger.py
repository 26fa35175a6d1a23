"""What running calls hold, and the wait that is told of it."""

from __future__ import annotations

import pytest

from sidecar.quotas.ledger import Ledger

SECOND = 1_000_000_000


def test_books_and_releases() -> None:
    ledger = Ledger()
    ledger.book(100, 10)
    ledger.book(50, 0)
    assert (ledger.calls, ledger.kv_bytes, ledger.tensor_bytes) == (2, 150, 10)
    ledger.release(100, 10, SECOND)
    ledger.release(50, 0, SECOND)
    assert (ledger.calls, ledger.kv_bytes, ledger.tensor_bytes) == (0, 0, 0)


@pytest.mark.parametrize("released", [(101, 0), (0, 1)])
def test_releasing_more_than_is_held_is_our_bug_and_changes_nothing(released: tuple[int, int]) -> None:
    ledger = Ledger()
    ledger.book(100, 0)
    with pytest.raises(RuntimeError):
        ledger.release(*released, SECOND)
    assert (ledger.calls, ledger.kv_bytes) == (1, 100)


def test_the_wait_follows_the_tenants_own_calls() -> None:
    ledger = Ledger()
    for _ in range(100):
        ledger.book(0, 0)
        ledger.release(0, 0, 8 * SECOND)
    assert ledger.wait_s(1, 1) == pytest.approx(8, rel=0.01)
    assert ledger.wait_s(1, 4) == pytest.approx(2, rel=0.01)  # four calls end four times as often


def test_the_wait_is_bounded() -> None:
    ledger = Ledger(mean_ns=3600 * SECOND)
    assert ledger.wait_s(1, 1) == 30.0
    assert Ledger(mean_ns=1).wait_s(1, 1000) == 0.1
    assert Ledger().wait_s(5, 0) == 1.0

"""One budget for all bytes in flight: Envoy gives no upstream backpressure, so memory is bounded here."""

from __future__ import annotations

import threading


class Budget:
    """Bytes of requests and responses held by this process; ``limit`` bytes at most, taken and given back whole."""

    __slots__ = ("_limit", "_lock", "_used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    @property
    def limit(self) -> int:
        return self._limit

    def take(self, size: int) -> bool:
        """False, and nothing taken, where ``size`` more would not fit."""
        with self._lock:
            if self._used + size > self._limit:
                return False
            self._used += size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._used -= size


class Held:
    """What one RPC has taken of the budget; given back whole when it ends."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def take(self, size: int) -> bool:
        if not self._budget.take(size):
            return False
        self.size += size
        return True

    def give(self, size: int) -> None:
        self._budget.give(size)
        self.size -= size

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.give(self.size)
        self.size = 0

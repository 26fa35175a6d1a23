"""One budget for all bytes in flight: Envoy gives no upstream backpressure, so memory is bounded here."""

from __future__ import annotations

import threading


class Budget:
    """Bytes of requests and responses held by this process; ``limit`` bytes at most, taken and given back whole.

    No tenant may hold more than half of it, so that none can lock the others out.
    """

    __slots__ = ("_limit", "_lock", "_shares", "_used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._shares: dict[str, int] = {}  # of those who hold something, so no more than there are calls in flight
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def share(self) -> int:
        """What one tenant may hold."""
        return share_of(self._limit)

    def take(self, size: int, tenant: str = "") -> bool:
        """False, and nothing taken, where ``size`` more would not fit; "": not on any tenant's account."""
        with self._lock:
            if self._used + size > self._limit:
                return False
            if tenant:
                held = self._shares.get(tenant, 0) + size
                if held > self.share:
                    return False
                self._shares[tenant] = held
            self._used += size
            return True

    def give(self, size: int, tenant: str = "") -> None:
        with self._lock:
            self._used -= size
            if tenant:
                left = self._shares.get(tenant, 0) - size
                if left:
                    self._shares[tenant] = left
                else:
                    self._shares.pop(tenant, None)


def share_of(limit: int) -> int:
    """What one tenant may hold of a budget of ``limit`` bytes."""
    return limit // 2


class Held:
    """What one RPC, of ``tenant``, has taken of the budget; given back whole when it ends."""

    __slots__ = ("_budget", "_tenant", "size")

    def __init__(self, budget: Budget, tenant: str = "") -> None:
        self._budget = budget
        self._tenant = tenant
        self.size = 0

    def take(self, size: int) -> bool:
        if not self._budget.take(size, self._tenant):
            return False
        self.size += size
        return True

    def give(self, size: int) -> None:
        self._budget.give(size, self._tenant)
        self.size -= size

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self.give(self.size)

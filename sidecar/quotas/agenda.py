"""Which tenants a round of leases looks at: those that something happened to, and those whose time has come."""

from __future__ import annotations

__all__ = ["Agenda"]


class Agenda:
    """Rounds are counted from 1. Not locked; who puts a tenant in twice finds it twice."""

    __slots__ = ("_later", "_soon", "round")

    def __init__(self) -> None:
        self.round = 0
        self._soon: list[str] = []
        self._later: dict[int, list[str]] = {}

    def begin(self) -> tuple[list[str], list[str]]:
        """The next round has begun: who was put in for it ``soon``, and who ``later``."""
        self.round += 1
        soon, self._soon = self._soon, []
        return soon, self._later.pop(self.round, [])

    def soon(self, *tenants: str) -> None:
        """The next round looks at them."""
        self._soon += tenants

    def later(self, tenant: str, rounds: int) -> None:
        """A round looks at it so many (at least one) from now."""
        self._later.setdefault(self.round + rounds, []).append(tenant)

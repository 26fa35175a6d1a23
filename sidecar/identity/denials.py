"""The deny-list of tokens: by (issuer, jti), and by tenant for all that were issued before a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.core.model import Denial
from sidecar.core.reasons import Reason

_UNKNOWN: Final = "the list of revoked tokens cannot be had"


@dataclass(frozen=True, slots=True)
class DenyList:
    """All revocations as one transaction saw them. Never changed; replaced whole. Times in seconds since the epoch.

    Each is with the time from which no living token can meet it any more.
    """

    tokens: Mapping[tuple[str, str], float] = field(default_factory=dict)  # issuer and jti → until
    tenants: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # → issued before this are denied; until

    def __len__(self) -> int:
        return len(self.tokens) + len(self.tenants)


@dataclass(frozen=True, slots=True)
class Age:
    """When the database last confirmed something, on its own clock, and how far that clock is ahead of ours (s)."""

    confirmed_at: float
    ahead: float = 0.0

    def at(self, at: float) -> float:
        """Seconds at our time ``at`` since the confirmation; negative where our clock was set back."""
        return at + self.ahead - self.confirmed_at


MAX_BACK: Final = 60.0  # seconds that our clock may be set back before what it says of an age is no longer believed


def too_old(age: float, max_age: float) -> bool:
    return age > max_age or age < -MAX_BACK


class DenyBook:
    """The current deny-list, swapped whole by the refresher; ``max_age`` (s) bounds how long it is believed."""

    __slots__ = ("_age", "_list", "_max_age")

    def __init__(self, *, max_age: float) -> None:
        self._max_age = max_age
        self._list: DenyList | None = None
        self._age = Age(0.0)

    @property
    def current(self) -> DenyList | None:
        return self._list

    def install(self, denied: DenyList, age: Age) -> None:
        self._list, self._age = denied, age

    def confirm(self, age: Age) -> None:
        self._age = age

    def refuses(self, issuer: str, token_id: str, tenant: str, issued_at: float, at: float) -> Denial | None:
        """TOKEN_REVOKED; KEYS_UNAVAILABLE where the list is not known (never had, or too old); None: not denied."""
        denied = self._list
        known = self._age
        age = at + known.ahead - known.confirmed_at  # as ``Age.at`` and ``too_old``, on every call's path
        if denied is None or age > self._max_age or age < -MAX_BACK:
            why = "no deny-list" if denied is None else f"deny-list is {age:.0f} s old"
            return Denial(Reason.KEYS_UNAVAILABLE, _UNKNOWN, retry_after=1.0, rule="token", internal=why)
        if denied.tokens and (issuer, token_id) in denied.tokens:
            return Denial(Reason.TOKEN_REVOKED, rule="token", internal=f"jti {token_id!r} of {issuer}")
        ended = denied.tenants.get(tenant) if denied.tenants else None
        if ended is not None and issued_at < ended[0]:
            return Denial(Reason.TOKEN_REVOKED, rule="token", internal=f"tenant {tenant}, issued before {ended[0]:.0f}")
        return None

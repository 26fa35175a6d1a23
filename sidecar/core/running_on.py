"""What calls hold after their end here, because Triton may be working on them still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.core.model import Instant, Reservation
    from sidecar.core.recorded import Recorded

__all__ = ["RunningOn", "runs_on_ns"]


@dataclass(frozen=True, slots=True)
class _Kept:
    """``since_ns``: its end here; ``until_ns``: when Triton has ended it for certain (both monotonic)."""

    reservation: Reservation
    since_ns: int
    until_ns: int


class RunningOn:
    """By call. Not locked: asked under the governor's lock."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, call_id: str, reservation: Reservation, at: Instant, until_ns: int) -> None:
        """It ended here at ``at``."""
        self._kept[call_id] = _Kept(reservation, at.mono_ns, until_ns)

    def let_go(self, call_id: str) -> Reservation | None:
        """What it held, once; None for any other call."""
        found = self._kept.pop(call_id, None)
        return None if found is None else found.reservation

    def over(self, at: Instant) -> list[str]:
        """The calls that Triton has ended by now, whatever it did with their cancels."""
        return [call_id for call_id, each in self._kept.items() if each.until_ns <= at.mono_ns]

    def ended_before(self, model: str, seen_ns: int) -> list[str]:
        """The calls of ``model`` that had ended here before ``seen_ns`` (monotonic)."""
        return [
            call_id
            for call_id, each in self._kept.items()
            if each.reservation.model == model and each.since_ns < seen_ns
        ]


def runs_on_ns(recorded: Recorded, at: Instant) -> int:
    """How long after its cancel a call may hold what it held: by its model's profile and its own pace."""
    profile = recorded.admission.verdict.profile
    paced = recorded.remaining_ns(at) if profile.runs_on else None
    return profile.stops_ns if paced is None else min(profile.stops_ns, paced + paced // 4)

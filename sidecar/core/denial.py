"""A refusal as a value: why, what the caller is told, and what only the record says (DESIGN rule 7)."""

from __future__ import annotations

from msgspec import Struct

from sidecar.core.reasons import REASONS, Reason

__all__ = ["Denial"]


class Denial(Struct, frozen=True):
    """A refusal. ``detail`` is shown to the caller; ``internal`` goes to the record and the log only.

    ``retry_after`` is in seconds. ``rule`` names what decided: a policy's id, a document's path, or a limit.
    ``resident``: residency was looked at and lets this tenant's data be here, whatever else refuses the call.
    ``always``: enforced in mode observe too, because the call could end the server that everybody uses.
    """

    reason: Reason
    detail: str = ""
    retry_after: float | None = None
    rule: str = ""
    internal: str = ""
    metadata: tuple[tuple[str, str], ...] = ()  # extra ErrorInfo metadata
    queue_ns: int = 0  # how long the call may wait for room instead of being refused at once
    policy: tuple[int, int] = (0, 0)  # the quota and its window (s), as the RateLimit-Policy field states them
    resident: bool = False
    always: bool = False

    @property
    def public(self) -> str:
        """The text a caller reads: the table's sentence and this refusal's detail."""
        text = REASONS[self.reason].public
        return f"{text}: {self.detail}" if self.detail else text

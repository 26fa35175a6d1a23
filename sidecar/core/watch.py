"""What looks at a call's content, and what it finds: the guards of its tenant, and the watch over its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.core.calls import InferenceFacts

__all__ = ["Finding", "Guards", "Watch"]


class Finding(Struct, frozen=True, array_like=True):
    """What a guard found in a call's content. ``enforced`` stands apart: "none" in shadow and in mode ``observe``."""

    guard: str
    on: str  # prompt | output
    verdict: str  # deny | flag
    enforced: str  # deny | flag | none


class Watch(Protocol):
    """Follows one call's output: what is found in it, and up to where it may be sent. Bounded memory.

    Places are in bytes, one for each of the output's sequences (n, beams) so far.
    """

    @property
    def holds(self) -> bool:
        """Whether messages may have to wait; else all that was fed may be sent."""
        ...

    @property
    def within_ns(self) -> int:
        """How long a message may wait, at most."""
        ...

    def feed(self, texts: Sequence[bytes]) -> tuple[Finding, ...]:
        """What is found now that ``texts``, one a sequence, follow all before them."""
        ...

    def look(self) -> tuple[Finding, ...]:
        """What is found in all that was fed; ``feed`` may leave some of it for later."""
        ...

    def decide(self) -> tuple[Finding, ...]:
        """What counts as found because it can be waited for no longer what follows."""
        ...

    def finish(self) -> tuple[Finding, ...]:
        """What is found now that nothing follows."""
        ...

    def heard(self) -> tuple[int, ...]:
        """All that was fed."""
        ...

    def cleared(self) -> tuple[int, ...]:
        """What may be sent."""
        ...

    def doubted(self) -> tuple[int, ...]:
        """What comes before anything in doubt."""
        ...


class Guards(Protocol):
    """What a tenant's content may hold (``policies.guards``). Pure; bounded time for any length."""

    def prompt(self, facts: InferenceFacts) -> tuple[Finding, ...]: ...

    def watch(self, facts: InferenceFacts, *, enforce: bool = True) -> Watch | None:
        """For one call's output; None: nothing looks at it. Without ``enforce`` it holds nothing."""
        ...

"""Messages of one call that wait for its guards' word: in order, until it has come or may be waited for no longer."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.core.watch import Watch

__all__ = ["HoldBack"]

Mark = tuple[int, ...]  # of each sequence of an output, a place in it (bytes)


class HoldBack:
    """The messages of one stream. Whoever puts them accounts for their bytes: ``nbytes`` of them wait."""

    __slots__ = ("_queue", "_watch", "nbytes")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._queue: deque[tuple[bytes, Mark, int]] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, message: bytes, at_ns: int) -> None:
        """One that the watch was fed already; ``at_ns`` is on the monotonic clock."""
        self._queue.append((message, self._watch.heard(), at_ns))
        self.nbytes += len(message)

    def cleared(self) -> list[bytes]:
        """Those that may be sent now, in order: no text that guards could still deny is in them."""
        upto = self._watch.cleared()
        out: list[bytes] = []
        while self._queue and _within(self._queue[0][1], upto):
            out.append(self._queue.popleft()[0])
        self.nbytes -= sum(map(len, out))
        return out

    def aged(self, at_ns: int) -> list[bytes]:
        """Those that may not wait longer. To be asked for once the watch has looked at, and decided, all it was fed."""
        out: list[bytes] = []
        while self._queue and self._queue[0][2] + self._watch.within_ns <= at_ns:
            out.append(self._queue.popleft()[0])
        self.nbytes -= sum(map(len, out))
        return out

    def all(self) -> list[bytes]:
        """The rest; none is left."""
        out = [message for message, _, _ in self._queue]
        self._queue.clear()
        self.nbytes = 0
        return out

    def due_ns(self) -> int | None:
        """When the first of them may not wait longer (monotonic clock)."""
        return self._queue[0][2] + self._watch.within_ns if self._queue else None

    def overdue_in_doubt(self, at_ns: int) -> bool:
        """Whether one may not wait longer of which the watch is still in doubt."""
        doubted = self._watch.doubted()
        for _, mark, since_ns in self._queue:
            if since_ns + self._watch.within_ns > at_ns:
                return False
            if not _within(mark, doubted):
                return True
        return False


def _within(mark: Mark, upto: Mark) -> bool:
    # A sequence that had said nothing yet when the message came is not in it.
    return all(place <= limit for place, limit in zip(mark, upto, strict=False))

"""The line of one stream: what non-decoupled models answer goes out in the order of the requests, as Triton sends it.

As Triton 2.51 does it, seen on the wire: responses of non-decoupled models keep the order of their requests among each
other, across models, errors included; those of decoupled models wait for nobody, and nobody for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

_NOTHING: Final[Sequence[bytes]] = ()


class Place:
    """One request's place in the line; what it holds back waits for the places before it."""

    __slots__ = ("closed", "kept")

    def __init__(self) -> None:
        self.closed = False
        self.kept: list[bytes] = []


class Line:
    """Places in the order of their requests. As long as nothing is cleared, all that is put goes out, once."""

    __slots__ = ("_places", "kept")

    def __init__(self) -> None:
        self._places: deque[Place] = deque()
        self.kept = 0  # bytes that wait

    def join(self) -> Place:
        """The next place, behind all others."""
        place = Place()
        self._places.append(place)
        return place

    def put(self, place: Place, message: bytes) -> Sequence[bytes]:
        """What may go out now: the message, or nothing while an earlier place is open."""
        if place.closed or self._places[0] is place:
            return (message,)
        place.kept.append(message)
        self.kept += len(message)
        return _NOTHING

    def close(self, place: Place) -> Sequence[bytes]:
        """No more will be put there. What may go out now that waited for it; harmless twice."""
        place.closed = True
        if not self._places or self._places[0] is not place:
            return _NOTHING
        out: list[bytes] = []
        while self._places and self._places[0].closed:
            self._places.popleft()
            if self._places:
                # The new first one waits for nobody; what it kept goes out, whether it is closed or not.
                out += self._places[0].kept
                self._places[0].kept = []
        self.kept -= sum(map(len, out))
        return out

    def clear(self) -> int:
        """Let go what waits; the bytes of it. What is put from now on goes out at once."""
        freed, self.kept = self.kept, 0
        for place in self._places:
            place.closed = True
            place.kept = []
        self._places.clear()
        return freed

"""Endings that could not be journaled: kept, without the call's content, until they are."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sidecar.core.recorded import Output, Recorded

if TYPE_CHECKING:
    from sidecar.core.model import Instant, Outcome, Usage
    from sidecar.core.ports import Recorder

__all__ = ["OWED_BYTES", "OWED_CALLS", "Ending", "Owed"]

# More than one process has in flight: a journal that fails admits nobody, so only calls from before can be owed an end.
OWED_CALLS: Final = 16_384
OWED_BYTES: Final = 16 * 2**20  # of output texts kept with them; beyond it an ending keeps length and digest only


@dataclass(frozen=True, slots=True)
class Ending:
    """How one call ended, as ``Recorder.settled`` takes it. ``at`` is when it ended, not when it is written."""

    recorded: Recorded
    output: Output
    outcome: Outcome
    usage: Usage
    at: Instant

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.output.texts)) + sum(map(len, self.output.messages))

    def without_texts(self) -> Ending:
        return replace(self, output=Output(self.output.offset, ()))


class Owed:
    """The endings the journal is owed. Without its end a call stays open there, and holds back every later segment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # two at once would journal an ending twice
        self._endings: dict[str, Ending] = {}  # oldest first
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._endings)

    def keep(self, ending: Ending) -> None:
        """Over the bounds a text, and then an ending, is let go: the next start records such a call as aborted."""
        ending = replace(ending, recorded=ending.recorded.without_content())
        with self._lock:
            if len(self._endings) >= OWED_CALLS:
                return
            if self._nbytes + ending.nbytes > OWED_BYTES:
                ending = ending.without_texts()
            self._endings[ending.recorded.admission.call.id] = ending
            self._nbytes += ending.nbytes

    def pay(self, recorder: Recorder) -> None:
        """Journal what can be, oldest first; a journal that refuses one would refuse the others for it, too.

        An ending that the recorder can't even write down (a bug of ours) is let go and the fault raised: tried for
        ever, it would keep every other from being written.
        """
        if not self._endings:
            return
        with self._turn:
            refusing: set[str] = set()
            for ending in self._waiting():
                store = ending.recorded.admission.verdict.store
                if store in refusing:
                    continue
                try:
                    denial = recorder.settled(ending.recorded, ending.output, ending.outcome, ending.usage, ending.at)
                except BaseException:  # a bug of ours at one ending must not hold up the rest; raised again
                    self._drop(ending)
                    raise
                if denial is not None:
                    refusing.add(store)
                else:
                    self._drop(ending)

    def _waiting(self) -> list[Ending]:
        with self._lock:
            return list(self._endings.values())

    def _drop(self, ending: Ending) -> None:
        with self._lock:
            del self._endings[ending.recorded.admission.call.id]
            self._nbytes -= ending.nbytes

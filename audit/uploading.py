"""Brings sealed tensors from a log's kept batches into the object store: put once, read back, patiently, in order.

A batch's objects go once its head was signed: from then on no other batch can take its place, so what is put under a
name stays what its record says. Until they are there the batch is kept. Whether the store answers holds up nothing,
until what waits for it is more than ``most_bytes``: then the shipper reads no further, and the journal's own ladder
(audit.pressure) decides what comes next.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from audit.batch import Batch
from audit.logbook import LogBook
from audit.objects import ObjectStore, StoreAt
from audit.payload import SealedObject
from audit.rows import CallRow
from audit.spool import write_whole

__all__ = ["UploadTo", "Uploader", "objects_in"]

BACKOFF_S: Final = 0.5  # before a store that failed is asked again, doubled up to:
BACKOFF_MOST_S: Final = 60.0
FINISH_S: Final = 10.0  # at a sidecar's end, for what is not there yet
_TELL_S: Final = 5.0  # between two notes of how far it came, where nothing was put


@dataclass(frozen=True, slots=True)
class UploadTo:
    """Where, and how many bytes may wait for it."""

    at: StoreAt
    most_bytes: int = 2 * 2**30


def objects_in(batch: Batch) -> list[SealedObject]:
    """In the order of its rows."""
    return [each for row in batch.rows if isinstance(row, CallRow) for each in row.objects]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A kept batch whose objects are not there yet: its positions, how many bytes, and since when."""

    first: int
    end: int
    nbytes: int
    since: float


class Uploader:
    """One log's. Its thread alone speaks to the store; all else is the shipper's own thread.

    ``objects.json`` beside the log keeps up to which position all of them are in the store. ``now`` is wall time, in
    seconds.
    """

    def __init__(self, to: UploadTo, book: LogBook, now: Callable[[], float]) -> None:
        self._to, self._book, self._now = to, book, now
        self._state = book.directory / "objects.json"
        self._opened: ObjectStore | None = None
        self._waiting: deque[_Waiting] = deque()
        self._nbytes = 0
        self._thread: threading.Thread | None = None
        self._fault: Exception | None = None
        self._again = 0.0
        self._wait = BACKOFF_S
        self._told_at = 0.0
        self._notes: list[tuple[str, dict[str, bool | int | float | str]]] = []
        self.trouble = ""
        self.stored = 0  # objects that were put or found there, since the start
        self._log = book.log
        self._done = self._load()
        self._reached = self._done  # batches before it were looked at
        self._save(self._done)
        for batch in book.from_position(self._done):  # what a process before this one may not have put
            self.kept(batch)

    @property
    def where(self) -> str:
        return self._to.at.where

    @property
    def full(self) -> bool:
        """Whether more waits for the store than may."""
        return self._nbytes >= self._to.most_bytes

    @property
    def waiting_bytes(self) -> int:
        return self._nbytes

    @property
    def oldest(self) -> float | None:
        """Since when (s since the UNIX epoch) the oldest of what is not there waits; None: all is there."""
        return self._waiting[0].since if self._waiting else None

    def take(self) -> list[tuple[str, dict[str, bool | int | float | str]]]:
        """What was seen of the store that belongs in the log, as events' kinds and details; each is given once."""
        taken, self._notes = self._notes, []
        return taken

    def kept(self, batch: Batch) -> None:
        """It was kept, in place of whatever was kept from its first position on."""
        while self._waiting and self._waiting[-1].first >= batch.first:
            self._nbytes -= self._waiting.pop().nbytes
        nbytes = sum(len(each.data) for each in objects_in(batch))
        if nbytes:
            self._waiting.append(_Waiting(batch.first, batch.end, nbytes, self._now()))
            self._nbytes += nbytes
        self._reached = batch.end

    def turn(self) -> None:
        """Note what has arrived, and begin the next; asks the store nothing itself."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            self._landed()
        if self._book.log != self._log:
            self._begin_anew()
        while self._waiting and self._waiting[-1].end > self._book.next_size:  # another shipper has stored it
            self._nbytes -= self._waiting.pop().nbytes
        at = self._now()
        if not self._waiting:
            self._passed(self._reached, at)
            return
        ahead = self._waiting[0]
        self._passed(min(ahead.first, self._book.signed.size), at)
        if ahead.end <= self._book.signed.size and at >= self._again:
            objects = objects_in(self._book.batch(ahead.first))
            self._thread = threading.Thread(target=self._run, args=(objects,), name="objects", daemon=True)
            self._thread.start()

    def finish(self, seconds: float, clock: Callable[[], float]) -> bool:
        """At the end: all that can be put within ``seconds`` (of ``clock``, monotonic); whether all is there."""
        until, self._again = clock() + seconds, 0.0
        while self._waiting and clock() < until and not self.trouble:
            self.turn()
            if self._thread is None:
                break
            self._thread.join(max(0.0, until - clock()))
        if self._thread is None or not self._thread.is_alive():
            self.turn()
        return not self._waiting

    # --- its thread -----------------------------------------------------------------------------------------------

    def _run(self, objects: Sequence[SealedObject]) -> None:
        self._fault = None
        try:
            store = self._opened = self._opened or self._to.at.open()
            for each in objects:
                self._put(store, each)
        except Exception as fault:  # noqa: BLE001 — whatever it is, it is told and tried again
            self._fault = fault

    def _put(self, store: ObjectStore, each: SealedObject) -> None:
        """Never a second time over the same bytes, and read back: that a store answers says nothing of what it holds.

        Raises OSError.
        """
        if store.put_new(each.name, each.data):
            self.stored += 1
        elif store.get(each.name) != each.data:
            self._notes.append(("object_replaced", {"where": self.where, "object": each.name}))
            store.put(each.name, each.data)  # ours alone is what the record says
            self.stored += 1
        else:
            return
        if store.get(each.name) != each.data:
            raise OSError(f"{self.where}: {each.name} reads back something else than was put there")

    # --- how far it came ------------------------------------------------------------------------------------------

    def _landed(self) -> None:
        fault = self._fault
        if fault is not None:
            told = isinstance(fault, OSError) and self.where in str(fault)
            self.trouble = (str(fault) if told else f"{self.where}: {fault!r}")[:500]
            self._again = self._now() + self._wait
            self._wait = min(self._wait * 2, BACKOFF_MOST_S)
            return
        self.trouble, self._wait = "", BACKOFF_S
        done = self._waiting.popleft()
        self._nbytes -= done.nbytes
        self._save(done.end)

    def _passed(self, position: int, at: float) -> None:
        """Nothing before ``position`` has objects that are missing."""
        if position > self._done and at - self._told_at >= _TELL_S:
            self._save(position)

    def _save(self, position: int) -> None:
        self._told_at = self._now()
        self._done = self._book.keep_from = position
        write_whole(self._state, json.dumps({"log": self._log, "done": position}).encode(), durable=False)

    def _load(self) -> int:
        try:
            told = json.loads(self._state.read_bytes())
            return int(told["done"]) if told["log"] == self._log else 0
        except FileNotFoundError:
            return self._book.next_size  # there was no store before
        except (OSError, ValueError, KeyError, TypeError):
            return 0  # all that is kept is looked at again, and found there

    def _begin_anew(self) -> None:
        """Another log took this one's place (audit.database); what that one kept lies aside with it."""
        self._log, self._done, self._reached = self._book.log, 0, 0
        self._waiting.clear()
        self._nbytes = 0
        self._save(0)

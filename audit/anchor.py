"""Keeps the fleet's heads in an object store, each under a name of its own that is never written twice."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.objects import ObjectStore, StoreAt
from audit.spool import write_whole
from audit.tlog import NoteError, Verifier, parse_checkpoint, parse_note

__all__ = ["AnchorError", "Anchored", "ObjectAnchor", "anchored_in", "head_name", "size_of"]

EVERY_S: Final = 60.0  # between two heads at least: so often the fleet's log holds each log's own
AGAIN_S: Final = 3600.0  # after which it is looked whether the last one is still there, grown or not
BACKOFF_S: Final = 5.0  # before a store that failed is asked again, doubled up to:
BACKOFF_MOST_S: Final = 600.0
READ: Final = 16  # of the newest heads that a verification reads
FINISH_S: Final = 5.0  # at a sidecar's end, for its last head
_FOLDER: Final = "heads"
_LAST: Final = 2**63 - 1
_NAME: Final = re.compile(_FOLDER + r"/([0-9a-f]{12})/([0-9a-f]{4})-([0-9]{1,19})")
_NOTE_BYTES: Final = 64 * 1024


class AnchorError(OSError):
    """The store did not take a head, or shows what it must not; waiting may help, unless the words say otherwise."""


@dataclass(frozen=True, slots=True)
class Anchored:
    """One head as the store has it."""

    size: int
    note: str


def head_name(size: int) -> str:
    """The newest comes first in a listing, which then needs one page: HEADS/COUNTING-DOWN/COUNTING-DOWN-SIZE."""
    down = f"{_LAST - size:016x}"
    return f"{_FOLDER}/{down[:12]}/{down[12:]}-{size}"


def size_of(name: str) -> int | None:
    """How many entries the head of that name is of; None: it is no head's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    size = int(match[3])
    return size if size <= _LAST and head_name(size) == name else None


def sizes_in(store: ObjectStore) -> Iterator[int]:
    """Of the heads that are there, the largest first. Raises OSError."""
    return (size for each in store.list(_FOLDER) if (size := size_of(each.name)) is not None)


def anchored_in(store: ObjectStore) -> list[Anchored]:
    """The newest heads, each as it was read there; what is no text is told as an empty note. Raises OSError."""
    found = []
    for size in itertools.islice(sizes_in(store), READ):
        data = store.get(head_name(size))
        if data is not None:
            found.append(Anchored(size, data[:_NOTE_BYTES].decode("utf-8", "replace")))
    return found


@dataclass(frozen=True, slots=True)
class _Failure:
    """Not before ``until`` is the store asked again, which is ``wait`` seconds after it failed."""

    until: float
    wait: float
    words: str


class ObjectAnchor:
    """One shipper's, in a thread of its own: whether the store answers holds up nothing.

    ``state`` keeps the size of the largest head that was read back from the store, so that a store which was put back
    to an older state is known for it. ``now`` is monotonic, in seconds.
    """

    def __init__(self, at: StoreAt, state: Path, verifier: Verifier, now: Callable[[], float]) -> None:
        self._at, self._state, self._verifier, self._now = at, state, verifier, now
        self._opened: ObjectStore | None = None
        self._seen = self._load()
        self._looked_at = float("-inf")
        self._failure: _Failure | None = None
        self._strict = False  # the store was seen to refuse a second write
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._notes: list[tuple[str, dict[str, bool | int | float | str]]] = []

    @property
    def where(self) -> str:
        return self._at.where

    @property
    def size(self) -> int:
        """Of the largest head that was read back from the store; 0: none yet."""
        return self._seen

    @property
    def trouble(self) -> str:
        """What keeps heads from being kept there, in words; "": nothing."""
        failure = self._failure
        return failure.words[:500] if failure is not None else ""

    def take(self) -> list[tuple[str, dict[str, bool | int | float | str]]]:
        """What was seen of the store that belongs in the log, as events' kinds and details; each is given once."""
        with self._lock:
            taken, self._notes = self._notes, []
        return taken

    def offer(self, note: str, *, last: bool = False) -> None:
        """Keep this head, where it is due; ``last``: in any case, within FINISH_S, for the sidecar ends.

        One thread at a time: where the one before does not end within that, this head is not kept.
        """
        begun, thread, size = self._now(), self._thread, parse_checkpoint(parse_note(note).text).size
        if thread is not None and thread.is_alive():
            if not last:
                return
            thread.join(FINISH_S)
            if thread.is_alive():
                return
        if last or self._due(size):
            self._thread = threading.Thread(target=self._run, args=(note, size), name="anchor", daemon=True)
            self._thread.start()
            if last:
                self._thread.join(max(0.0, begun + FINISH_S - self._now()))

    def _due(self, size: int) -> bool:
        at, failure = self._now(), self._failure
        if failure is not None:
            return at >= failure.until
        return at - self._looked_at >= (EVERY_S if size > self._seen else AGAIN_S)

    def _run(self, note: str, size: int) -> None:
        try:
            self._keep(note, size)
        except Exception as fault:  # noqa: BLE001 — whatever it is, it is told: a thread that just ends is not
            known = isinstance(fault, OSError | ValueError)
            words = str(fault) if known and self.where in str(fault) else f"{self.where}: {fault!r}"
            last = self._failure
            wait = BACKOFF_S if last is None else min(last.wait * 2, BACKOFF_MOST_S)
            self._failure = _Failure(self._now() + wait, wait, words)
        else:
            self._failure, self._looked_at = None, self._now()

    def _keep(self, note: str, size: int) -> None:
        """Raises AnchorError and OSError."""
        store = self._opened = self._opened or self._at.open()
        newest = next(sizes_in(store), 0)
        if newest < self._seen:
            self._rolled_back(newest)
        if newest > size:  # somebody else's, who has seen more: ours is of a part of it, if it is of this log
            self._read(store, newest)
            self._saw(newest)
            return
        name, data = head_name(size), note.encode()
        new = store.put_new(name, data)
        if new and not self._strict and store.put_new(name, data):
            words = "writes over what is there (it ignores If-None-Match), so it anchors nothing"
            raise AnchorError(f"{self.where}: {words}")
        self._strict = True
        found = self._read(store, size)
        if parse_note(found).text != parse_note(note).text:
            self._tell("anchor_disagrees", size=size)
            raise AnchorError(f"{self.where}: another head of {size} entries is anchored there")
        self._saw(size)

    def _read(self, store: ObjectStore, size: int) -> str:
        """A head of this log's own key, of that size. Raises AnchorError and OSError."""
        data = store.get(head_name(size))
        if data is None:
            raise AnchorError(f"{self.where}: the head of {size} entries was put there and is not there")
        with contextlib.suppress(NoteError, UnicodeDecodeError):
            note = parse_note(data.decode())
            head = parse_checkpoint(note.text)
            if self._verifier.accepts(note) and (head.origin, head.size) == (self._verifier.name, size):
                return data.decode()
        raise AnchorError(f"{self.where}: what it has as the head of {size} entries is not signed by this log's key")

    def _rolled_back(self, newest: int) -> None:
        self._tell("anchor_rolled_back", size=newest, anchored_size=self._seen)
        self._saw(newest)

    def _tell(self, kind: str, **detail: bool | int | float | str) -> None:
        with self._lock:
            self._notes.append((kind, {"where": self.where, **detail}))

    def _saw(self, size: int) -> None:
        if size != self._seen:
            write_whole(self._state, json.dumps({"where": self.where, "size": size}).encode())
            self._seen = size

    def _load(self) -> int:
        try:
            told = json.loads(self._state.read_bytes())
            return int(told["size"]) if told["where"] == self.where else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0  # the store says what it has

"""Up to where a journal may let go, where several databases are shipped to: the least that any of them has."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from audit.follow import Follower, read_shipped, write_shipped
from audit.record import decode, store_of
from audit.rootkeys import Root
from audit.segments import FaultKind

__all__ = ["Released", "StrandedError", "place_of", "refuse_stranded"]

_DATABASES: Final = "databases"  # in the journal's directory: a folder for each jurisdiction


class StrandedError(Exception):
    """The journal holds records for a database that is no longer configured."""


def place_of(journal: Path, jurisdiction: str, *, own: str) -> Path:
    """Where a database's log, kept batches and set-aside records are: the pod's own has them beside the journal."""
    return journal if jurisdiction == own else journal / _DATABASES / jurisdiction


class Released:
    """Thread-safe. Each database's own word is kept too, so that none is forgotten while it is away."""

    def __init__(self, journal: Path, jurisdictions: Sequence[str]) -> None:
        """Raises OSError. One that is new here has missed nothing: until now nothing was for it."""
        self._journal = journal
        self._several = len(jurisdictions) > 1
        self._lock = threading.Lock()
        before = self._told = read_shipped(journal)
        self._shipped: dict[str, int] = {}
        for each in jurisdictions:
            place = self.directory(each)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = read_shipped(place)
            if known < before:
                write_shipped(place, before)
            self._shipped[each] = max(known, before)

    def directory(self, jurisdiction: str) -> Path:
        """Where its own word is kept."""
        return self._journal / _DATABASES / jurisdiction if self._several else self._journal

    def tell(self, jurisdiction: str, sequence: int) -> None:
        """That a database has all that was for it up to ``sequence``. Raises OSError."""
        with self._lock:
            if self._several:
                write_shipped(self.directory(jurisdiction), sequence)
            self._shipped[jurisdiction] = sequence
            least = min(self._shipped.values())
            if least != self._told:
                write_shipped(self._journal, least)
                self._told = least


def refuse_stranded(journal: Path, root: Root, jurisdictions: Sequence[str]) -> None:
    """Raises StrandedError where a database was taken out of the configuration before it had all that was for it.

    What is stored elsewhere instead might be where it may not be; what is let go would be lost. Raises OSError.
    """
    try:
        known = sorted(path.name for path in (journal / _DATABASES).iterdir())
    except FileNotFoundError:
        return
    for name in known:
        if name in jurisdictions:
            continue
        place = journal / _DATABASES / name
        follower, last = Follower(journal, root, sequence=read_shipped(place) + 1), -1
        try:
            for sequence, data, info in follower:
                last = sequence
                if (_for(data) or info.jurisdiction) == name:
                    raise StrandedError(
                        f"the journal in {journal} holds records of {name!r} from sequence {sequence} on, and no "
                        f"database of {name!r} is configured: put audit.databases.{name} back until they are shipped"
                    )
            locked = next((fault for fault in follower.faults if fault.kind is FaultKind.KEY), None)
            if locked is not None:
                raise StrandedError(f"what is for {name!r} is not known: {locked.detail}")
        finally:
            follower.close()
        if last >= 0:
            write_shipped(place, last)


def _for(data: bytes) -> str:
    try:
        return store_of(decode(data))
    except (msgspec.DecodeError, UnicodeError):
        return ""

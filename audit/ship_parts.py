"""What a shipper works with: the journal it follows, its bounds, its parts, and the status it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec
import sqlalchemy as sa

from audit.assemble import CallRecord, CutOff, Place
from audit.fleet import Fleet
from audit.logbook import LogBook
from audit.poison import PoisonKeeper
from audit.record import Settled
from audit.remains import Keeps, keeps_in
from audit.upkeep import Upkeep
from audit.uploading import UploadTo
from audit.vault import Vault
from sidecar.core.model import Secret

__all__ = ["Bounds", "Item", "JournalError", "Parts", "Source", "Status", "StoppedError"]


class Item(msgspec.Struct, frozen=True, gc=False):
    """One journal entry as it was written."""

    sequence: int
    data: bytes
    place: Place


class Source(Protocol):
    """A journal that is followed: ``sidecar.runtime.journal_source``, in tests ``tests.support.store``."""

    @property
    def identity(self) -> str:
        """Which journal this is ("": none yet): a new directory is a new journal, whose sequence starts over."""
        ...

    def seek(self, sequence: int) -> None:
        """Read next from ``sequence``, or from the oldest entry there still is."""
        ...

    def read(self, limit: int) -> Sequence[Item]:
        """Up to ``limit`` entries that are there now, in order; empty at the end. Raises OSError."""
        ...

    def waiting(self) -> int:
        """Entries that were written and not read yet (about)."""
        ...

    def sync(self) -> None:
        """Make durable what was read, before the database has it."""
        ...

    def shipped(self, sequence: int) -> None:
        """Nothing up to ``sequence`` is needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """A batch is stored at ``rows``, at ``nbytes``, or ``seconds`` after its first row; all else is a deadline.

    While ``rows`` entries or more wait to be read, it grows to ``rows_most`` and ``seconds_most``: each batch costs
    round trips and fsyncs, whatever its size.
    """

    rows: int = 500
    rows_most: int = 4000
    nbytes: int = 8 * 2**20
    seconds: float = 0.2
    seconds_most: float = 1.0
    read: int = 1000  # entries read at once
    idle: float = 0.02  # seconds to wait at the journal's end
    cursor: float = 1.0  # seconds after which a cursor that moved is stored, rows or none
    heard: float = 600.0  # seconds after which one is stored all the same: so is told that nothing waits here
    measure: float = 0.2  # seconds between looks at what waits
    checkpoint: float = 1.0  # seconds between two signed heads while the log grows
    fleet: float = 5.0  # seconds between two looks at the fleet's log
    keep: float = 86400.0  # seconds that sealed batches are kept, for a database that is restored
    keep_bytes: int = 8 * 2**30  # of them at most: beyond it the oldest go sooner
    keep_free: int = 0  # bytes of their disk: with less free they go sooner, and a batch takes a quarter of it at most
    sharers: int = 1  # shippers that share that disk, this one among them: each takes its part of the quarter
    backoff: float = 0.2  # seconds before the first retry, doubled up to:
    backoff_most: float = 30.0
    transaction: float = 60.0  # seconds after which a database that hangs is given up


@dataclass(frozen=True, slots=True)
class Parts:
    """What the shipper works with. ``chance`` gives [0, 1); ``ended`` is told each stored call, and must not wait."""

    source: Source
    engine: sa.Engine
    redaction_key: Secret  # keys what a redacted identifier is replaced by
    vault: Vault
    book: LogBook
    poison: PoisonKeeper
    directory: Path  # the journal's; holds the spooled bundles
    sidecar: str
    region: str
    jurisdiction: str
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    chance: Callable[[], float]
    ended: Callable[[CallRecord], None] | None = None
    fleet: Fleet | None = None
    own: str = ""  # the jurisdiction that the pod itself is in; "": this one
    objects: UploadTo | None = None  # where tensors' bytes are kept; None: nowhere
    # Of a journal that nobody writes any more: the outcome of a call that it leaves open (None: it is written).
    cut_off: Callable[[CutOff], Settled] | None = None
    closes: Callable[[], Sequence[str]] = tuple  # further logs that end when this one does: of those that are gone

    copied_to: str = ""  # where copies of the journal lie

    def keeps(self, now: datetime) -> Keeps:
        """What can still be read of this journal. Raises OSError."""
        return keeps_in(self.directory, self.poison.directory, now, self.copied_to)

    @property
    def place(self) -> str:
        """The jurisdiction that the pod itself is in."""
        return self.own or self.jurisdiction


@dataclass(slots=True)
class Status:
    """What ``ship.json`` shows (sidecar.telemetry.shipfile)."""

    shipped_sequence: int = 0
    position: int = 0
    lag_records: int = 0
    oldest_unshipped_at: float | None = None
    last_error: str | None = None
    rows: int = 0
    poisoned: int = 0
    aborted: int = 0  # calls that a journal nobody writes any more left open
    open_calls: int = 0
    database_up: bool = False
    log: str = ""
    signed_size: int = 0  # of the last head that is stored
    tampered: bool = False  # the database shows a tree that was not made here
    upkeep: Upkeep | None = None  # as it was when the database was last asked; None: never yet
    # What keeps the fleet's heads from being kept outside the database; "": nothing, None: there is none of the kind.
    anchor_trouble: str | None = None
    witness_trouble: str | None = None
    # Of tensors' bytes: what keeps them from the object store, since when the oldest waits, how many bytes do.
    objects_trouble: str | None = None
    objects_oldest: float | None = None
    objects_bytes: int = 0
    objects_stored: int = 0


class JournalError(Exception):
    """The journal cannot be followed as it is; waiting may help."""


class StoppedError(Exception):
    """Asked to stop while the database was away; what is pending is still in the journal."""

"""Keeps the key ring and the deny-list fresh from Postgres: one daemon thread, one connection, LISTEN and polling."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from psycopg.rows import TupleRow

from sidecar.identity import load
from sidecar.identity.denials import Age, DenyBook, DenyList
from sidecar.identity.keyrow import KeyRow
from sidecar.identity.keys import KeyRing, KeySnapshot
from sidecar.identity.keytable import Going, KeyTable
from sidecar.identity.persist import Kept, SnapshotFile

_LOG: Final = logging.getLogger("warden.identity")
CONNECT_TIMEOUT: Final = 3  # seconds
STATEMENT_TIMEOUT_MS: Final = 10_000
BACKOFF: Final = (0.1, 5.0)  # seconds: first and longest wait before connecting again
MAX_LOAD: Final = 0.05  # of the time may be spent asking whether anything changed, but
SLOWEST: Final = 2.0  # seconds between two askings for that reason at most: the ring must not take it for an outage
ALL_EVERY: Final = 900.0  # seconds: then every key is read, so that nothing stays missed (rows written by replication)
SAVE_EVERY: Final = 5.0  # seconds: how far what is kept for an outage may be behind
USED_EVERY: Final = 60.0  # seconds between two batches of last uses, which are told to the minute
USED_BATCH: Final = 1000  # keys in one statement
_PAUSE: Final = 0.0005  # seconds between two pieces, for whoever waits for the interpreter
_WAIT: Final = 0.5  # seconds at most in one wait for a notification, so that stop() is prompt
_SETTLE: Final = 0.02  # seconds: a burst of changes is read once, not once each
# A row that another pod (or the command line) holds just now is passed over till the next time: no deadlocks, no waits.
_USED: Final = """
WITH used AS (
    SELECT k.id, to_timestamp(u.at) AS at
    FROM unnest(%s::text[], %s::float8[]) AS u (id, at) JOIN warden.api_keys k ON k.id = u.id
    WHERE k.last_used_at IS NULL OR k.last_used_at < to_timestamp(u.at)
    FOR UPDATE OF k SKIP LOCKED)
UPDATE warden.api_keys k SET last_used_at = used.at FROM used WHERE k.id = used.id"""


_NO_KEYS: Final = KeyTable()


@dataclass(frozen=True, slots=True)
class RefreshStatus:
    """How refreshing goes, for readiness and metrics: keys held, loads done, the last fault ("" while all is well)."""

    keys: int = 0
    loads: int = 0
    fault: str = ""
    denied: int = 0
    forgotten: int = 0  # what has ended here and, by the database's word, has not: it was restored from before


class KeyRefresher:
    """Swaps ring and deny-list whole whenever the tables changed; never on a caller's thread, which never waits for it.

    ``refresh`` is the seconds between polls; a NOTIFY on ``warden_api_keys`` is acted on at once. While Postgres does
    not answer, the ring is told so and keeps what it has. ``ring`` is None where no API keys are accepted, ``file``
    where nothing is kept for an outage. ``changed`` is called, on the refresher's thread, after every change.
    """

    def __init__(
        self,
        dsn: str,
        ring: KeyRing | None,
        book: DenyBook | None = None,
        *,
        refresh: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        file: SnapshotFile | None = None,
        changed: Callable[[], None] = lambda: None,
        used_every: float = USED_EVERY,
    ) -> None:
        """``clock`` gives seconds since the UNIX epoch, ``monotonic`` seconds to measure with."""
        self._dsn = dsn.replace("postgresql+psycopg://", "postgresql://", 1)
        self._ring = ring
        self._book = book
        self._refresh = refresh
        self._clock = clock
        self._monotonic = monotonic
        self._changed = changed
        self._used_every = used_every
        if ring is not None:
            ring.expect(refresh)
        self._stopping = threading.Event()
        self._status = RefreshStatus(fault="not loaded yet")
        self._seen: load.Look | None = None  # None: whatever was missed is found by loading all
        self._all_at = 0.0  # when every key is read again
        self._gone: Mapping[str, KeyRow] = {}  # keys that are no more, and how they had ended
        self._forgotten = (0, 0)  # keys, denials
        self._age = Age(0.0)
        self._keeper = _Keeper(file, self._pause)
        self._used: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="warden-keys", daemon=True)

    @property
    def status(self) -> RefreshStatus:
        return self._status

    def restore(self) -> str | None:
        """Take what was kept for an outage; in words why it is of no use. Call before ``start``."""
        kept = self._keeper.load()
        if not isinstance(kept, Kept):
            return kept
        if self._ring is not None:
            self._ring.install(KeySnapshot(kept.rows, kept.age), away=True)
        if self._book is not None:
            self._book.install(kept.denied, kept.age)
        self._gone = {row.id: row for row in kept.gone}
        self._status = RefreshStatus(len(kept.rows), 0, "restored from disk", len(kept.denied))
        return None

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Ends the thread and its connection; waits at most ``timeout`` seconds."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _pause(self) -> None:
        self._stopping.wait(_PAUSE)

    def _run(self) -> None:
        wait = BACKOFF[0]
        while not self._stopping.is_set():
            before = self._age
            try:
                with self._connect() as connection:
                    self._follow(connection)
            except (psycopg.Error, OSError) as fault:
                self._lost(fault)
            except Exception as fault:  # noqa: BLE001 — a thread that died would leave revoked keys good, unnoticed
                _LOG.error("keys.crashed", exc_info=fault)
                self._lost(fault)
            # A connection that served resets the backoff; one that never did doubles it.
            wait = BACKOFF[0] if self._age is not before else min(2 * wait, BACKOFF[1])
            self._stopping.wait(wait)

    def _connect(self) -> psycopg.Connection[TupleRow]:
        return psycopg.connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=None,  # no statement outlives its transaction, so a pooler may stand between
            connect_timeout=CONNECT_TIMEOUT,
            application_name="warden-keys",
            # A peer that vanished is noticed in seconds, not after the kernel's two hours.
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=5000,
        )

    def _follow(self, connection: psycopg.Connection[TupleRow]) -> None:
        """Load, then look again at every notification and every poll, until stopped or the connection breaks.

        Behind a pooler the LISTEN may stay with another session and never be heard of: then the polls find changes.
        """
        connection.execute("LISTEN warden_api_keys")
        self._seen = None
        flush_at = self._monotonic() + self._used_every
        while not self._stopping.is_set():
            began = self._monotonic()
            self._look(connection)
            took = self._monotonic() - began
            if began >= flush_at:
                self._tell_used(connection)
                flush_at = began + self._used_every
            self._await_change(connection, max(self._refresh, min(took / MAX_LOAD, SLOWEST)))
        self._tell_used(connection)

    # --- keys and denials ------------------------------------------------------------------------------------------

    def _look(self, connection: psycopg.Connection[TupleRow]) -> None:
        """Confirm what is known, or replace it."""
        at = self._clock()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
            seen = load.look(connection, at)
            rows = None if self._ring is None else self._keys(connection, seen, self._ring)
            denied = None if self._book is None else self._denials(connection, seen)
        going = Going(self._held())
        if rows is not None:
            self._pause()
        if self._ring is not None:
            self._ring.confirm(seen.age) if rows is None else self._ring.install(KeySnapshot(rows, seen.age))
        if self._book is not None:
            self._book.confirm(seen.age) if denied is None else self._book.install(denied, seen.age)
        self._seen, self._age = seen, seen.age
        anew = rows is not None or denied is not None
        loads = self._status.loads + (rows is not None)
        self._status = RefreshStatus(seen.keys, loads, denied=seen.denied[0], forgotten=sum(self._forgotten))
        if anew:
            self._pause()
            self._changed()
            going.let_go(self._pause)
        self._keep(anew=anew)

    def _keys(self, connection: psycopg.Connection[TupleRow], seen: load.Look, ring: KeyRing) -> KeyTable | None:
        """Every key where one changed; None where none did. Only what changed is read, where that can be told."""
        have = self._held()
        if ring.state.snapshot is not None and self._same_place(seen) and self._monotonic() < self._all_at:
            assert self._seen is not None
            now = seen.age.confirmed_at
            changed, revived = load.changed_keys(connection, self._seen.xmin, have, self._gone, now, self._pause)
            if not changed and len(have) == seen.keys:
                return None
            rows = have.updated(changed, self._pause)
            if len(rows) == seen.keys:  # else some were deleted
                self._note_forgotten(self._forgotten[0] + revived, self._forgotten[1])
                return rows
        every = load.every_key(connection, have, self._gone, seen.age.confirmed_at, self._pause)
        self._all_at = self._monotonic() + ALL_EVERY
        self._gone = every.gone
        self._note_forgotten(every.revived, self._forgotten[1])
        return every.rows

    def _same_place(self, seen: load.Look) -> bool:
        """Whether what was seen last was the same table; an xmin that went back says no, too."""
        return self._seen is not None and self._seen.place == seen.place and self._seen.xmin <= seen.xmin

    def _denials(self, connection: psycopg.Connection[TupleRow], seen: load.Look) -> DenyList | None:
        if self._seen is not None and self._seen.denied == seen.denied:
            return None
        have = (self._book.current if self._book is not None else None) or DenyList()
        denied, lost = load.deny_list(connection, have, seen.age.confirmed_at, self._pause)
        self._note_forgotten(self._forgotten[0], lost)
        return denied

    def _note_forgotten(self, keys: int, denials: int) -> None:
        """Say so once: a database that was restored wants its revocations again, for pods that never saw them."""
        if (keys, denials) != self._forgotten and keys + denials:
            _LOG.warning("keys.database_went_back", extra={"warden": {"count": keys + denials}})
        self._forgotten = (keys, denials)

    def _held(self) -> KeyTable:
        snapshot = None if self._ring is None else self._ring.state.snapshot
        return _NO_KEYS if snapshot is None else snapshot.rows

    def _keep(self, *, anew: bool) -> None:
        denied = (self._book.current if self._book is not None else None) or DenyList()
        kept = Kept(self._held(), denied, self._age, tuple(self._gone.values()))
        self._keeper.keep(kept, self._monotonic(), anew=anew)

    def _await_change(self, connection: psycopg.Connection[TupleRow], seconds: float) -> None:
        deadline = self._monotonic() + seconds
        while not self._stopping.is_set() and (left := deadline - self._monotonic()) > 0:
            if list(connection.notifies(timeout=min(left, _WAIT), stop_after=1)):
                self._stopping.wait(_SETTLE)
                return

    def _lost(self, fault: Exception) -> None:
        if self._ring is not None:
            self._ring.lost()
        # The class and SQLSTATE only: a driver's message may quote the connection string.
        state = fault.sqlstate if isinstance(fault, psycopg.Error) else None
        said = type(fault).__name__ + (f" {state}" if state else "")
        self._status = replace(self._status, fault=said)

    # --- last uses -------------------------------------------------------------------------------------------------

    def _tell_used(self, connection: psycopg.Connection[TupleRow]) -> None:
        """Write the last uses, to the minute. What cannot be written now is written next time."""
        if self._ring is None:
            return
        for key_id, at in self._ring.take_used().items():
            self._used[key_id] = at - at % 60
        ids = sorted(self._used)
        for start in range(0, len(ids), USED_BATCH):
            batch = ids[start : start + USED_BATCH]
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
                    connection.execute(_USED, (batch, [self._used[key_id] for key_id in batch]))
            except psycopg.Error:
                return
            for key_id in batch:
                del self._used[key_id]


class _Keeper:
    """When what is known is written to disk: a change soon, a confirmation now and then."""

    def __init__(self, file: SnapshotFile | None, pause: Callable[[], None]) -> None:
        self._file = file
        self._pause = pause
        self._stale = False  # the disk holds an older snapshot
        self._next = 0.0

    def load(self) -> Kept | str | None:
        return None if self._file is None else self._file.load()

    def keep(self, kept: Kept, monotonic: float, *, anew: bool) -> None:
        """A disk that fails is no reason to stop: then there is nothing to start from while the database is away."""
        self._stale = self._stale or anew
        if self._file is None or monotonic < self._next:
            return
        self._next = monotonic + SAVE_EVERY
        try:
            if self._stale:
                self._file.save(kept, self._pause)
                self._stale = False
            else:
                self._file.confirm(kept.age)
        except OSError:
            self._stale = True

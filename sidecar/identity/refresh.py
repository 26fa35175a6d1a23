"""Keeps the key ring's snapshot fresh from Postgres: one daemon thread, one connection, LISTEN and polling."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import psycopg
from psycopg.rows import TupleRow

from sidecar.identity.keys import KeyRing, KeyRow, KeySnapshot

_LOG: Final = logging.getLogger("warden.identity")
CONNECT_TIMEOUT: Final = 3  # seconds
STATEMENT_TIMEOUT_MS: Final = 10_000
BACKOFF: Final = (0.1, 5.0)  # seconds: first and longest wait before connecting again
MAX_LOAD: Final = 0.05  # of the time may be spent asking whether anything changed, but
SLOWEST: Final = 2.0  # seconds between two askings for that reason at most: the ring must not take it for an outage
PIECE: Final = 500  # rows read at a time, about 2 ms
_WAIT: Final = 0.5  # seconds at most in one wait for a notification, so that stop() is prompt
_SETTLE: Final = 0.02  # seconds: a burst of changes is read once, not once each

# Everything that decides about a key, and not last_used_at: counting uses must not reload 100,000 keys on every pod.
_DECIDING: Final = (
    "id, tenant, name, environment, secret_mac, expires_at, not_before, revoked_at, models, roles, rotated_mac, "
    "rotated_until"
)
_LOAD: Final = f"SELECT {_DECIDING} FROM warden.api_keys"  # noqa: S608 — constants only
_FINGERPRINT: Final = (
    f"SELECT count(*), coalesce(sum(hashtextextended(ROW({_DECIDING})::text, 0)), 0) FROM warden.api_keys"  # noqa: S608
)


@dataclass(frozen=True, slots=True)
class RefreshStatus:
    """How refreshing goes, for readiness and metrics: keys held, loads done, the last fault ("" while all is well)."""

    keys: int = 0
    loads: int = 0
    fault: str = ""


class KeyRefresher:
    """Swaps the ring's snapshot whole whenever the table changed; never on a caller's thread, which never waits for it.

    ``refresh`` is the seconds between polls; a NOTIFY on ``warden_api_keys`` is acted on at once. While Postgres does
    not answer, the ring is told so and keeps what it has.
    """

    def __init__(
        self,
        dsn: str,
        ring: KeyRing,
        *,
        refresh: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """``clock`` gives seconds since the UNIX epoch, ``monotonic`` seconds to measure with."""
        self._dsn = dsn.replace("postgresql+psycopg://", "postgresql://", 1)
        self._ring = ring
        self._refresh = refresh
        self._clock = clock
        self._monotonic = monotonic
        ring.expect(refresh)
        self._stopping = threading.Event()
        self._status = RefreshStatus()
        self._fingerprint: TupleRow | None = None
        self._thread = threading.Thread(target=self._run, name="warden-keys", daemon=True)

    @property
    def status(self) -> RefreshStatus:
        return self._status

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Ends the thread and its connection; waits at most ``timeout`` seconds."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        wait = BACKOFF[0]
        while not self._stopping.is_set():
            confirmed = self._ring.state.confirmed_at
            try:
                with self._connect() as connection:
                    self._follow(connection)
            except (psycopg.Error, OSError) as fault:
                self._lost(fault)
            except Exception as fault:  # noqa: BLE001 — a thread that died would leave revoked keys good, unnoticed
                _LOG.error("keys.crashed", exc_info=fault)
                self._lost(fault)
            # A connection that served resets the backoff; one that never did doubles it.
            wait = BACKOFF[0] if self._ring.state.confirmed_at != confirmed else min(2 * wait, BACKOFF[1])
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
        """Load, then look again at every notification and every poll, until stopped or the connection breaks."""
        connection.execute("LISTEN warden_api_keys")
        self._fingerprint = None  # whatever was notified while nobody listened is found by loading
        while not self._stopping.is_set():
            began = self._monotonic()
            self._look(connection)
            took = self._monotonic() - began
            self._await_change(connection, max(self._refresh, min(took / MAX_LOAD, SLOWEST)))

    def _look(self, connection: psycopg.Connection[TupleRow]) -> None:
        """Confirm the snapshot, or replace it. What is read is as of before it was read, so the age never flatters."""
        at = self._clock()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
            fingerprint = connection.execute(_FINGERPRINT).fetchone()
            if fingerprint == self._fingerprint:
                self._ring.confirm(at)
                return
            rows = self._load(connection)
        self._ring.install(KeySnapshot(rows, at))
        self._fingerprint = fingerprint
        self._status = RefreshStatus(len(rows), self._status.loads + 1)

    def _load(self, connection: psycopg.Connection[TupleRow]) -> dict[str, KeyRow]:
        """Every key, fetched piece by piece: the driver keeps the interpreter to itself while it reads a piece."""
        with connection.cursor("warden_keys") as cursor:
            cursor.itersize = PIECE
            cursor.execute(_LOAD)
            return {row[0]: _row(row) for row in cursor}

    def _await_change(self, connection: psycopg.Connection[TupleRow], seconds: float) -> None:
        deadline = self._monotonic() + seconds
        while not self._stopping.is_set() and (left := deadline - self._monotonic()) > 0:
            if list(connection.notifies(timeout=min(left, _WAIT), stop_after=1)):
                self._stopping.wait(_SETTLE)
                return

    def _lost(self, fault: Exception) -> None:
        self._ring.lost()
        # The class and SQLSTATE only: a driver's message may quote the connection string.
        state = fault.sqlstate if isinstance(fault, psycopg.Error) else None
        said = type(fault).__name__ + (f" {state}" if state else "")
        self._status = RefreshStatus(self._status.keys, self._status.loads, said)


def _row(row: TupleRow) -> KeyRow:
    key_id, tenant, name, environment, secret, expires, begins, revoked, models, roles, rotated, until = row
    return KeyRow(
        id=key_id,
        tenant=tenant,
        name=name,
        environment=environment,
        secret_mac=bytes(secret),
        expires_at=_seconds(expires),
        not_before=_seconds(begins),
        revoked_at=_seconds(revoked),
        models=None if models is None else tuple(models),
        roles=frozenset(roles),
        rotated_mac=None if rotated is None else bytes(rotated),
        rotated_until=_seconds(until),
    )


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()

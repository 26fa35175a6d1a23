"""`warden journal import` put together: a lost journal's copies, and the shipper that turns them into records."""

from __future__ import annotations

import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from audit import store
from audit.entries import cut_off
from audit.fleet import Fleet
from audit.logbook import LogBook
from audit.objects import Together
from audit.poison import PoisonKeeper
from audit.reassembly import CopiedJournal, reassemble
from audit.rootkeys import Root
from audit.seal import KeyFault
from audit.segments import FaultKind, read_info, segments_in
from audit.ship import Bounds, Item, Parts, Shipper
from audit.tables import audit_logs, fleet_entries, journal_cursors
from audit.vault import Vault
from sidecar.core.model import Secret
from sidecar.runtime import clock
from sidecar.runtime.dsn import sidecar_dsn
from sidecar.runtime.journal_source import JournalSource
from sidecar.runtime.masterkeys import keys_of
from sidecar.runtime.settings import Settings
from sidecar.runtime.shipping import alone, content_root, load_sealer, tensor_store

__all__ = ["ALIVE_S", "ImportFaultError", "Imported", "import_journal"]

ALIVE_S: Final = 120.0  # a sidecar that wrote to the store so lately (seconds) may still be there: it beats each 30
_POLL_S: Final = 0.2


class ImportFaultError(Exception):
    """It cannot be imported as things are; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one journal. ``closed``: logs that ended with it; ``open``: those that could not be closed."""

    journal: str
    sidecar: str
    jurisdiction: str  # whose database took its records
    records: int
    aborted: int
    log: str  # that took them
    closed: tuple[str, ...]
    open: tuple[str, ...]
    faults: tuple[str, ...]
    away: tuple[str, ...]  # stores that did not answer, and may hold more of it: it is not ended before they do

    def shape(self) -> dict[str, Any]:
        return asdict(self)


class _LostSource(JournalSource):
    """A journal that nobody writes: what can't be read at its end will never be whole.

    ``partly``: a store that is away may hold more of it. It is set where what is here ends, or has a hole: what follows
    is left, and calls under way are not cut off.
    """

    def __init__(self, directory: Path, root: Root, partly: threading.Event | None) -> None:
        super().__init__(directory, root)
        self._oldest = next((first for first, _ in segments_in(directory)), 0)
        self._partly, self._due = partly, 0

    def seek(self, sequence: int) -> None:
        super().seek(sequence)
        self._due = max(sequence, 0) or self._oldest  # what lies before it went with what is in the database

    def read(self, limit: int) -> Sequence[Item]:
        items = super().read(limit)
        if self._partly is None:
            return items
        whole = [item for due, item in enumerate(items, self._due) if item.sequence == due]
        self._due += len(whole)
        if not items or len(whole) < len(items):
            self._partly.set()
        return whole

    def waiting(self) -> int:
        return 0 if self._partly is None else 1


def import_journal(
    settings: Settings, objects: Together, found: CopiedJournal, work: Path, root: Root,
    *, patience_s: float, told: Callable[[str], None],
) -> Imported:  # fmt: skip
    """Reassemble ``found`` in ``work`` and store what the database lacks of it. Killed, it goes on where it was.

    Where one of the stores is away, only what the others hold without a hole: no call is cut off, no log closed.
    ``patience_s``: how long the database may be away. Raises ImportFaultError, WrongJurisdictionError,
    AlreadyShippingError and OSError.
    """
    faults = reassemble(objects, found, work, root)
    if any(fault.kind is FaultKind.KEY for fault in faults):
        raise ImportFaultError(f"journal {found.journal}: {faults[0].detail}")
    if not segments_in(work):
        raise ImportFaultError(f"journal {found.journal}: {objects.where} has no segment of it that can be read")
    jurisdiction = _for(work)
    if jurisdiction not in settings.audit.jurisdictions:
        words = (
            f"it is for a database of {jurisdiction!r}, and {', '.join(settings.audit.jurisdictions)} are configured"
        )
        raise ImportFaultError(f"journal {found.journal}: {words}")
    stop = threading.Event()
    away = tuple(objects.away)
    engine, shipper, log = _shipper(settings, jurisdiction, found, work, root, stop, partly=bool(away))
    try:
        with alone(work, stop):
            _run(shipper, stop, patience_s, told)
        closed, left = _logs_of(engine, found.journal, log)
    finally:
        engine.dispose()
    if not left:  # the log's own state stays: should it be asked for again, it is the same log
        for _, path in segments_in(work):
            path.unlink()
    return Imported(
        found.journal, found.beat.sidecar if found.beat is not None else "", jurisdiction, shipper.status.rows,
        shipper.status.aborted, log, tuple(closed), tuple(left), tuple(fault.detail for fault in faults), away,
    )  # fmt: skip


def _for(work: Path) -> str:
    """The jurisdiction whose database a journal is for, as its first segment says; "": it can't be read."""
    for _, path in segments_in(work):
        with path.open("rb") as file:
            header = read_info(file.fileno())
        if header is not None:
            return header[0].store or header[0].jurisdiction
    return ""


def _shipper(
    whole: Settings, jurisdiction: str, found: CopiedJournal, work: Path, root: Root, stop: threading.Event,
    *, partly: bool,
) -> tuple[sa.Engine, Shipper, str]:  # fmt: skip
    settings = whole.of(jurisdiction)
    key, sealer, dsn = content_root(settings), load_sealer(settings), sidecar_dsn(settings.audit.database)
    for each in (key, sealer, dsn):
        if isinstance(each, KeyFault):
            raise ImportFaultError(each.detail)
    assert isinstance(key, Secret)
    assert not isinstance(sealer, KeyFault)
    assert isinstance(dsn, str)
    sidecar, own = settings.sidecar.name, whole.audit.database.jurisdiction
    engine = store.connect(dsn, application=f"warden-import-{sidecar}"[:63])
    book = LogBook(work / "log", sidecar, jurisdiction, key, secrets.token_bytes)
    parts = Parts(
        source=_LostSource(work, root, stop if partly else None),
        engine=engine,
        redaction_key=sealer.redaction_key,
        vault=Vault(keys_of(settings, engine), secrets.token_bytes),
        book=book,
        fleet=Fleet(work / "fleet", jurisdiction, key),  # the sidecars that live take its heads outside
        poison=PoisonKeeper(work / "poison", sealer),
        directory=work,
        sidecar=sidecar,
        region=settings.sidecar.region,
        jurisdiction=jurisdiction,
        own=own,
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        chance=random.random,
        cut_off=None if partly else lambda call: cut_off(call, clock.now()),
        objects=tensor_store(settings),
        closes=lambda: _dead(engine, found.journal, book.log),
    )
    return engine, Shipper(parts, stop, Bounds(keep=settings.audit.journal.keep)), book.log


def _run(shipper: Shipper, stop: threading.Event, patience_s: float, told: Callable[[str], None]) -> None:
    """In a thread, so that a database that stays away can be given up, and any trouble is told once."""
    raised: list[BaseException] = []

    def ship() -> None:
        try:
            shipper.run()
        except BaseException as fault:  # noqa: BLE001 — raised where the caller waits
            raised.append(fault)

    thread = threading.Thread(target=ship, name="import", daemon=True)
    thread.start()
    seen, since = None, time.monotonic()
    while thread.is_alive():
        thread.join(_POLL_S)
        trouble = shipper.status.last_error
        if trouble is None:
            since = time.monotonic()
        elif trouble != seen:
            told(trouble)
        seen = trouble
        if time.monotonic() - since > patience_s and not stop.is_set():
            stop.set()
            thread.join(patience_s)
            raise ImportFaultError(f"given up after {patience_s:g} s: {trouble}")
    if raised:
        raise raised[0]


def _dead(engine: sa.Engine, journal: str, ours: str) -> Sequence[str]:
    """The logs that read this journal before."""
    c = journal_cursors.c
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(c.log).where(c.journal == journal, c.log != ours).distinct()))


def _logs_of(engine: sa.Engine, journal: str, ours: str) -> tuple[list[str], list[str]]:
    """(closed, not closed): the logs that read this journal and hold records, as the fleet's log knows them."""
    closed, left = [], []
    with engine.connect() as connection:
        told = map(json.loads, connection.scalars(sa.select(fleet_entries.c.body).order_by(fleet_entries.c.position)))
        last = {body["log"]: body["kind"] for body in told if body["kind"] in ("head", "closed")}
        for log in (ours, *_dead(engine, journal, ours)):
            size = connection.scalar(sa.select(audit_logs.c.next_position).where(audit_logs.c.log == log)) or 0
            if size and last.get(log) != "closed":
                left.append(log)
            elif size:
                closed.append(log)
    return closed, left

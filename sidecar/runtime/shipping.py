"""`warden ship` put together: the journal's follower, the database, the span exporter, and the report it writes."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import logging
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from audit import store
from audit.assemble import CallRecord
from audit.content import ContentSealer
from audit.fleet import FileAnchor, Fleet
from audit.logbook import ForkError, LogBook
from audit.objects import StoreAt
from audit.poison import PoisonKeeper
from audit.rootkeys import Root
from audit.seal import KeyFault, load_root_key
from audit.ship import Bounds, Parts, Shipper, Status
from audit.tlog import parse_verifier
from audit.uploading import UploadTo
from audit.vault import Vault
from audit.witness import Witness
from sidecar.core.model import Secret
from sidecar.runtime.copy_settings import CopyError, store_of
from sidecar.runtime.dsn import sidecar_dsn
from sidecar.runtime.journal_source import JournalSource
from sidecar.runtime.masterkeys import keys_of
from sidecar.runtime.object_settings import objects_at
from sidecar.runtime.settings import Settings
from sidecar.runtime.ship_report import reporting
from sidecar.runtime.stranded import refuse_stranded
from sidecar.telemetry import logs
from sidecar.telemetry.export import SpanPump, exporter_for
from sidecar.telemetry.spans import resource_of, span_of, to_be_exported

__all__ = [
    "AlreadyShippingError",
    "alone",
    "anchor_store",
    "bind_to_parent",
    "collect_seldom",
    "content_root",
    "keep_memory",
    "keys_of",
    "load_sealer",
    "ship",
    "tensor_store",
    "witnesses_of",
]

_LOG: Final = logging.getLogger("warden.ship")
LOCK_SECONDS: Final = 15.0  # to wait for the shipper before us to finish its batch
SPANS_GRACE: Final = 3.0  # seconds to send what is queued on stop
KEPT_BYTES: Final = 32 * 2**20  # of free memory at the end of the heap
_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
FIRST_PAUSE: Final = 0.5  # seconds before one of several is tried again, doubled up to:
LAST_PAUSE: Final = 15.0
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class AlreadyShippingError(Exception):
    """Another process ships this journal."""


# --- the process --------------------------------------------------------------------------------------------------


def bind_to_parent(stop: threading.Event, parent: int | None) -> None:
    """Let the kernel send SIGTERM when our parent dies; set ``stop`` where it died before that.

    ``parent``: its process id, where it told us. It may die in the second that our imports take, and then what
    getppid says is somebody else's.
    """
    parent = parent or os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        stop.set()


def load_sealer(settings: Settings) -> ContentSealer | KeyFault:
    """What content is sealed with: under the database's own key file, else the journal's."""
    root = content_root(settings)
    return root if isinstance(root, KeyFault) else ContentSealer(root.reveal())


def content_root(settings: Settings) -> Secret | KeyFault:
    """The jurisdiction's root key: what the logs' keys follow from."""
    return load_root_key(settings.audit.database.key_file or settings.audit.journal.key_file)


def witnesses_of(settings: Settings) -> list[Witness]:
    """Raises NoteError for a key that is none."""
    section = settings.audit.anchor
    return [Witness(each.url, parse_verifier(each.key)) for each in (section.witnesses if section else ())]


def anchor_store(settings: Settings) -> StoreAt | None:
    """Where the fleet's heads are kept as objects; None: nowhere."""
    section = settings.audit.anchor
    return None if section is None or section.objects is None else objects_at(section.objects, "audit.anchor.objects")


def tensor_store(settings: Settings) -> UploadTo | None:
    """Where tensors' bytes are kept; None: nowhere."""
    section = settings.audit.objects
    return None if section is None else UploadTo(objects_at(section, "audit.objects"), section.waiting)


def _logs(settings: Settings, directory: Path) -> tuple[LogBook, Fleet]:
    root = content_root(settings)
    if isinstance(root, KeyFault):
        raise OSError(root.detail)
    jurisdiction, section = settings.audit.database.jurisdiction, settings.audit.anchor
    anchor = None if section is None or section.file is None else FileAnchor(section.file)
    book = LogBook(directory / "log", settings.sidecar.name, jurisdiction, root, secrets.token_bytes)
    return book, Fleet(directory / "fleet", jurisdiction, root, anchor, witnesses_of(settings), anchor_store(settings))


class Shipment:
    """The shipping of one journal to its database, made anew after whatever ended it.

    Each has its journal, its log, its kept batches, its keys and its connections to itself, so that what holds up one
    holds up no other.
    """

    def __init__(
        self, settings: Settings, jurisdiction: str, root: Root, pump: SpanPump | None, stop: threading.Event
    ) -> None:
        self.jurisdiction = jurisdiction
        self._settings, self._whole = settings.of(jurisdiction), settings
        self._root, self._pump, self._stop = root, pump, stop
        self.status = Status()

    @property
    def alone(self) -> bool:
        return not self._whole.audit.databases

    @property
    def directory(self) -> Path:
        """Of its journal."""
        return self._settings.audit.journal.directory

    def run(self) -> None:
        """Until ``stop``. Alone, it raises what ends it; beside others, which go on, it tells it and tries again."""
        wait = FIRST_PAUSE
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._once()
            except Exception as fault:
                if self.alone:
                    raise
                self._ended(fault)
                wait = FIRST_PAUSE if time.monotonic() - began >= LAST_PAUSE else min(wait * 2, LAST_PAUSE)
                self._stop.wait(wait)

    def _ended(self, fault: Exception) -> None:
        self.status.database_up = False
        self.status.tampered = isinstance(fault, ForkError)
        expected = isinstance(fault, store.WrongJurisdictionError | ForkError | OSError | ValueError)
        words = " ".join(str(fault).split())[:500] if expected else type(fault).__name__
        self.status.last_error = words
        trace = None if expected else fault  # a bug of ours
        _LOG.error(
            "ship.refused", exc_info=trace, extra={"warden": {"jurisdiction": self.jurisdiction, "error": words}}
        )

    def _once(self) -> None:
        """Raises WrongJurisdictionError, ForkError, and OSError where a key or a DSN can't be had."""
        settings = self._settings
        sealer, dsn = load_sealer(settings), sidecar_dsn(settings.audit.database)
        for found in (sealer, dsn):
            if isinstance(found, KeyFault):
                raise OSError(found.detail)
        assert isinstance(sealer, ContentSealer)
        assert isinstance(dsn, str)
        source = JournalSource(settings.audit.journal.directory, self._root)
        engine = store.connect(dsn, application=f"warden-ship-{settings.sidecar.name}"[:63])
        try:
            parts = self._parts(source, engine, sealer)
            Shipper(parts, self._stop, _bounds(self._whole), self.status).run()
        finally:
            engine.dispose()
            source.close()

    def _parts(self, source: JournalSource, engine: Engine, sealer: ContentSealer) -> Parts:
        settings, directory = self._settings, self._settings.audit.journal.directory
        book, fleet = _logs(settings, directory)
        return Parts(
            source=source,
            engine=engine,
            redaction_key=sealer.redaction_key,
            vault=Vault(keys_of(settings, engine), secrets.token_bytes),
            book=book,
            fleet=fleet,
            poison=PoisonKeeper(directory / "poison", sealer),
            directory=directory,
            sidecar=settings.sidecar.name,
            region=settings.sidecar.region,
            jurisdiction=self.jurisdiction,
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            chance=random.random,
            ended=None if self._pump is None else _spans_to(self._pump),
            objects=tensor_store(settings),
            own=self._whole.audit.database.jurisdiction,
            copied_to=_copied_to(settings),
        )


def _copied_to(settings: Settings) -> str:
    """Where the sidecar copies its journal to; the sidecar itself refuses to start where that can't be used."""
    try:
        return ", ".join(store_of(section).where for section in settings.audit.journal.copies.values())
    except CopyError as fault:
        return str(fault)


def ship(settings: Settings, root: Root, stop: threading.Event) -> None:
    """Ship until ``stop``. Raises AlreadyShippingError, StrandedError, and with one database what ends its shipper."""
    collect_seldom()
    keep_memory()
    directory = settings.audit.journal.directory
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    pump = _pump(settings)
    try:
        with alone(directory, stop):
            refuse_stranded(directory, root, settings.audit.jurisdictions)
            shipments = [Shipment(settings, each, root, pump, stop) for each in settings.audit.jurisdictions]
            for each in shipments:
                each.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with reporting(directory / "ship.json", shipments, pump):
                _run(shipments, stop)
    finally:
        if pump is not None:
            pump.close(SPANS_GRACE)


def _run(shipments: Sequence[Shipment], stop: threading.Event) -> None:
    if stop.is_set():
        return
    if len(shipments) == 1:
        shipments[0].run()
        return
    threads = [threading.Thread(target=each.run, name=f"ship-{each.jurisdiction}") for each in shipments]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join()


def _bounds(settings: Settings) -> Bounds:
    """``keep_free`` is where the journal lets go of its own shipped segments (audit.journal)."""
    journal, sharers = settings.audit.journal, len(settings.audit.jurisdictions)
    free = journal.min_free + 2 * journal.segment_bytes
    return Bounds(keep=journal.keep, keep_bytes=journal.max_bytes // sharers, keep_free=free, sharers=sharers)


def collect_seldom() -> None:
    """Rows wait in thousands and hold no cycles: looking for some among them took a tenth of shipping a backlog."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


def keep_memory() -> None:
    """Batch after batch takes and gives back the same megabytes: fetched from the kernel anew, each page costs a fault.

    It was a tenth of shipping a backlog. Does nothing where the C library has no mallopt (mallopt(3), glibc).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _pump(settings: Settings) -> SpanPump | None:
    otlp = settings.telemetry.otlp
    return None if otlp is None else SpanPump(exporter_for(otlp.endpoint, otlp.protocol))


def _spans_to(pump: SpanPump) -> Callable[[CallRecord], None]:
    def ended(call: CallRecord) -> None:
        try:
            if to_be_exported(call.facts):
                place = call.place
                pump.offer(span_of(call.facts, call.end, resource_of(place.sidecar, place.region, place.jurisdiction)))
        except ValueError as fault:  # ids that are not hexadecimal: the record is stored, the span is not worth more
            logs.event(_LOG, logging.WARNING, "span.unmade", call_id=call.facts.call_id, error=type(fault).__name__)

    return ended


@contextmanager
def alone(directory: Path, stop: threading.Event) -> Iterator[None]:
    """One shipper a journal: a second would only be fenced, batch after batch."""
    descriptor = os.open(directory / "ship.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + LOCK_SECONDS
        while not stop.is_set():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise AlreadyShippingError(f"another process ships {directory}") from None
                stop.wait(0.1)
        yield
    finally:
        os.close(descriptor)

"""Which bundle decides from when: its content kept for the database, then an event in the journal, until both stand."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.spool import spool_bundle
from policies.bundle import Bundle
from sidecar.core.model import Denial, ParameterValue
from sidecar.telemetry import logs

__all__ = ["Announcer", "InForce"]

_LOG: Final = logging.getLogger("warden.lifecycle")
MOST: Final = 8  # bundles that wait to be written; each may be tens of MiB
Event = Callable[[str, str, str, Mapping[str, ParameterValue]], Denial | None]  # ``JournalRecorder.tell``


@dataclass(slots=True)
class _Load:
    bundle: Bundle
    previous: str
    changes: str
    source: str
    unspooled: bool = False  # told that its content could not be kept
    unwritten: bool = False  # told that its event could not be


class Announcer:
    """Journals events that are no call's; one that can't be written is counted and logged, never dropped in silence."""

    def __init__(self, event: Event, unrecorded: Callable[[Denial], None]) -> None:
        self._event, self._unrecorded = event, unrecorded

    def write(self, kind: str, detail: Mapping[str, ParameterValue], *, again: bool = False, store: str = "") -> bool:
        """Whether it stands. ``again``: what failed before is not counted twice. ``store``: whose database keeps it."""
        denial = self._event(store, kind, "serve", detail)
        if denial is not None and not again:
            self._unrecorded(denial)
            logs.event(_LOG, logging.ERROR, "event.unrecorded", kind=kind, detail=denial.internal)
        return denial is None


class InForce:
    """The loads that are not written yet, in order. Thread-safe; ``retry`` is called at each look at the bundle."""

    def __init__(self, directory: Path, mode: str, announcer: Announcer) -> None:
        self._directory, self._mode, self._announcer = directory, mode, announcer
        self._lock = threading.Lock()
        self._loads: deque[_Load] = deque(maxlen=MOST)  # over it the oldest goes

    def loaded(self, bundle: Bundle, previous: str, changes: str = "", source: str = "") -> None:
        """``bundle`` decides from here on, and ``previous`` (its digest; "": none) no more; ``source``: where from."""
        with self._lock:
            self._loads.append(_Load(bundle, previous, changes, source))
        self.retry()

    def retry(self) -> None:
        """Write what waits. The content goes first: a digest in the journal must have its bundle beside it."""
        with self._lock:
            while self._loads and self._written(self._loads[0]):
                self._loads.popleft()

    def _written(self, load: _Load) -> bool:
        digest = load.bundle.digest
        try:
            spool_bundle(self._directory, digest, load.bundle.pieces())
        except OSError as fault:
            if not load.unspooled:
                logs.event(_LOG, logging.ERROR, "bundle.unspooled", digest=digest, error=fault.strerror)
            load.unspooled = True
            return False
        change = load.bundle.change
        detail: dict[str, ParameterValue] = {"digest": digest, "previous": load.previous, "mode": self._mode}
        detail |= {"changes": load.changes, "source": load.source}
        if change is not None:  # who made it what it is, as bundle.yaml says
            detail |= {"author": change.author, "reference": change.reference}
        stands = self._announcer.write("bundle_loaded", detail, again=load.unwritten)
        load.unwritten = not stands
        return stands

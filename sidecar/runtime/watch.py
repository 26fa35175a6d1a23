"""Watches what decides: the bundle's directory, and the evidence of where this pod is; tells each change once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

from policies.apart import MODULE, ProcessCompiler
from policies.reading import Failed
from policies.source import BundleSource, Loaded, Unchanged
from policies.yamlfile import Problem
from sidecar.runtime import location
from sidecar.runtime.inforce import Announcer, InForce
from sidecar.runtime.settings import Settings
from sidecar.telemetry import logs
from sidecar.telemetry.exposition import Check
from sidecar.telemetry.instruments import PrometheusInstruments

__all__ = ["PolicyWatch"]

_LOG: Final = logging.getLogger("warden.lifecycle")
LOOKS: Final = 19  # a look at the directory may take a twentieth of the time: at 10,000 files it is not for nothing
RETRY: Final = 10.0  # seconds after which a bundle that could not be judged is tried again
PAUSE: Final = 0.0002  # seconds between two pieces of a reload


class PolicyWatch:
    """One thread calls ``look``; any may read the rest."""

    def __init__(
        self,
        settings: Settings,
        source: BundleSource,
        instruments: PrometheusInstruments,
        announcer: Announcer,
        python: tuple[str, Mapping[str, str]],
    ) -> None:
        """``python``: the interpreter that compiles what changed, and its environment."""
        self._settings, self._source, self._instruments = settings, source, instruments
        self._announcer = announcer
        self._in_force = InForce(settings.audit.journal.directory, settings.mode, announcer)
        self._told: object = None  # the problems that were logged already
        self._refused: str = ""  # the first of them, while the directory is bad
        self._crash: list[Problem] = []  # a fault of ours while loading, for as long as it is the same one
        self._next_look = 0.0
        self._ending = threading.Event()
        source.pause = self._pause
        executable, environment = python
        source.compiler = ProcessCompiler(
            (executable, "-m", MODULE), environment, pause=self._pause, ending=self._ending.is_set
        )
        self.loaded_at = time.time()
        self.location = location.look(settings.sidecar)

    def begin(self) -> None:
        """Record what is in force from the start on."""
        self._bundle_in_force(previous="")
        if self.location.doubt:
            self._tell_location()

    def look(self) -> None:
        """Once a second: what could not be written is tried again, what changed is taken, or told."""
        self._in_force.retry()
        self._look_at_location()
        self._look_at_bundle()

    def end(self) -> None:
        self._ending.set()
        self._in_force.retry()

    # --- the bundle --------------------------------------------------------------------------------------------------

    def _look_at_bundle(self) -> None:
        began = time.monotonic()
        if began < self._next_look:
            return
        stirred = self._source.stirred()
        self._next_look = time.monotonic() + LOOKS * (time.monotonic() - began)
        if stirred:
            self._take_what_is_there()

    def _take_what_is_there(self) -> None:
        before = self._source.current().digest
        match self._reloaded():
            case Loaded(changes=changes):
                self.loaded_at = time.time()
                self._bundle_in_force(previous=before, changes=changes)
            case Unchanged():
                self._told, self._refused = None, ""
            case Failed(why=why):
                if not self._ending.is_set():
                    self._next_look = time.monotonic() + RETRY
                    self._tell_refused(why, why, 0)
            case problems:
                self._tell_refused(problems, str(problems[0]), len(problems))

    def _reloaded(self) -> Loaded | Unchanged | Failed | list[Problem]:
        try:
            found = self._source.reload(time.time())
        except Exception as fault:  # noqa: BLE001 — the old bundle stays, and who made the new one must learn of it
            return self._crashed(fault)
        self._crash = []
        return found

    def _tell_refused(self, told: object, first: str, count: int) -> None:
        """Once while it stays so; the old bundle goes on deciding."""
        if told == self._told:
            return
        self._told, self._refused = told, first
        self._instruments.count("warden_bundle_loads_total", "failure")
        digest = self._source.current().digest
        logs.event(_LOG, logging.ERROR, "bundle.refused", count=count, detail=first, digest=digest)

    def _crashed(self, fault: Exception) -> list[Problem]:
        words = f"a fault of the loader's own: {type(fault).__name__}"
        if not self._crash or self._crash[0].message != words:
            _LOG.error("bundle.crashed", exc_info=fault)
            self._crash = [Problem(str(self._settings.policy.bundle), 1, 1, "", words)]
        return self._crash

    def _pause(self) -> None:
        """Between two pieces: whoever waits for the interpreter has it first."""
        if not self._ending.is_set():
            time.sleep(PAUSE)

    def _bundle_in_force(self, *, previous: str, changes: str = "") -> None:
        self._told, self._refused = None, ""
        bundle = self._source.current().bundle
        self._in_force.loaded(bundle, previous, changes, str(self._settings.policy.bundle))
        self._instruments.count("warden_bundle_loads_total", "success")
        logs.event(_LOG, logging.INFO, "bundle.loaded", digest=bundle.digest)

    # --- where this is -----------------------------------------------------------------------------------------------

    def _look_at_location(self) -> None:
        found = location.look(self._settings.sidecar)
        self.location = found
        if self._source.doubt(found.doubt):
            self._tell_location()

    def _tell_location(self) -> None:
        """An event in the log, because from here on (or until here) every call is refused."""
        found, region = self.location, self._settings.sidecar.region
        detail = {"region": region, "evidence": found.evidence, "doubt": found.doubt}
        kind = "location_doubted" if found.doubt else "location_agreed"
        self._announcer.write(kind, detail)
        level = logging.ERROR if found.doubt else logging.INFO
        logs.event(_LOG, level, kind.replace("_", "."), region=region, detail=found.doubt or found.evidence)

    # --- what others ask ---------------------------------------------------------------------------------------------

    @property
    def certain(self) -> bool:
        """Whether it is certain where this pod is: else it takes no call."""
        return not self.location.doubt

    @property
    def refusing(self) -> bool:
        """Whether what is in the bundle's directory is refused."""
        return bool(self._refused)

    @property
    def age(self) -> float:
        """Seconds since the bundle in force was loaded."""
        return time.time() - self.loaded_at

    def checks(self) -> Mapping[str, Check]:
        """For /readyz: the bundle never decides, because a bad new one leaves a good one in force."""
        policy = self._source.current()
        refused = f"; what is there now is refused: {self._refused}" if self._refused else ""
        told = f"{policy.digest}, {int(self.age)} s old, from {self._settings.policy.bundle}{refused}"
        return {
            "bundle": Check(ok=True, detail=told),
            "location": Check(self.certain, self.location.doubt or f"{policy.place.region}: {self.location.evidence}"),
        }

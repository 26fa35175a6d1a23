"""The sidecar's journals, one for each database: opened side by side, and what is told of each."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from audit.copying import CopyTo
from audit.files import OsFiles
from audit.journal import Bounds, Journal, Pressure, State
from audit.recorder import JournalRecorder
from audit.seal import KeyFault
from audit.segments import JournalFault, Origin
from sidecar.runtime import clock
from sidecar.runtime.copy_settings import CopyError, copy_to
from sidecar.runtime.rootkeys import problems, strict_root_keys
from sidecar.runtime.settings import Settings
from sidecar.telemetry import logs, readings
from sidecar.telemetry.catalogue import JournalState
from sidecar.telemetry.exposition import Check
from sidecar.telemetry.instruments import PrometheusInstruments

__all__ = ["JournalDesk", "TimedFiles", "copies_of", "open_journals"]

_LOG: Final = logging.getLogger("warden.lifecycle")
_JOURNAL: Final = logging.getLogger("warden.journal")
# In the order of how bad they are.
_STATES: Final = {State.OK: JournalState.OPEN, State.FULL: JournalState.FULL, State.FAULTED: JournalState.FAILED}


class TimedFiles(OsFiles):
    """The journal's file layer, whose fsyncs are measured."""

    def __init__(self, instruments: PrometheusInstruments) -> None:
        self._instruments = instruments

    def fsync(self, descriptor: int) -> None:
        began = time.perf_counter()
        super().fsync(descriptor)
        self._instruments.observe("warden_journal_fsync_seconds", time.perf_counter() - began)


def copies_of(settings: Settings) -> dict[str, dict[str, CopyTo]]:
    """By jurisdiction, where its journal is copied to, by the stores' names. Raises CopyError."""
    sections = {each: settings.audit.of(each).journal for each in settings.audit.jurisdictions}
    return {
        place: {name: copy_to(copy, section.directory) for name, copy in section.copies.items()}
        for place, section in sections.items()
    }


def open_journals(settings: Settings, origin: Origin, files: OsFiles) -> dict[str, Journal] | str:
    """By jurisdiction, the pod's own first; or in words why not, and then none is left open."""
    opened: dict[str, Journal] = {}

    def beside(name: str) -> int:
        return sum(journal.nbytes for other, journal in list(opened.items()) if other != name)

    try:
        copies = copies_of(settings)
    except CopyError as fault:
        return str(fault)
    for name in settings.audit.jurisdictions:
        found = _open(settings, name, replace(origin, store=name), files, copies[name], partial(beside, name))
        if isinstance(found, str):
            for journal in opened.values():
                journal.close()
            return found
        opened[name] = found
    return opened


def _open(
    settings: Settings, jurisdiction: str, origin: Origin, files: OsFiles, copies: Mapping[str, CopyTo],
    beside: Callable[[], int],
) -> Journal | str:  # fmt: skip
    section, sharers = settings.audit.of(jurisdiction).journal, len(settings.audit.jurisdictions)
    root = strict_root_keys(section)
    if isinstance(root, KeyFault):
        return f"audit.journal.{root.detail}"
    bounds = Bounds(
        section.segment_bytes, section.max_bytes, section.min_free, section.keep, section.warn_at, section.shed_at,
        section.tenant_share, sharers,
    )  # fmt: skip
    journal = Journal.open(
        section.directory, root, origin, bounds, random=secrets.token_bytes, wall_ns=time.time_ns,
        monotonic=time.monotonic, files=files, copies=copies, beside=beside,
    )  # fmt: skip
    if isinstance(journal, JournalFault):
        return f"audit.journal: {journal.detail}"
    for problem in problems(section, root):  # calls can be recorded, but what is there already cannot be stored
        logs.event(_JOURNAL, logging.ERROR, "journal.key_missing", error=problem)
    return journal


class JournalDesk:
    """What is told of the journals: in the log, in themselves, at `/readyz` and at `/metrics`."""

    def __init__(
        self, journals: Mapping[str, Journal], recorder: JournalRecorder, instruments: PrometheusInstruments
    ) -> None:
        """``journals`` by jurisdiction, the pod's own first."""
        self._journals, self._recorder, self._instruments = journals, recorder, instruments
        self._own = next(iter(journals.values()))
        self._states = dict.fromkeys(journals, State.OK)  # that were logged last
        self._pressures = dict.fromkeys(journals, Pressure.NONE)  # as above

    def tell(self) -> None:
        """One line where a journal begins to refuse, with why, and one where it takes entries again."""
        for name, journal in self._journals.items():
            state, before = journal.state, self._states[name]
            if state is not before:
                self._states[name] = state
                level = logging.INFO if state is State.OK else logging.ERROR
                detail = journal.fault.detail if journal.fault is not None else None
                logs.event(
                    _LOG, level, "journal.state", state=state, detail=detail, bytes=journal.nbytes,
                    limit=journal.limit, jurisdiction=name,
                )  # fmt: skip
            self._tell_pressure(name, journal)
        self._recorder.fold(clock.now())
        for fault in self._recorder.mended():
            self._instruments.count("warden_journal_faults_total")
            logs.event(_LOG, logging.ERROR, "journal.mended", kind=fault.kind, detail=fault.detail)

    def _tell_pressure(self, name: str, journal: Journal) -> None:
        """Each step of the ladder, up and down, into the log and the journal itself (which keeps room for events)."""
        step, before, recorder = journal.pressure, self._pressures[name], self._recorder
        if step is before:
            return
        tenant, held = journal.most_held
        detail: dict[str, bool | int | float | str] = {
            "step": step.word, "from": before.word, "used": round(journal.used, 3), "bytes": journal.nbytes,
            "shed_calls": recorder.shed_calls, "most_held_by": tenant, "most_held": held,
        }  # fmt: skip
        if recorder.tell(name, "journal_pressure", "serve", detail) is None:
            self._pressures[name] = step
            level = logging.WARNING if step else logging.INFO
            logs.event(
                _LOG, level, "journal.pressure", state=step.word, bytes=journal.nbytes, tenant=tenant,
                jurisdiction=name,
                detail=f"{journal.used:.0%} can't be freed yet; the most is {tenant or 'nobody'}'s, {held} bytes",
            )  # fmt: skip

    def checks(self) -> dict[str, Check]:
        """Only the pod's own decides whether it is ready: what another's calls lack they are refused for."""
        checks = {"journal": Check(self._own.state is State.OK, _words(self._own))}
        for place, journal in self._journals.items():
            if journal is not self._own:
                checks[f"journal {place}"] = Check(ok=True, detail=_words(journal))
            for name, copier in journal.copiers.items():
                which = name if journal is self._own else f"{place}/{name}"
                checks[f"copy {which}"] = Check(ok=True, detail=copier.fault.detail if copier.fault else copier.where)
        return checks

    def watch(self) -> None:
        watch, directory = self._instruments.watch, self._own.directory
        journals = self._journals.values()
        watch("warden_journal_state", lambda: readings.journal_state(_worst(journal.state for journal in journals)))
        watch("warden_journal_bytes", lambda: float(sum(journal.nbytes for journal in journals)))
        watch("warden_journal_limit_bytes", lambda: float(sum(journal.limit for journal in journals)))
        watch("warden_journal_segments", lambda: float(sum(map(_segments, journals))))
        watch("warden_journal_shed_calls_total", lambda: float(self._recorder.shed_calls))
        watch("warden_folded_refusals_total", lambda: float(self._recorder.folded_refusals))
        watch("warden_journal_free_bytes", lambda: float(_free(directory)))
        self._of_each("warden_journal_pressure", lambda journal: float(journal.pressure))
        self._of_each(
            "warden_journal_copy_lag_seconds",
            lambda journal: max((copier.behind_s for copier in journal.copiers.values()), default=None),
        )

    def _of_each(self, name: str, value: Callable[[Journal], float | None]) -> None:
        """A gauge of each journal, by the jurisdiction of its database."""

        def read() -> dict[tuple[str, ...], float]:
            found = {(place,): value(journal) for place, journal in self._journals.items()}
            return {labels: number for labels, number in found.items() if number is not None}

        self._instruments.watch(name, read)


def _worst(states: Iterable[State]) -> JournalState:
    found = set(states)
    return [told for state, told in _STATES.items() if state in found][-1]


def _segments(journal: Journal) -> int:
    return sum(1 for _ in journal.directory.glob("*.seg"))


def _words(journal: Journal) -> str:
    """Its state first, or what is wrong with it."""
    if journal.fault is not None:
        return f"{journal.state}: {journal.fault.detail}"
    if not journal.pressure:
        return str(journal.state)
    tenant, held = journal.most_held
    most = f"; the most, {held:,} bytes, is {tenant}'s" if tenant else ""
    return f"{journal.state}: {journal.used:.0%} of its space can't be freed yet ({journal.pressure.word}){most}"


def _free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize

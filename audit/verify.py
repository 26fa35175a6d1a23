"""Checks the whole audit database, or an export of it: every row, leaf, tree, signed head, and that no log is missing.

Trust comes from outside the database: the jurisdiction's root key (or verifier keys made of it), and the anchor's file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from audit import derived, standing, store
from audit.drops import RETENTION
from audit.evidence import Fault, FaultKind, Head, TreeCheck, read_head
from audit.fleet import FLEET
from audit.fleet_told import FleetTold
from audit.leaf import leaf_data
from audit.merkle import Frontier, leaf_hash
from audit.object_check import check_objects
from audit.objects import ObjectStore
from audit.progress import Progress, ResumeError
from audit.ranges import Pool, Range, check_range
from audit.report import Report
from audit.rows import EVENT_COLUMNS
from audit.tables import (
    audit_calls,
    audit_checkpoints,
    audit_events,
    audit_leaves,
    audit_logs,
    erasures,
    fleet_entries,
    journal_cursors,
    legal_holds,
)  # fmt: skip
from audit.tlog import NoteError, Verifier, cosignature_time, parse_note

__all__ = ["Options", "Report", "ResumeError", "verify"]

CHUNK: Final = 10_000  # leaves whose rows are checked at once
JOBS_FROM: Final = 200_000  # on two cores; what two processes take to begin, one reads 80,000 records in
STATEMENT_MS: Final = 600_000
STALE: Final = timedelta(hours=24)  # a log that grew and was not heard of for so long ended without a word
YOUNG: Final = timedelta(minutes=10)  # what is younger, the fleet's log may not have taken up yet
SKEW: Final = timedelta(hours=2)  # that the database's clock may be before ours; later times are of no clock
AHEAD: Final = timedelta(minutes=5)  # that a witness's clock may be before ours
FRESH: Final = timedelta(hours=3)  # a witness is asked again each hour (audit.witness), grown or not
_LEFT: Final = sa.text(
    "SELECT coalesce(sum(octet_length(hashes)), 0) / 32 FROM warden.audit_leaves WHERE log = :log AND first < :size"
)


@dataclass(frozen=True, slots=True)
class Options:
    """``verifier`` gives a log's key; ``anchor``: the notes kept outside; ``resume``: where progress is kept.

    ``anchored_in``: of the object stores that were read, by where, how many entries the largest head there is of.

    ``resume_key``: what that file is authenticated with, for whoever writes it says what need not be looked at again.
    ``full_every``: after it everything is looked at again all the same (None: never).
    """

    verifier: Callable[[str], Verifier]
    now: datetime
    anchor: Sequence[str] = ()
    anchored_in: Mapping[str, int] = field(default_factory=dict)
    objects: ObjectStore | None = None  # where tensors' bytes are; None: they are not looked at
    witnesses: Sequence[Verifier] = ()  # whose cosignatures count
    resume: Path | None = None
    resume_key: bytes = b""
    full_every: timedelta | None = None
    jobs: int = 1
    jobs_from: int = JOBS_FROM  # leaves still to check: fewer are read by one
    progress: Callable[[int, int], None] | None = None  # (leaves checked, of)


def verify(dsn: str, options: Options, *, jurisdiction: str) -> Report:
    """Check the database at ``dsn`` in one frozen snapshot.

    Raises ResumeError, store.MismatchError and SQLAlchemy's errors.
    """
    engine = store.connect(dsn, application="warden-verify")
    try:
        with store.transaction(engine, statement_ms=STATEMENT_MS, frozen=True, deadline_s=86400.0) as connection:
            store.check_jurisdiction(connection, jurisdiction)
            return _Verification(dsn, connection, options).run()
    finally:
        engine.dispose()


class _Verification:
    def __init__(self, dsn: str, connection: sa.Connection, options: Options) -> None:
        self._dsn, self._connection, self._options = dsn, connection, options
        self._report, self._fleet = Report(), FleetTold()
        self._resume = Progress(options.resume, options.resume_key, options.now, options.full_every)
        self._total = self._done = 0

    def run(self) -> Report:
        c = audit_logs.c
        rows = self._connection.execute(sa.select(c.log, c.next_position, c.frontier, c.born_at).order_by(c.log)).all()
        self._total = sum(row.next_position for row in rows)
        self._check_fleet(next((row for row in rows if row.log == FLEET), None))
        with self._pool(row.log for row in rows) as pool:
            for row in rows:
                if row.log != FLEET:
                    self._check_log(row, pool)
        self._check_missing({row.log: row.born_at for row in rows})
        self._check_strays({row.log for row in rows})
        if self._fleet.there:
            self._check_cursors()
        self._check_officers()
        self._report.faults += derived.check_bundles(self._connection)
        if (
            self._report.ok and not self._report.resumed
        ):  # else the records at fault, and not their sums, are to be told
            self._report.faults += derived.check_usage(self._connection)
        if self._options.objects is not None:
            self._report.objects = found = check_objects(self._connection, self._options.objects, self._options.now)
            self._report.faults += found.faults
        self._report.uncopied = self._uncopied()
        self._report.oldest_read = self._resume.began if self._report.resumed else self._options.now
        return self._report

    def _uncopied(self) -> list[str]:
        """As each sidecar said when it opened its journal last."""
        c = audit_events.c
        query = sa.select(c.log, c.detail).where(c.kind == "journal_opened", c.log.is_not(None))
        told = {row.log: row.detail for row in self._connection.execute(query.order_by(c.log, c.position))}
        closed = {log for log, (_, closed) in self._fleet.last.items() if closed}
        return [log for log, detail in told.items() if log not in closed and not detail.get("copied_to")]

    def _pool(self, logs: Iterable[str]) -> AbstractContextManager[Pool | None]:
        known = sum(self._resume.tree(log).size for log in logs)
        if self._options.jobs <= 1 or self._total - known < self._options.jobs_from:
            return nullcontext()
        snapshot = self._connection.scalar(sa.text("SELECT pg_export_snapshot()"))
        return Pool(self._options.jobs, self._dsn, str(snapshot))

    def _fault(self, kind: FaultKind, log: str, detail: str, position: int | None = None, **more: Any) -> None:
        self._report.faults.append(Fault(kind, log, detail, position, **more))

    # --- one log --------------------------------------------------------------------------------------------------

    def _heads(self, log: str) -> list[Head]:
        verifier = self._options.verifier(log)
        c = audit_checkpoints.c
        heads = []
        for size, note in self._connection.execute(sa.select(c.size, c.note).where(c.log == log).order_by(c.size)):
            found = read_head(log, size, note, verifier)
            if isinstance(found, Fault):
                self._report.faults.append(found)
            else:
                heads.append(found)
        return heads

    def _leaves(self, log: str, start: int) -> Generator[tuple[int, bytes], None, None]:
        c = audit_leaves.c
        query = sa.select(c.first, c.hashes).where(c.log == log, c.first >= start).order_by(c.first)
        with self._connection.execute(query.execution_options(stream_results=True)) as streamed:
            for first, hashes in streamed:
                yield first, bytes(hashes)

    def _check_log(self, row: Any, pool: Pool | None) -> None:
        log, known = row.log, self._resume.tree(row.log)
        heads = [*self._heads(log), *self._fleet.heads.get(log, [])]
        check = TreeCheck(log, heads, start=known)
        if known.size and int(self._connection.scalar(_LEFT, {"log": log, "size": known.size}) or 0) < known.size:
            words = f"{known.size} records were checked before, and some of them are gone"
            self._fault(FaultKind.TRUNCATED_TAIL, log, words)
            known = Frontier()
            check = TreeCheck(log, heads)
        self._report.resumed += known.size
        self._done += known.size
        running: list[tuple[int, Frontier | None, Future[list[Fault]] | list[Fault]]] = []
        first, waiting = known.size, bytearray()

        def sound() -> Frontier | None:
            # Leaves that a head is not of are no place to go on from: a run that does asks that head no more.
            return check.tree if check.fits else None

        with closing(self._leaves(log, known.size)) as leaves:
            for at, hashes in leaves:
                if not check.add(at, hashes):
                    break
                waiting += hashes
                if len(waiting) >= CHUNK * 32:
                    running.append((len(waiting) // 32, sound(), self._rows(log, first, bytes(waiting), pool)))
                    first, waiting = check.tree.size, bytearray()
                    while len(running) > 2 * self._options.jobs:
                        self._collect(log, *running.pop(0))
        if waiting:
            running.append((len(waiting) // 32, sound(), self._rows(log, first, bytes(waiting), pool)))
        for each in running:
            self._collect(log, *each)
        self._finish(row, check)

    def _finish(self, row: Any, check: TreeCheck) -> None:
        log, result, report = row.log, check.finish(), self._report
        report.faults += result.faults
        report.records += result.tree.size
        report.checkpoints += result.heads
        report.unsigned += result.tree.size - result.signed
        report.logs[log] = {"records": result.tree.size, "signed": result.signed}
        if not result.faults and (row.next_position, bytes(row.frontier)) != (result.tree.size, result.tree.pack()):
            more = row.next_position > result.tree.size
            kind = FaultKind.TRUNCATED_TAIL if more else FaultKind.INSERTION
            words = f"the log is said to have {row.next_position} records; its leaves are {result.tree.size}"
            if row.next_position == result.tree.size:
                kind, words = FaultKind.ALTERED_COLUMN, "the log's frontier is not that of its leaves"
            self._fault(kind, log, words, result.tree.size)
        for stray in self._beyond(log, max(result.tree.size, 0)):
            self._fault(FaultKind.INSERTION, log, "a row where the log has no leaf", stray[0], call_id=stray[1])

    def _collect(self, log: str, count: int, tree: Frontier | None, found: Future[list[Fault]] | list[Fault]) -> None:
        faults = found.result() if isinstance(found, Future) else found
        self._report.faults += faults
        self._done += count
        if self._options.progress is not None:
            self._options.progress(self._done, self._total)
        if tree is not None and not self._report.faults:
            self._resume.reached(log, tree)

    def _rows(self, log: str, first: int, hashes: bytes, pool: Pool | None) -> Future[list[Fault]] | list[Fault]:
        asked = Range(log, first, hashes, self._fleet.gone(log))
        if pool is not None:
            found: Future[list[Fault]] = pool.check(asked)
            return found
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return check_range(driver, asked)

    def _beyond(self, log: str, size: int) -> list[tuple[int, str]]:
        calls = sa.select(audit_calls.c.position, audit_calls.c.call_id).where(
            audit_calls.c.log == log, audit_calls.c.position >= size
        )
        events = sa.select(audit_events.c.position, audit_events.c.id).where(
            audit_events.c.log == log, audit_events.c.position >= size
        )
        found = self._connection.execute(calls.union_all(events).limit(100))
        return [(position, name) for position, name in found]

    # --- between logs ---------------------------------------------------------------------------------------------

    def _check_fleet(self, row: Any) -> None:
        heads, sound = self._heads(FLEET), True
        for note in self._options.anchor:
            found = read_head(FLEET, None, note, self._options.verifier(FLEET))
            if isinstance(found, Fault):
                sound = False
                self._fault(FaultKind.REPLACED_CHECKPOINT, FLEET, f"in the anchor: {found.detail}")
            else:
                heads.append(Head(found.size, found.root, "the anchor"))
                self._report.anchored_size = max(self._report.anchored_size, found.size)
        check = TreeCheck(FLEET, heads)
        signed = max((head.size for head in heads), default=0)
        retention = self._options.verifier(RETENTION)
        c = fleet_entries.c
        for position, body in self._connection.execute(sa.select(c.position, c.body).order_by(c.position)):
            if not check.add(position, leaf_hash(body.encode())):
                break
            if position >= signed:
                continue  # anybody may have written it: nothing is believed for it, least of all that rows were dropped
            try:
                told = json.loads(body)
                wrong = self._fleet.learn(told, retention)
            except (ValueError, KeyError, TypeError):
                self._fault(FaultKind.EDIT, FLEET, "an entry of the fleet's log is none", position)
                continue
            if wrong:
                self._fault(FaultKind.INSERTION, FLEET, wrong, position, call_id=told["id"])
        result = check.finish()
        self._report.faults += result.faults
        self._report.checkpoints += result.heads
        self._fleet.there = result.tree.size > 0
        if result.tree.size > signed:  # entries and their head are written in one transaction
            words = f"{result.tree.size - signed} entries that no signed head of the fleet's log accounts for"
            self._fault(FaultKind.INSERTION, FLEET, words, signed)
        self._report.witnessed = self._cosigned()
        fresh = self._report.witnessed is not None and self._options.now - self._report.witnessed <= FRESH
        sound = self._not_put_back() and sound and self._report.anchored_size > 0
        self._report.anchored = (sound or fresh) and not result.faults
        if row is not None and row.next_position != result.tree.size and not result.faults:
            words = f"the fleet's log is said to have {row.next_position} entries; there are {result.tree.size}"
            self._fault(FaultKind.TRUNCATED_TAIL, FLEET, words, result.tree.size)

    def _not_put_back(self) -> bool:
        """Whether each object store that was read has the heads that the fleet's log says were kept there."""
        short = {
            where: size
            for where, size in self._options.anchored_in.items()
            if size < self._fleet.anchored.get(where, 0)
        }
        for where, size in short.items():
            told = self._fleet.anchored[where]
            words = f"{where} had a head of {told} entries; its largest is of {size} now"
            self._fault(FaultKind.ANCHOR_ROLLED_BACK, FLEET, words, told)
        return not short

    def _cosigned(self) -> datetime | None:
        """When a witness that counts cosigned a stored head of the fleet's log last."""
        if not self._options.witnesses:
            return None
        c, verifier = audit_checkpoints.c, self._options.verifier(FLEET)
        times = []
        for (text,) in self._connection.execute(sa.select(c.note).where(c.log == FLEET)):
            try:
                note = parse_note(text)
            except NoteError:
                continue  # told where heads are read
            if verifier.accepts(note):
                times += [cosignature_time(note, witness) or 0 for witness in self._options.witnesses]
        latest = (self._options.now + AHEAD).timestamp()  # one whose clock is wrong would vouch for ever
        return datetime.fromtimestamp(max(seen), UTC) if (seen := [at for at in times if 0 < at <= latest]) else None

    def _young(self, at: datetime) -> bool:
        """Whether the fleet's log may not have taken up yet what the database says is of ``at``."""
        return -SKEW <= self._options.now - at <= YOUNG

    def _passed_over(self, at: datetime, heard: datetime | None) -> bool:
        """Whether a sidecar at work (``heard`` of last) would have taken an act of that time up; or none can have."""
        if at - self._options.now > SKEW:
            return True
        return not self._young(at) and heard is not None and heard > at + YOUNG

    def _check_tail(self, log: str, closed_at: datetime) -> None:
        """Records after a log's close that no head of its own accounts for: its sidecar had signed all there was.

        One that begins again signs within seconds; what is newer than that may yet be.
        """
        told, size = self._report.logs.get(log, {}), max((h.size for h in self._fleet.heads.get(log, [])), default=0)
        tail = told.get("records", 0) - max(told.get("signed", 0), size)
        if tail <= 0:
            return
        c = journal_cursors.c
        moved = self._connection.scalar(sa.select(sa.func.max(c.updated_at)).where(c.log == log))
        if moved is None or not self._young(moved):
            words = f"{tail} records after the log was closed at {closed_at.isoformat()}, that nobody signed"
            self._fault(FaultKind.INSERTION, log, words, told["records"] - tail)

    def _check_cursors(self) -> None:
        """A sidecar reads its journal on where the database says another log read it to; that must be a log."""
        c = audit_events.c
        told = sa.select(c.log, c.position, c.detail).where(c.kind == "journal_read_by_another", c.log.is_not(None))
        for log, position, detail in self._connection.execute(told):
            if detail.get("by") not in self._fleet.born:
                words = (
                    f"what its journal held after {detail.get('ours')} and up to {detail.get('done')} was not stored:"
                )
                words += f" the database said that {detail.get('by')} had read it, which is no log"
                self._fault(FaultKind.DELETION, log, words, position)

    def _check_missing(self, logs: Mapping[str, datetime]) -> None:
        for log, sidecar in self._fleet.born.items():
            at, closed = self._fleet.last[log]
            if log not in logs:
                heads = self._fleet.heads.get(log, [])
                words = (
                    f"the log of {sidecar}, last seen with {max((h.size for h in heads), default=0)} records, is gone"
                )
                self._fault(FaultKind.VANISHED_LOG, log, words)
            elif not closed and self._options.now - at > STALE and self._report.logs.get(log, {}).get("records"):
                words = f"the log of {sidecar} was last heard of at {at.isoformat()} and never closed"
                told = self._report.logs[log]
                if told["records"] > told["signed"]:
                    words += f"; nobody signed its last {told['records'] - told['signed']} records"
                self._fault(FaultKind.UNCLOSED_LOG, log, words)
            elif closed:
                self._check_tail(log, at)
            told = self._report.logs.get(log, {})
            if told.get("records") and not told["signed"] and self._options.now - self._fleet.since[log] > STALE:
                self._fault(FaultKind.INSERTION, log, "a log of records whose own key never signed a head")
        for log, born in logs.items():
            if self._fleet.there and log != FLEET and log not in self._fleet.born and not self._young(born):
                self._fault(FaultKind.INSERTION, log, "a log whose birth the fleet's log does not know")

    def _check_strays(self, logs: set[str]) -> None:
        """Rows of logs that are none; found by stepping over the index, log by log."""
        for table in (audit_calls, audit_events, audit_leaves, audit_checkpoints):
            for log in _distinct(self._connection, table):
                if log not in logs and log not in self._fleet.born:
                    self._fault(FaultKind.INSERTION, log, f"{table.name} has rows of a log that is none")

    def _check_officers(self) -> None:
        """What officers did is in the fleet's log, each act as it was."""
        columns = [audit_events.c[name] for name in EVENT_COLUMNS]
        query = sa.select(*columns, audit_events.c.recorded_at).where(audit_events.c.log.is_(None))
        seen = set()
        heard = self._connection.scalar(sa.select(sa.func.max(journal_cursors.c.updated_at)))
        for row in self._connection.execute(query.execution_options(stream_results=True)).mappings():
            leaf = self._fleet.events.get(row["id"])
            seen.add(row["id"])
            if leaf is None:
                if self._fleet.there and self._passed_over(row["recorded_at"], heard):
                    self._fault(
                        FaultKind.INSERTION, FLEET, "an act that the fleet's log does not know", call_id=row["id"]
                    )
            elif leaf_hash(leaf_data("event", ((name, row[name]) for name in EVENT_COLUMNS))).hex() != leaf:
                words = "an officer's act is not what the fleet's log says"
                self._fault(FaultKind.ALTERED_COLUMN, FLEET, words, call_id=row["id"])
        for name in self._fleet.events.keys() - seen:
            self._fault(FaultKind.DELETION, FLEET, "an officer's act is gone", call_id=name)
        if self._fleet.there:
            self._check_standing()

    def _check_standing(self) -> None:
        """Holds and erasures as they stand, against the acts."""
        h = legal_holds.c
        of = sa.case((h.subject_wrapped.is_(None), "all"), else_="subject").label("of")
        rows = self._connection.execute(sa.select(h.id, h.tenant, h.placed_by, h.placed_at, h.released_at, of))
        self._report.faults += standing.check_holds(self._fleet.acts, map(dict, rows.mappings()), self._young)
        rows = self._connection.execute(sa.select(erasures))
        self._report.faults += standing.check_erasures(self._fleet.acts, map(dict, rows.mappings()), self._young)


# --- reading ------------------------------------------------------------------------------------------------------


def _distinct(connection: sa.Connection, table: sa.Table) -> Iterator[str]:
    log, last = table.c.log, ""
    while True:
        found = connection.scalar(sa.select(sa.func.min(log)).where(log > last))
        if found is None:
            return
        yield found
        last = found

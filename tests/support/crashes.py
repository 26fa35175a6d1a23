"""kill -9 in cycles, at random points under load, of sidecar, shipper and Postgres; then what the audit says of it."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc

from audit.search import Asker, Filter, Keyset
from audit.search import search as search_records
from sidecar.cli.demo.postgres import RunningPostgres
from sidecar.cli.demo.process import StartError
from sidecar.cli.demo.stack import JURISDICTION
from sidecar.runtime.ids import uuid7
from tests.support.load import KINDS, LAG_S, Seen, _stream, _unary, judge
from tests.support.postgres import query
from tests.support.sidecar import Bare, Sidecar, echo, slow
from tests.support.stack import Triton
from tests.support.victims import Children, Victims

VICTIMS: Final = (("serve",), ("ship",), ("postgres",), ("serve", "ship"), ("ship", "postgres"), ("serve", "postgres"))
WORD_MS: Final = 10
PAGE: Final = 1000  # records revealed at once
TWICE: Final = "SELECT call_id FROM warden.audit_calls GROUP BY call_id HAVING count(*) > 1"
TOLD: Final = 4000  # characters of what did not hold
LONGEST_S: Final = 0.6  # after everything runs, the latest moment of a kill
READY_S: Final = 120.0  # on a machine that others use too
HANG_S: Final = 15.0  # of a call under way, before it is asked whether Triton hangs
NEVER_S: Final = 75.0  # of a call under way: its own deadline is 60 s
THINK_S: Final = 0.02  # between two calls of one client


# --- the load -----------------------------------------------------------------------------------------------------


class Patient(Bare):
    """Tries a server that is away again after a tenth of a second."""

    def __init__(self, address: str) -> None:
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 200),
        )
        self.channel = grpc.insecure_channel(address, options=options)


class Clients:
    """Calls of every kind from several threads, until stopped; ``take`` gives what they saw since."""

    def __init__(self, sidecar: Sidecar, threads: int, seed: int) -> None:
        self._address = sidecar.grpc
        self._headers = {name: sidecar.headers(name) for name in ("acme", "birch")}
        self._headers["one-a-minute"] = {"authorization": f"Bearer {sidecar.token('one-a-minute', lifetime=3500)}"}
        self._lock, self._stop, self._pause = threading.Lock(), threading.Event(), threading.Event()
        self._seen: list[Seen] = []
        self._under_way: dict[int, float] = {}  # by thread: since when (monotonic seconds)
        self._idle = 0
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed + n),), daemon=True) for n in range(threads)
        ]
        self.faults: list[BaseException] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a client hangs"

    @property
    def longest(self) -> float:
        """Seconds that the longest call under way has taken so far."""
        return time.monotonic() - min([*self._under_way.values()], default=time.monotonic())

    def pause(self, tend: Callable[[], None]) -> list[Seen]:
        """Wait until no call is under way, meanwhile calling ``tend``; what was seen since the last time."""
        self._pause.set()
        until = time.monotonic() + NEVER_S + READY_S
        while self._idle < len(self._threads):
            assert not self.faults, self.faults
            assert time.monotonic() < until, "calls don't end"
            self._stop.wait(0.02)
            tend()
        with self._lock:
            seen, self._seen = self._seen, []
        return seen

    def resume(self) -> None:
        self._pause.clear()

    def _work(self, chance: random.Random) -> None:
        try:
            with Patient(self._address) as bare:
                while not self._stop.wait(THINK_S):
                    if self._pause.is_set():
                        self._wait()
                        continue
                    self._under_way[threading.get_ident()] = time.monotonic()
                    seen = self._one(bare, chance.choice(KINDS), chance)
                    del self._under_way[threading.get_ident()]
                    with self._lock:
                        self._seen.append(seen)
                    if not seen.answered and seen.code == "UNAVAILABLE":
                        grpc.channel_ready_future(bare.channel).result(READY_S)
        except BaseException as fault:  # noqa: BLE001 — handed to the runner's thread
            self.faults.append(fault)

    def _wait(self) -> None:
        with self._lock:
            self._idle += 1
        while self._pause.is_set() and not self._stop.is_set():
            self._stop.wait(0.02)
        with self._lock:
            self._idle -= 1

    def _one(self, bare: Bare, kind: str, chance: random.Random) -> Seen:
        acme, birch = self._headers["acme"], self._headers["birch"]
        match kind:
            case "unary":
                return _unary(bare, kind, echo(), acme)
            case "refused":
                return _unary(bare, kind, echo(), birch)
            case "throttled":
                return _unary(bare, kind, echo(), self._headers["one-a-minute"])
            case "refused in-band":
                return _stream(bare, kind, slow(1), birch)
            case "cancelled":
                return _stream(bare, kind, slow(500, WORD_MS), acme, leave_after=chance.randrange(1, 20))
            case _:
                return _stream(bare, kind, slow(chance.randrange(1, 60), WORD_MS), acme)


# --- the cycles ---------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What a run did and found, kept after each block, so that one that was broken off goes on."""

    cycles: int = 0
    kills: Counter[str] = field(default_factory=Counter)  # of each process
    together: Counter[str] = field(default_factory=Counter)  # cycles by who was killed in them
    calls: int = 0
    answered: int = 0
    unknown: int = 0  # records of calls whose clients were told no id before the crash
    outcomes: Counter[str] = field(default_factory=Counter)
    crashed: int = 0  # calls that a crash took words of
    behind_s: float = 0.0  # the longest that one of those had been read for
    late: int = 0  # of them for longer than the 100 ms, on a busy machine
    triton_died: int = 0
    verified: int = 0  # records, when it was last looked
    slowest_s: float = 0.0  # cycle
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)  # what did not hold

    def told(self) -> str:
        return json.dumps(vars(self))

    @staticmethod
    def of(told: str) -> Tally:
        known = json.loads(told)
        return Tally(**{name: Counter(each) if isinstance(each, dict) else each for name, each in known.items()})


class Crashes:
    """One run against a sidecar's directory; ``postgres`` is its own server, which is killed too."""

    def __init__(
        self,
        sidecar: Sidecar,
        postgres: RunningPostgres,
        triton: Triton,
        directory: Path,
        *,
        seed: int,
        threads: int = 6,
        tally: Tally | None = None,
        victims: Victims | None = None,
    ) -> None:
        self._sidecar, self._postgres, self._triton = sidecar, postgres, triton
        self._chance = random.Random(seed)
        self._children = victims or Children(sidecar.stack.config, directory)
        self._clients = Clients(sidecar, threads, seed)
        self._killed: list[float] = []  # when the sidecar was, in this block
        self._triton_failed = False  # in this block
        self.tally = tally or Tally()

    def run(
        self, cycles: int, *, block: int, progress: Callable[[str], None], verify: Callable[[], int] | None = None
    ) -> Tally:
        """``cycles`` kills; after each ``block`` of them the clients pause and the records are compared.

        A block of which something doesn't hold is told in the tally's ``failed``, and the run goes on. ``verify`` gives
        how many records it verified, every fourth block.
        """
        before, began = self.tally.seconds, time.monotonic()
        self._children.start("serve")
        self._children.start("ship")
        self._ready()
        self._clients.start()
        since = datetime.now(UTC)
        try:
            for number in range(1, cycles + 1):
                self._cycle()
                if number % block and number != cycles:
                    continue
                try:
                    self._compare(since)
                    if verify is not None and (number // block % 4 == 0 or number == cycles):
                        self.tally.verified = verify()
                except AssertionError as fault:
                    self.tally.failed.append(f"at cycle {self.tally.cycles}: {fault}"[:TOLD])
                since = datetime.now(UTC)
                self._clients.resume()
                self.tally.seconds = before + time.monotonic() - began
                progress(self.tally.told())
        finally:
            self._clients.stop()
            self._children.kill_all()
        return self.tally

    def _cycle(self) -> None:
        began = time.monotonic()
        victims = self._chance.choice(VICTIMS)
        threading.Event().wait(self._chance.uniform(0.0, LONGEST_S))
        self._tend()
        assert not self._children.died(), self._children.died()
        assert not self._clients.faults, self._clients.faults
        for name in victims:
            if name == "postgres":
                self._postgres.kill()
            else:
                if name == "serve":
                    self._killed.append(time.monotonic())
                self._children.kill(name)
            self.tally.kills[name] += 1
        for name in victims:
            if name == "postgres":
                self._start_postgres()
            else:
                self._children.start(name)
        if "serve" in victims:
            self._ready()
        self.tally.cycles += 1
        self.tally.together[" and ".join(victims)] += 1
        self.tally.slowest_s = max(self.tally.slowest_s, time.monotonic() - began)

    def _start_postgres(self) -> None:
        """Its sessions end once they notice; until then a new server may find their shared memory in use."""
        until = time.monotonic() + READY_S
        while True:
            try:
                self._postgres.start()
            except StartError:
                if time.monotonic() > until:
                    raise
            else:
                return

    def _tend(self) -> None:
        """Triton 2.51 aborts or hangs now and then when cancels race a stream's end (fixed in 25.06): not of this."""
        longest = self._clients.longest
        if not self._triton.alive or (longest > HANG_S and not self._triton.well):
            self.tally.triton_died += 1
            self._triton_failed = True
            self._triton.revive()
        assert longest < NEVER_S, f"a call hangs for {longest:.0f} s, and Triton doesn't"

    def _ready(self) -> None:
        until = time.monotonic() + READY_S
        while not self._sidecar.stack.is_ready():
            self._tend()
            assert time.monotonic() < until, self._sidecar.stack.readyz()
            assert not self._children.died(), self._children.died()
            threading.Event().wait(0.02)

    def _compare(self, since: datetime) -> None:
        """What the clients of this block saw, with its records; nothing may be missing, doubled or made up."""
        tally, seen = self.tally, self._clients.pause(self._tend)
        killed, self._killed = self._killed, []
        self._tend()
        upstream_failed, self._triton_failed = self._triton_failed, False
        self._ready()
        self._sidecar.settles()
        self._shipped({call.call_id for call in seen if call.answered}, since)
        tally.calls += len(seen)
        tally.answered += sum(call.answered for call in seen)
        twice = query(self._sidecar.parts.postgres_dsn, TWICE)
        assert not twice, f"more than one record of {twice[:5]}"
        records = self._records(since)
        told = {call.call_id for call in seen if call.call_id}
        unknown = [record["call_id"] for record in records if record["call_id"] not in told]
        assert len(unknown) <= sum(not call.call_id for call in seen), f"records of calls that nobody made: {unknown}"
        verdict = judge(seen, records, killed=killed, upstream_failed=upstream_failed, progress=lambda _: None)
        tally.outcomes.update(verdict.outcomes)
        tally.unknown += len(unknown)
        tally.crashed += len(verdict.behind)
        tally.behind_s = max([tally.behind_s, *verdict.behind])
        tally.late += sum(each > LAG_S for each in verdict.behind)

    def _shipped(self, answered: set[str], since: datetime) -> None:
        until = time.monotonic() + READY_S
        while not (
            self._sidecar.metric("warden_ship_database_up") == 1
            and self._sidecar.metric("warden_ship_lag_records") == 0
            and self._sidecar.metric("warden_ship_open_calls") == 0
            and answered <= {record["call_id"] for record in self._records(since, reveal=False)}
        ):
            assert time.monotonic() < until, (Path(self._sidecar.stack.directory) / "journal/ship.json").read_text()
            threading.Event().wait(0.1)

    def _records(self, since: datetime, *, reveal: bool = True) -> list[dict[str, Any]]:
        """All since then, page by page."""
        ids = (uuid7(time.time_ns(), os.urandom(10)) for _ in itertools.count())
        asker = Asker("crashes", datetime.now(UTC), ids, "test", reveal)
        found: list[dict[str, Any]] = []
        before: Keyset | None = None
        while True:
            asked = Filter(since=since - timedelta(milliseconds=1), limit=PAGE, before=before)
            page = search_records(self._sidecar._engine, asked, asker, self._sidecar._opener, JURISDICTION)
            found += [each.shape() for each in page.found]
            before = page.following
            if before is None:
                return found

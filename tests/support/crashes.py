"""kill -9 in cycles, at random points under load, of the sidecar, the shipper and Postgres; then what the audit says.

The sidecar and the shipper are forked from a server that has imported everything, so that a cycle costs no interpreter.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

import grpc

from audit.search import Asker, Filter, Keyset
from audit.search import search as search_records
from sidecar.cli.demo.postgres import RunningPostgres
from sidecar.cli.demo.process import StartError
from sidecar.cli.demo.stack import JURISDICTION
from sidecar.runtime import clock  # noqa: F401 — preloaded for the children, as is all of this module
from sidecar.runtime.ids import uuid7
from sidecar.runtime.lifecycle import Sidecar as Served
from sidecar.runtime.serve import _serve_grpc
from sidecar.runtime.settings import load
from sidecar.transports import grpc_aio  # noqa: F401
from tests.support.load import KINDS, Seen, _stream, _unary, judge
from tests.support.sidecar import Bare, Sidecar, echo, slow
from tests.support.stack import Triton
from tests.support.store import ship_for_real

VICTIMS: Final = (("serve",), ("ship",), ("postgres",), ("serve", "ship"), ("ship", "postgres"), ("serve", "postgres"))
WORD_MS: Final = 10
PAGE: Final = 1000  # records revealed at once
LONGEST_S: Final = 0.6  # after everything runs, the latest moment of a kill
READY_S: Final = 60.0
THINK_S: Final = 0.02  # between two calls of one client


# --- the children -------------------------------------------------------------------------------------------------


def serve_for_real(config: str, log: str) -> None:
    """`warden serve --wire grpc`, but that its shipper is another child of ours; killed, never ended."""
    _logging_to(log)
    tail = ("tail", f"--pid={os.getpid()}", "-f", "/dev/null")  # ends with us
    served = Served(load(Path(config)), (tail, dict(os.environ)))
    asyncio.run(_serve_grpc(served))


def ship_process(config: str, log: str) -> None:
    _logging_to(log)
    ship_for_real(config)


def _logging_to(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


class Children:
    """The sidecar and its shipper, each at most once, started and killed."""

    def __init__(self, config: Path, directory: Path) -> None:
        self._config, self._directory = config, directory
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.support.crashes"])
        self._running: dict[str, ForkServerProcess] = {}

    def start(self, name: str) -> None:
        target = serve_for_real if name == "serve" else ship_process
        child = self._context.Process(target=target, args=(str(self._config), str(self._directory / f"{name}.log")))
        child.start()
        self._running[name] = child

    def died(self) -> list[str]:
        """Those that ended though nobody killed them."""
        return [f"{name}: {child.exitcode}" for name, child in self._running.items() if child.exitcode is not None]

    def kill(self, name: str) -> None:
        child = self._running.pop(name)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        assert child.exitcode == -signal.SIGKILL, f"{name} had ended by itself: {child.exitcode}"

    def kill_all(self) -> None:
        for name in [*self._running]:
            self.kill(name)


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

    def pause(self) -> list[Seen]:
        """Wait until no call is under way; what was seen since the last time."""
        self._pause.set()
        until = time.monotonic() + 90
        while self._idle < len(self._threads):
            assert not self.faults, self.faults
            assert time.monotonic() < until, "calls don't end"
            self._stop.wait(0.02)
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
                    seen = self._one(bare, chance.choice(KINDS), chance)
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
    """What a run did and found."""

    cycles: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    answered: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    triton_died: int = 0
    slowest_s: float = 0.0  # cycle
    seconds: float = 0.0

    def told(self) -> str:
        return json.dumps({
            "cycles": self.cycles, "kills": dict(self.kills), "calls": self.calls, "answered": self.answered,
            "outcomes": dict(self.outcomes), "seconds": round(self.seconds, 1),
            "slowest_cycle_s": round(self.slowest_s, 1), "triton_died": self.triton_died,
        })  # fmt: skip


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
    ) -> None:
        self._sidecar, self._postgres, self._triton = sidecar, postgres, triton
        self._chance = random.Random(seed)
        self._children = Children(sidecar.stack.config, directory)
        self._clients = Clients(sidecar, threads, seed)
        self._ids: set[str] = set()  # of the calls answered in the last block: a record may not come twice later
        self.tally = Tally()

    def run(self, cycles: int, *, block: int, progress: Callable[[str], None]) -> Tally:
        """``cycles`` kills; after each ``block`` of them the clients pause and the records are compared."""
        began = time.monotonic()
        self._children.start("serve")
        self._children.start("ship")
        self._ready()
        self._clients.start()
        since = datetime.now(UTC)
        try:
            for number in range(1, cycles + 1):
                self._cycle()
                if number % block == 0 or number == cycles:
                    since = self._compare(since)
                    self.tally.seconds = time.monotonic() - began
                    progress(self.tally.told())
        finally:
            self._clients.stop()
            self._children.kill_all()
        return self.tally

    def _cycle(self) -> None:
        began = time.monotonic()
        victims = self._chance.choice(VICTIMS)
        threading.Event().wait(self._chance.uniform(0.0, LONGEST_S))
        self._revive()
        assert not self._children.died(), self._children.died()
        assert not self._clients.faults, self._clients.faults
        for name in victims:
            if name == "postgres":
                self._postgres.kill()
            else:
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

    def _revive(self) -> None:
        """Triton 2.51 aborts now and then when many calls are cancelled (fixed in 25.06): not what this is of."""
        if not self._triton.alive:
            self.tally.triton_died += 1
            self._triton.revive()

    def _ready(self) -> None:
        self._revive()
        until = time.monotonic() + READY_S
        while not self._sidecar.stack.is_ready():
            self._revive()
            assert time.monotonic() < until, self._sidecar.stack.readyz()
            assert not self._children.died(), self._children.died()
            threading.Event().wait(0.02)

    def _compare(self, since: datetime) -> datetime:
        seen = self._clients.pause()
        self._ready()
        self._sidecar.settles()
        self._shipped({call.call_id for call in seen if call.answered}, since)
        records = self._records(since)
        twice = [n for n, count in Counter(record["call_id"] for record in records).items() if count > 1]
        assert not twice, f"more than one record of {twice[:5]}"
        for outcome, count in judge(seen, records, progress=lambda _: None).items():
            self.tally.outcomes[outcome] += count
        self.tally.calls += len(seen)
        self.tally.answered += sum(call.answered for call in seen)
        after = datetime.now(UTC)
        self._clients.resume()
        return after

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

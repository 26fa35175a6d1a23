"""Several whole sidecars that share a tenant's rate through a real Redis, under more load than it allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from sidecar.cli.demo.stack import Parts
from sidecar.quotas.leases import ROUND_S
from tests.support.bundle import LIMITED
from tests.support.redis import RedisServer
from tests.support.sidecar import Launch, Sidecar, echo
from tests.support.stack import eventually

TENANT: Final = "hundred-a-second"
RATE: Final = 100
BURST: Final = int(LIMITED[TENANT]["requests"]["burst"])
PODS: Final = 3
EACH: Final = 80  # requests a second at each pod: together more than twice the limit
# What may be out when a window begins: of each pod two rounds' use, and one advance of a round's part (one at least).
LEASES: Final = PODS * (2 * RATE * ROUND_S + max(1, RATE * ROUND_S / PODS))


@dataclass(slots=True)
class Seen:
    """When each call was sent and answered, by its client's clock, and whether it was let in."""

    sent: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    ok: list[bool] = field(default_factory=list)
    other: list[str] = field(default_factory=list)  # codes that are neither

    def admitted(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Of those that were let in, in the order they were sent."""
        ok = np.array(self.ok)
        sent, done = np.array(self.sent)[ok], np.array(self.done)[ok]
        order = np.argsort(sent)
        return sent[order], done[order]

    def most_above(self) -> float:
        """The most by which any window's count is above burst + rate x its length.

        A call was surely let in within a window if it was sent and answered in it.
        """
        sent, done = self.admitted()
        worst = float("-inf")
        for number, begin in enumerate(sent):
            ends = np.sort(done[number:])
            worst = max(worst, float(np.max(np.arange(1, len(ends) + 1) - RATE * (ends - begin))))
        return worst - BURST

    def between(self, begin: float, end: float) -> int:
        """Let in, by when they were answered."""
        _, done = self.admitted()
        return int(np.sum((done >= begin) & (done < end)))

    def p99_ms(self, begin: float, end: float) -> float:
        """Of all that were sent then, whatever they were told."""
        sent, done = np.array(self.sent), np.array(self.done)
        chosen = (sent >= begin) & (sent < end)
        return float(np.percentile((done - sent)[chosen], 99) * 1000)


@contextmanager
def pods(own: Launch, parts: Parts, redis: RedisServer, **section: Any) -> Iterator[list[Sidecar]]:
    """Sidecars that have found each other."""
    started = []
    for n in range(PODS):
        overrides = {"quotas": {"redis": {"url": redis.url, **section}}, "sidecar": {"name": f"pod-{n}"}}
        started.append(own(name=f"pod-{n}", parts=parts, overrides=overrides))
    eventually(lambda: all(share(each) == PODS for each in started), what="all pods to be counted", within_s=30)
    yield started


def share(sidecar: Sidecar) -> int:
    """How many pods it shares with, as /readyz tells."""
    detail = sidecar.ready()["redis"]["detail"]
    return int(detail.split()[0]) if detail.endswith("pods share") else 0


def drive(sidecars: Sequence[Sidecar], seconds: float, at: Sequence[tuple[float, Callable[[], object]]] = ()) -> Seen:
    """``EACH`` requests a second at every pod; what is in ``at`` happens so many seconds after the beginning.

    Open loop: who is slow to answer is sent no less. Times are seconds after the beginning.
    """
    seen, lock, begins = Seen(), threading.Lock(), time.monotonic() + 0.5
    clients = [threading.Thread(target=_client, args=(each, seen, lock, begins, seconds)) for each in sidecars]
    for each in clients:
        each.start()
    for when, act in at:
        time.sleep(max(0.0, begins + when - time.monotonic()))
        act()
    for each in clients:
        each.join()
    return seen


def _client(sidecar: Sidecar, seen: Seen, lock: threading.Lock, begins: float, seconds: float) -> None:
    headers, message = sidecar.headers(TENANT), echo()
    with sidecar.bare() as bare:
        bare.unary(message, sidecar.headers("acme"))  # the connection is there
        running = []
        for n in range(int(EACH * seconds)):
            time.sleep(max(0.0, begins + n / EACH - time.monotonic()))
            sent = time.monotonic() - begins
            future = bare.begin(message, headers)
            future.add_done_callback(lambda ended, sent=sent: _note(seen, lock, sent, time.monotonic() - begins, ended))
            running.append(future)
        for future in running:
            future.exception()


def _note(seen: Seen, lock: threading.Lock, sent: float, done: float, ended: Any) -> None:
    code = ended.code().name
    with lock:
        seen.sent.append(sent)
        seen.done.append(done)
        seen.ok.append(code == "OK")
        if code not in {"OK", "RESOURCE_EXHAUSTED"}:
            seen.other.append(code)


def shared_redis(directory: Path) -> RedisServer:
    """Its buckets are full: it is there for as long as a burst takes to fill."""
    server = RedisServer(directory)
    time.sleep(BURST / RATE)
    return server

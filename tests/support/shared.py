"""Several whole sidecars that share a tenant's rate through a real Redis, under more load than it allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sidecar.cli.demo.stack import Parts
from sidecar.quotas.leases import ROUND_S
from tests.support.bundle import LIMITED
from tests.support.paced import Place, Sent, pacing
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


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client saw, in the order it was sent; times are seconds after the beginning."""

    calls: Sequence[Sent]

    @property
    def other(self) -> list[str]:
        """Codes that are neither of who was let in nor of who was not."""
        return [each.code for each in self.calls if each.code not in {"OK", "RESOURCE_EXHAUSTED"}]

    @property
    def let_in(self) -> int:
        return len(self.admitted()[0])

    def admitted(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """When those that were let in were sent and answered."""
        ok = [each for each in self.calls if each.code == "OK"]
        return np.array([each.sent for each in ok]), np.array([each.done for each in ok])

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

    def took_ms(self, begin: float, end: float) -> list[float]:
        """All that were sent then, whatever they were told."""
        return [(each.done - each.sent) * 1000 for each in self.calls if begin <= each.sent < end]


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


def drive(
    directory: Path, sidecars: Sequence[Sidecar], seconds: float, at: Sequence[tuple[float, Callable[[], object]]] = (),
    *, each_second: float = EACH,
) -> Seen:  # fmt: skip
    """``each_second`` requests at every pod; what is in ``at`` happens so many seconds after the beginning."""
    places = [Place(each.grpc, each.headers(TENANT), each.headers("acme"), each_second) for each in sidecars]
    with pacing(directory, places, echo(), seconds) as pacer:
        for when, act in at:
            time.sleep(max(0.0, pacer.begins + when - time.monotonic()))
            act()
        return Seen(sorted(pacer.wait(), key=lambda each: each.sent))


def shared_redis(directory: Path) -> RedisServer:
    """Its buckets are full: it is there for as long as a burst takes to fill."""
    server = RedisServer(directory)
    time.sleep(BURST / RATE)
    return server

"""The ways a request can take: straight to the upstream, through a plain Envoy, through the sidecar's two wires."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import parts
from benchmarks.processes import child, cpu_us
from benchmarks.setup import lifted_bundle, warden_stack
from sidecar.cli.demo.process import end
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import Addresses
from sidecar.runtime.settings import load

ENVOY: Final = "Envoy"
HOSTED: Final = "hosted"
DIRECT: Final = "direct"
WIRES: Final = ("envoy", "grpc")
SHIPPED_S: Final = 60.0  # how long the shipper is given to catch up between two rounds


def warden(wire: str) -> str:
    return f"warden, {wire}"


@dataclass(slots=True)
class Route:
    """One way. ``pid``: the process between client and upstream (None: nothing is). ``governed``: it drops what a
    client did not ask for (a stream's empty final response)."""

    name: str
    address: str
    token: str
    pid: int | None = None
    ship: int | None = None
    report: Path | None = None  # the shipper's, for how far it is behind

    @property
    def governed(self) -> bool:
        return self.ship is not None

    def cpu(self) -> float:
        return 0.0 if self.pid is None else cpu_us(self.pid)

    def ship_cpu(self) -> float:
        return 0.0 if self.ship is None else cpu_us(self.ship)

    def shipped(self) -> None:
        """Wait until nothing is left to ship, so that it costs the next one measured nothing."""
        if self.report is None:
            return
        deadline = time.monotonic() + SHIPPED_S
        time.sleep(1.1)  # the report is written once a second
        while any(each["lag_records"] > 0 for each in json.loads(self.report.read_text())["databases"].values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: still shipping after {SHIPPED_S:.0f} s")
            time.sleep(0.1)


@contextmanager
def routes(directory: Path, around: Parts, upstream: str, *, hosted: bool = False) -> Iterator[list[Route]]:
    """All ways to ``upstream``, each started and warm; ended with the context."""
    directory.mkdir()
    bundle = lifted_bundle(directory / "bundle")
    with ExitStack() as kept:
        wardens = [_warden(kept, directory / wire, around, upstream, bundle, wire) for wire in WIRES]
        token = wardens[0].token
        config = load(directory / "envoy" / "warden.yaml")
        plain, address = parts.start_envoy(config, directory / "plain", hosted=False)
        kept.callback(end, plain)
        found = [Route(DIRECT, upstream, token), Route(ENVOY, address, token, plain.pid)]
        if hosted:
            bare, address = parts.start_envoy(config, directory / "bare", hosted=True)
            kept.callback(end, bare)
            found.append(Route(HOSTED, address, token, bare.pid))
        yield [*found, *wardens]


def _warden(kept: ExitStack, directory: Path, around: Parts, upstream: str, bundle: Path, wire: str) -> Route:
    name = f"bench-{directory.parent.name}-{wire}"
    addresses = Addresses(upstream, around.triton.http, around.triton.metrics)
    beside = Parts(around.otlp, addresses, around.postgres_dsn)
    stack = warden_stack(directory, beside, wire, bundle, name=name)
    stack.start()
    kept.callback(stack.stop)
    assert stack.process is not None
    return Route(
        warden(wire),
        str(stack.info["grpc"]),
        stack.mint("acme", lifetime=3600),
        stack.process.pid,
        child(stack.process.pid, "ship"),
        directory / "journal" / "ship.json",
    )

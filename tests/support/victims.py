"""The processes that crash cycles kill: a sidecar, its shipper; forked for speed, or as `warden serve` runs them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final, Protocol

from sidecar.cli.demo.stack import Stack
from sidecar.runtime import clock  # noqa: F401 — preloaded for the children, as is all of this module
from sidecar.runtime.lifecycle import Sidecar as Served
from sidecar.runtime.serve import _serve_grpc
from sidecar.runtime.settings import load
from sidecar.transports import grpc_aio  # noqa: F401
from tests.support.store import ship_for_real

FOUND_S: Final = 60.0  # until a killed shipper has been started again


class Victims(Protocol):
    """A sidecar ("serve") and its shipper ("ship"), each at most once."""

    def start(self, name: str) -> None: ...

    def died(self) -> list[str]:
        """Those that ended though nobody killed them."""
        ...

    def kill(self, name: str) -> None: ...

    def kill_all(self) -> None: ...


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
    """Forked from a server that has imported everything, so that a cycle costs no interpreter. The portable wire."""

    def __init__(
        self,
        config: Path,
        directory: Path,
        *,
        serve: Callable[[str, str], None] = serve_for_real,
        ship: Callable[[str, str], None] = ship_process,
    ) -> None:
        self._config, self._directory, self._bodies = config, directory, {"serve": serve, "ship": ship}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.support.victims"])
        self._running: dict[str, ForkServerProcess] = {}

    def start(self, name: str) -> None:
        child = self._context.Process(
            target=self._bodies[name], args=(str(self._config), str(self._directory / f"{name}.log"))
        )
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


class Commands:
    """A real `warden serve`, on any wire; its shipper is its own child, which it starts again when it is killed."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._shipper = f"sidecar.cli.main\0ship\0--config\0{stack.config.resolve()}\0".encode()

    def start(self, name: str) -> None:
        if name == "serve":
            self._stack.start_warden(until=lambda: True)

    @property
    def _serving(self) -> bool:
        return self._stack.process is not None and self._stack.process.poll() is None

    def died(self) -> list[str]:
        return [] if self._serving else ["serve"]

    def kill(self, name: str) -> None:
        if name == "ship":
            self._kill_shipper()
            return
        assert self._serving, "serve had ended by itself"
        assert self._stack.process is not None
        self._stack.process.kill()
        self._stack.process.wait()

    def _kill_shipper(self) -> None:
        """Where its sidecar has just died too, it may have ended of that already."""
        until = time.monotonic() + FOUND_S
        while not (found := self._shippers()) and self._serving:
            assert time.monotonic() < until, "no shipper"
            threading.Event().wait(0.02)
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def _shippers(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes().endswith(self._shipper):
                    found.append(int(path.parent.name))
            except OSError:  # it has ended meanwhile
                continue
        return found

    def kill_all(self) -> None:
        if self._serving:
            self.kill("serve")

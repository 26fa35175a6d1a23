"""SIGTERM: refuse new calls, let those under way finish within the grace, end the rest told, then quit (DESIGN §3)."""

from __future__ import annotations

import http.client
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.core.governor import Governor
from sidecar.telemetry import logs
from sidecar.transports.exchange import DRAINED
from sidecar.transports.live import LiveRpcs

_LOG: Final = logging.getLogger("warden.lifecycle")
_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_POLL: Final = 0.02  # seconds
_CUT: Final = 5.0  # seconds for cut calls to be settled and told


def block_signals() -> None:
    """Before anything starts threads: from now on only ``wait_for_signal`` sees SIGTERM and SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def wait_for_signal() -> signal.Signals:
    return signal.Signals(signal.sigwait(_SIGNALS))


class Drain:
    """The way out. ``run`` returns once nothing is in flight any more."""

    def __init__(self, governor: Governor, live: LiveRpcs, grace: float) -> None:
        self._governor = governor
        self._live = live
        self._grace = grace
        self.began = threading.Event()

    def run(self) -> None:
        self.began.set()
        self._governor.drain()
        logs.event(_LOG, logging.INFO, "drain.began", in_flight=len(self._live), grace=self._grace)
        if not self._idle_within(self._grace):
            logs.event(_LOG, logging.WARNING, "drain.cut", in_flight=len(self._live))
            self._live.cut_all(DRAINED)
            self._idle_within(_CUT)
        logs.event(_LOG, logging.INFO, "drain.ended", in_flight=len(self._live))

    def _idle_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._live or self._governor.in_flight:
            self._live.cut_idle(DRAINED)
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)
        return True


class EnvoyAdmin:
    """Envoy's admin endpoint, on its unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def post(self, target: str, *, connected: Callable[[], None] | None = None) -> int:
        """The HTTP status, after ``connected``. Raises ``OSError`` where Envoy does not answer."""
        connection = http.client.HTTPConnection("envoy", timeout=5.0)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.sock.settimeout(5.0)
            connection.sock.connect(str(self._path))
            if connected is not None:
                connected()
            connection.request("POST", target)
            return connection.getresponse().status
        except http.client.HTTPException as fault:
            raise OSError(f"Envoy's answer to {target} cannot be read") from fault
        finally:
            connection.close()


def drain_envoy(drain: Drain, admin: EnvoyAdmin, finish: Callable[[], None], clean: Callable[[], None]) -> None:
    """The whole way out on the production wire; the last request ends this very process.

    ``clean`` removes the directory that holds the admin socket, so it runs once that is connected.
    """
    try:
        # SIGTERM alone would make Envoy drop live streams at once (facts/envoy.md).
        admin.post("/drain_listeners?graceful&skip_exit")
    except OSError:  # then clients are not asked to leave, but those under way may still finish
        _LOG.exception("drain.listeners")
    drain.run()
    finish()
    admin.post("/quitquitquit", connected=clean)

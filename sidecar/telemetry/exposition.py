"""The admin server: `/metrics`, `/livez`, `/readyz` on its own thread and port, hardened, for operators only."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from sidecar.telemetry.logs import event

__all__ = ["AddressUnavailable", "AdminServer", "Check", "Probe"]

HEAD_BYTES: Final = 8 * 1024  # request line and headers together
HEAD_SECONDS: Final = 5.0  # to send them; and to take the answer
CONNECTIONS: Final = 16  # at once; Prometheus and the kubelet need three

_LOG: Final = logging.getLogger("warden.admin")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``detail`` is for operators: no secret, no content."""

    ok: bool
    detail: str = ""


Probe = Callable[[], Mapping[str, Check]]
"""Asked at each request, in its thread; must answer from memory. All checks ok, or none: 200; otherwise 503."""


class AddressUnavailable(OSError):  # noqa: N818 — a state of the address, as DESIGN words its reasons
    """The admin address can't be listened on; the message says which and why."""


class _HeadTooLarge(Exception):  # noqa: N818 — ends one connection, never seen outside
    """More than ``HEAD_BYTES`` before the empty line."""


class _Head(BufferedIOBase):
    """Reads a request's head by lines, within ``HEAD_BYTES`` and ``HEAD_SECONDS`` for all of it: no slow drip."""

    def __init__(self, connection: socket.socket, mono: Callable[[], float]) -> None:
        self._connection, self._mono = connection, mono
        self._until = mono() + HEAD_SECONDS
        self._buffer = b""
        self._taken = 0

    def readline(self, size: int | None = -1, /) -> bytes:  # noqa: ARG002 — the whole head is bounded, so each line is
        while b"\n" not in self._buffer:
            if self._taken >= HEAD_BYTES:
                raise _HeadTooLarge
            remaining = self._until - self._mono()
            if remaining <= 0:
                raise TimeoutError
            self._connection.settimeout(remaining)
            data = self._connection.recv(HEAD_BYTES - self._taken)
            if not data:
                break
            self._taken += len(data)
            self._buffer += data
        line, newline, self._buffer = self._buffer.partition(b"\n")
        self._connection.settimeout(HEAD_SECONDS)  # for the answer
        return line + newline


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request: GET or HEAD, answered and closed."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "warden", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.connection, time.monotonic)  # only a deadline for I/O; no decision reads this clock

    def handle(self) -> None:
        self.close_connection = True
        try:
            self.handle_one_request()
        except _HeadTooLarge:
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
            self._answer(431, "text/plain; charset=utf-8", b"request head too large\n")
        except (ConnectionError, TimeoutError):
            pass  # the peer left; nothing is owed to it

    def do_GET(self) -> None:
        """Named by ``BaseHTTPRequestHandler``."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._metrics()
            case "/livez":
                self._probe("live", self.server.live)
            case "/readyz":
                self._probe("ready", self.server.ready)
            case _:
                self._answer(404, "text/plain; charset=utf-8", b"/metrics, /livez, /readyz\n")

    do_HEAD = do_GET  # noqa: N815 — named by BaseHTTPRequestHandler

    def _metrics(self) -> None:
        if "application/openmetrics-text" in self.headers.get("Accept", ""):
            body = generate_openmetrics(self.server.registry)  # type: ignore[no-untyped-call]  # prometheus_client leaves it bare
            self._answer(200, OPENMETRICS, body)
        else:
            self._answer(200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.server.registry))

    def _probe(self, name: str, probe: Probe) -> None:
        try:
            checks = probe()
        except Exception as fault:  # noqa: BLE001 — a probe that can't answer is no yes
            event(_LOG, logging.ERROR, "probe.failed", check=name, error=type(fault).__name__)
            checks = {"probe": Check(ok=False, detail=f"{type(fault).__name__} while checking")}
        ok = all(check.ok for check in checks.values())
        body = {name: ok, "checks": {key: {"ok": check.ok, "detail": check.detail} for key, check in checks.items()}}
        self._answer(200 if ok else 503, "application/json", json.dumps(body, ensure_ascii=False).encode() + b"\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — the base class's parameter
        """Nothing: probes come every few seconds, and a request line is the peer's text."""


class _Server(ThreadingHTTPServer):
    """At most ``CONNECTIONS`` threads; a connection beyond is closed at once."""

    daemon_threads = True
    request_queue_size = 32
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], family: int, registry: CollectorRegistry, live: Probe, ready: Probe
    ) -> None:
        self.address_family = family
        self.registry, self.live, self.ready = registry, live, ready
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the base class's reverse DNS look-up of our own address."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 — the base class's shape
        """Into the log, where the base class would print."""
        _LOG.exception("admin.failed")


class AdminServer:
    """Listens on ``address`` ("HOST:PORT", "[::1]:PORT"; port 0: any) from ``start`` to ``stop``."""

    def __init__(self, address: str, registry: CollectorRegistry, live: Probe, ready: Probe) -> None:
        self._address, self._registry, self._live, self._ready = address, registry, live, ready
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it really listens on; only after ``start``."""
        assert self._server is not None
        return self._server.server_port

    def start(self) -> None:
        """Bind, and serve from a daemon thread. Raises ``AddressUnavailable``."""
        host, _, port = self._address.rpartition(":")
        try:
            family, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            self._server = _Server((str(address[0]), int(address[1])), family, self._registry, self._live, self._ready)
        except OSError as fault:
            raise AddressUnavailable(
                fault.errno, f"the admin server cannot listen on {self._address} (listen.admin): {fault.strerror}"
            ) from fault
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="warden-admin", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; answers under way have until their own timeouts. Does nothing where it isn't running."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join(timeout=5.0)
        self._server.server_close()
        self._server = self._thread = None

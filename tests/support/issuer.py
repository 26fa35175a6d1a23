"""An identity provider's JWKS endpoint on loopback: counts what it is asked, goes away and comes back."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class JwksServer:
    """Serves ``keys`` at ``url``, the same one after ``stop`` and ``start``; ``asked`` holds when (monotonic s)."""

    def __init__(self, keys: bytes) -> None:
        self.keys = keys
        self.asked: list[float] = []
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/jwks"

    def start(self) -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(time.monotonic())
                self.send_response(200)
                self.send_header("content-type", "application/jwk-set+json")
                self.send_header("content-length", str(len(issuer.keys)))
                self.end_headers()
                self.wfile.write(issuer.keys)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nobody listens there any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

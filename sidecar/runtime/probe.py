"""Asks Triton whether it is ready, once a second, from its own thread: `/readyz` and ServerReady answer from it."""

from __future__ import annotations

import logging
import threading
from typing import Final

import pyqwest

from sidecar.telemetry import logs
from sidecar.transports.grpc_frames import frame

_LOG: Final = logging.getLogger("warden.upstream")
_READY: Final = "/inference.GRPCInferenceService/ServerReady"
_READY_ANSWER: Final = frame(b"\x08\x01")  # ServerReadyResponse{ready: true}
_TIMEOUT: Final = 2.0  # seconds


class UpstreamProbe:
    """``ready`` is what the last answer said; False until the first."""

    def __init__(self, address: str, *, every: float = 1.0) -> None:
        self._url = f"http://{address}{_READY}"
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warden-upstream", daemon=True)
        self.ready = False
        self.detail = "not asked yet"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_TIMEOUT * 2)

    def _run(self) -> None:
        # HTTP/2 without TLS by prior knowledge, as gRPC speaks it on loopback.
        client = pyqwest.SyncClient(
            pyqwest.SyncHTTPTransport(
                http_version=pyqwest.HTTPVersion.HTTP2,
                connect_timeout=_TIMEOUT,
                timeout=_TIMEOUT,
                proxy=(),
                enable_otel=False,
            )
        )
        while not self._stopping.is_set():
            try:
                ready, detail = self._ask(client)
            except Exception as fault:  # noqa: BLE001 — a thread that died would leave its last answer standing for good
                _LOG.error("probe.crashed", exc_info=fault)
                ready, detail = False, f"asking failed: {type(fault).__name__}"
            if ready is not self.ready:
                logs.event(
                    _LOG, logging.INFO if ready else logging.WARNING, "upstream.ready", ready=ready, detail=detail
                )
            self.ready, self.detail = ready, detail
            self._stopping.wait(self._every)

    def _ask(self, client: pyqwest.SyncClient) -> tuple[bool, str]:
        headers = {"content-type": "application/grpc", "te": "trailers"}
        try:
            response = client.post(self._url, headers=headers, content=frame(b""))
        except (OSError, TimeoutError, pyqwest.ReadError, pyqwest.WriteError, pyqwest.RemoteProtocolError) as fault:
            return False, f"Triton does not answer: {type(fault).__name__}"
        if bytes(response.content) == _READY_ANSWER:
            return True, "ready"
        return False, "Triton answers that it is not ready"

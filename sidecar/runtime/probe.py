"""Asks Triton whether it is ready, once a second, from its own thread: `/readyz` and ServerReady answer from it."""

from __future__ import annotations

import logging
import threading
from typing import Final

from sidecar.runtime.ask import TIMEOUT, TritonDesk, Unanswered
from sidecar.telemetry import logs
from sidecar.transports.upstream import Restricted

_LOG: Final = logging.getLogger("warden.upstream")


class UpstreamProbe:
    """``ready`` is what the last answer said; False until the first."""

    def __init__(self, address: str, restricted: Restricted | None = None, *, every: float = 1.0) -> None:
        self._address, self._restricted = address, restricted
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warden-upstream", daemon=True)
        self.ready = False
        self.detail = "not asked yet"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT * 2)

    def _run(self) -> None:
        desk = TritonDesk(self._address, self._restricted)
        while not self._stopping.is_set():
            try:
                ready, detail = self._ask(desk)
            except Exception as fault:  # noqa: BLE001 — a thread that died would leave its last answer standing for good
                _LOG.error("probe.crashed", exc_info=fault)
                ready, detail = False, f"asking failed: {type(fault).__name__}"
            if ready is not self.ready:
                logs.event(
                    _LOG, logging.INFO if ready else logging.WARNING, "upstream.ready", ready=ready, detail=detail
                )
            self.ready, self.detail = ready, detail
            self._stopping.wait(self._every)

    def _ask(self, desk: TritonDesk) -> tuple[bool, str]:
        answer = desk.ask("ServerReady")
        if isinstance(answer, Unanswered):
            if answer.restricted:
                return False, "Triton wants another secret than triton.restricted_secret, or one at all"
            return False, answer.detail if answer.code is None else f"Triton answers {answer.code.name}"
        return (True, "ready") if answer.ready else (False, "Triton answers that it is not ready")

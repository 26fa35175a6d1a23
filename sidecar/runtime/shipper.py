"""Keeps `warden ship` running as a child of the sidecar: started anew when it ends, ended with the sidecar."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from sidecar.telemetry import logs

PARENT_VARIABLE: Final = "WARDEN_PARENT"  # our process id, so that the child notices our death from its start on
_LOG: Final = logging.getLogger("warden.ship")
_FIRST_PAUSE: Final = 0.5  # seconds before a restart, doubled up to the last while it keeps failing
_LAST_PAUSE: Final = 15.0
_SETTLED: Final = 30.0  # running this long, it counts as well again
_GRACE: Final = 10.0  # seconds for the batch under way on stop


class Shipper:
    """One child process. It ends by itself when its parent dies (it asks the kernel for that), even by kill -9."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = tuple(command)
        self._environment = {**environment, PARENT_VARIABLE: str(os.getpid())}
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="warden-shipper", daemon=True)
        self.restarts = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end (it finishes its batch); insist after a while."""
        self._stopping.set()
        process = self._process
        if process is not None:
            _end(process)
        self._thread.join(_GRACE)

    def _run(self) -> None:
        # PR_SET_PDEATHSIG follows the *thread* that forked (prctl(2)): so this one lives as long as the process does.
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                # Its own arguments, from our own configuration; no shell.
                self._process = subprocess.Popen(  # noqa: S603
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=False
                )
            except OSError as fault:  # no memory, no process to spare: that passes, and shipping must go on then
                logs.event(_LOG, logging.ERROR, "ship.unstarted", error=fault.strerror, restart_in=pause)
            else:
                if self._stopping.is_set():  # asked while it was being started, so that nobody else ends it
                    _end(self._process)
                code = self._process.wait()
                if self._stopping.is_set():
                    return
                if time.monotonic() - began >= _SETTLED:
                    pause = _FIRST_PAUSE
                logs.event(_LOG, logging.ERROR, "ship.ended", exit_code=code, restart_in=pause)
            self.restarts += 1
            self._stopping.wait(pause)
            pause = min(pause * 2, _LAST_PAUSE)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()

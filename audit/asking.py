"""Asks a server one thing over HTTP, and waits no longer for all of its answer, however it drips."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping

__all__ = ["ask"]


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: str | bytes | None,
    headers: Mapping[str, str], *, most: int, within: float,
) -> tuple[int, bytes]:  # fmt: skip
    """(status, the answer's first ``most`` bytes and one more); ``within`` seconds once there is a connection.

    The connection's own timeout bounds each step: a server that sends a byte a second would never meet it. Closes the
    connection. Raises OSError, http.client.HTTPException.
    """
    late = threading.Event()
    try:
        connection.connect()
        timer = threading.Timer(within, _hang_up, (connection.sock, late))
        timer.daemon = True
        timer.start()
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            found = answer.status, answer.read(most + 1)
        except (OSError, http.client.HTTPException):
            if not late.is_set():
                raise
        finally:
            timer.cancel()
        if late.is_set():  # what was read is cut off where no length told how much there was to be
            raise TimeoutError(f"no whole answer within {within:g} s")
    finally:
        connection.close()
    return found


def _hang_up(connected: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # below TLS, whose state is the reading thread's

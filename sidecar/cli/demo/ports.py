"""Which TCP ports the demo's parts listen on: the preferred one where it is free, else one that is."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def is_free(port: int) -> bool:
    """Whether ``port`` can be listened on at 127.0.0.1 now. Another process may still take it before it is used."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set it too: without it, connections in TIME_WAIT would make a restarted demo move to other ports.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port that the system says is free at 127.0.0.1."""
    return free_ports(1)[0]


def free_ports(count: int) -> tuple[int, ...]:
    """``count`` different free ports: all are held while they are chosen, so none is given twice."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in held:
            one.bind((LOOPBACK, 0))
        return tuple(int(one.getsockname()[1]) for one in held)
    finally:
        for one in held:
            one.close()


def pick(preferred: int) -> int:
    """``preferred`` where it is free, else any free port."""
    return preferred if is_free(preferred) else free_port()

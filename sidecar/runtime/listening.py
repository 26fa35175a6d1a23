"""Whether the tenants' ports take connections yet: Envoy opens its listeners after what it runs inside has started."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

__all__ = ["Listening"]

_WAIT: Final = 0.2  # seconds; on the pod's own address a port answers at once or not at all
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 — what to connect to for them


class Listening:
    """Asks each address until it has taken a connection once; that a listener goes is noticed elsewhere.

    For several threads: what one of them has found open stays so for all.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = tuple(addresses)
        self._opened: set[str] = set()

    def missing(self) -> str:
        """The first that has not yet and all after it, "" for none. May wait a moment, so not for an event loop."""
        for n, address in enumerate(self._addresses):
            if address not in self._opened and not _takes(address):
                return ", ".join(each for each in self._addresses[n:] if each not in self._opened)
            self._opened.add(address)
        return ""


def _takes(address: str) -> bool:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((_ANY.get(host, host), int(port)), timeout=_WAIT):
            return True
    except OSError:
        return False

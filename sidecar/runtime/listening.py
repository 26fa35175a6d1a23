"""Whether the tenants' ports take connections yet: Envoy opens its listeners after what it runs inside has started."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

__all__ = ["Listening"]

_WAIT: Final = 0.2  # seconds; on the pod's own address a port answers at once or not at all
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 — what to connect to for them


class Listening:
    """Asks each address until it has taken a connection once; that a listener goes is noticed elsewhere."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._left = list(addresses)

    def missing(self) -> str:
        """Those that have not yet, "" for none. May wait a moment for each, so not for an event loop."""
        self._left = [address for address in self._left if not _takes(address)]
        return ", ".join(self._left)


def _takes(address: str) -> bool:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((_ANY.get(host, host), int(port)), timeout=_WAIT):
            return True
    except OSError:
        return False

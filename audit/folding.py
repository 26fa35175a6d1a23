"""Counts refusals that are not worth a record each: by reason and network, told as one event a window.

Whoever needs no credential to be refused could fill the journal with refusals, and so could a tenant that is over its
share. The first few of each kind are recorded whole, as examples.
"""

from __future__ import annotations

import ipaddress
import threading
from dataclasses import dataclass
from typing import Final

__all__ = ["WINDOW_S", "Folded", "Folding", "network"]

WINDOW_S: Final = 60.0
WHOLE: Final = 100  # of one reason and network recorded whole in a window
WHOLE_ALL: Final = 1000  # of all together
KINDS: Final = 256  # reasons and networks told apart; the rest are counted together
OTHERS: Final = "(others)"


_Key = tuple[str, str, str]  # reason, origin, store


@dataclass(slots=True)
class Folded:
    """Refusals of one kind in one window that have no record of their own. Times: ns since the UNIX epoch."""

    reason: str
    origin: str
    count: int
    first_ns: int
    last_ns: int
    store: str = ""  # the jurisdiction whose database keeps the count; "": the pod's own


def network(peer: str) -> str:
    """The peer's /24 or /48; "" where it has no address."""
    host = peer.removeprefix("ipv4:").removeprefix("ipv6:")
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.replace("%5B", "").replace("%5D", ""))
    except ValueError:
        return ""
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


class Folding:
    """One recorder's; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._whole: dict[_Key, int] = {}
        self._all = 0
        self._folded: dict[_Key, Folded] = {}
        self._since_ns: int | None = None

    def folds(self, reason: str, origin: str, at_ns: int, *, whole: int = WHOLE, store: str = "") -> bool:
        """Whether one more is counted; False: it is to be recorded. ``whole``: how many of its kind may be.

        What is counted with others, for want of room to tell it apart, names nobody, and is the pod's own.
        """
        key = reason, origin, store
        with self._lock:
            if self._since_ns is None:
                self._since_ns = at_ns
            recorded = self._whole.get(key, 0)
            if recorded < whole and self._all < WHOLE_ALL and (recorded or len(self._whole) < KINDS):
                self._whole[key], self._all = recorded + 1, self._all + 1
                return False
            folded = self._folded.get(key)
            if folded is None:
                if len(self._folded) >= KINDS:
                    key = OTHERS, OTHERS, ""
                folded = self._folded.setdefault(key, Folded(key[0], key[1], 0, at_ns, at_ns, key[2]))
            folded.count += 1
            folded.last_ns = at_ns
            return True

    def due(self, at_ns: int, *, now: bool = False) -> list[Folded]:
        """What a window that has ended counted; ``now``: whether it has ended or not.

        It has, too, where it began in what is now the future: the clock was set back.
        """
        with self._lock:
            if self._since_ns is None or (not now and abs(at_ns - self._since_ns) < WINDOW_S * 1e9):
                return []
            folded = [*self._folded.values()]
            self._whole, self._folded, self._all, self._since_ns = {}, {}, 0, None
            return folded

    def again(self, folded: list[Folded]) -> None:
        """They could not be told: count them on."""
        with self._lock:
            for each in folded:
                known = self._folded.setdefault((each.reason, each.origin, each.store), each)
                if known is not each:
                    known.count += each.count
                    known.first_ns = min(known.first_ns, each.first_ns)
                self._since_ns = min(self._since_ns or each.first_ns, each.first_ns)

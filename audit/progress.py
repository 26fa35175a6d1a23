"""How far `verify` came, in a file that only who has the root key can write: what is in it is not looked at again."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from audit.merkle import Frontier
from audit.spool import write_whole

__all__ = ["Progress", "ResumeError"]


_NEVER: Final = "1970-01-01T00:00:00+00:00"


class ResumeError(ValueError):
    """What was kept of an earlier run is not what such a run keeps, or was kept under another key."""


class Progress:
    """How far each log was found sound before; a log with a fault is looked at again from there.

    ``began``: since when, so what this relies on was read then or later. After ``full_every`` everything is read again:
    what was altered behind the place that a run goes on from would show in no other.
    """

    def __init__(self, path: Path | None, key: bytes, now: datetime, full_every: timedelta | None = None) -> None:
        self._path, self._key, self._trees, self.began = path, key, dict[str, Frontier](), now
        if path is not None and path.exists():
            trees, began = self._read(path)
            if full_every is None or timedelta() <= now - began < full_every:
                self._trees, self.began = trees, began

    def _read(self, path: Path) -> tuple[dict[str, Frontier], datetime]:
        try:
            told = json.loads(path.read_bytes())
            trees, began, mac = told["trees"], told.get("began", _NEVER), bytes.fromhex(told["mac"])
            since = datetime.fromisoformat(began)
            found = {log: Frontier.unpack(size, bytes.fromhex(hashes)) for log, (size, hashes) in trees.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise ResumeError(f"{path}: not kept by an earlier run ({fault}); remove it to begin anew") from None
        if began == _NEVER:  # of an earlier release: whatever it says, everything is read again
            return {}, self.began
        if not hmac.compare_digest(mac, self._mac(trees, began)):
            raise ResumeError(f"{path}: altered, or kept under another root key; remove it to begin anew")
        return found, since

    def _mac(self, trees: Mapping[str, Any], began: str) -> bytes:
        data = json.dumps([trees, began], sort_keys=True).encode()
        return hmac.digest(self._key, b"warden verify progress\0" + data, hashlib.sha256)

    def tree(self, log: str) -> Frontier:
        return self._trees.get(log, Frontier())

    def reached(self, log: str, tree: Frontier) -> None:
        if self._path is not None and tree.size > self.tree(log).size:
            self._trees[log] = tree
            trees = {name: (each.size, each.pack().hex()) for name, each in self._trees.items()}
            began = self.began.isoformat()
            told = {"trees": trees, "began": began, "mac": self._mac(trees, began).hex()}
            write_whole(self._path, json.dumps(told).encode(), durable=False)

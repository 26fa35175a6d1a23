"""How far `verify` came, in a file that only who has the root key can write: what is in it is not looked at again."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audit.merkle import Frontier
from audit.spool import write_whole

__all__ = ["Progress", "ResumeError"]


class ResumeError(ValueError):
    """What was kept of an earlier run is not what such a run keeps, or was kept under another key."""


class Progress:
    """How far each log was found sound before; a log with a fault is looked at again from there."""

    def __init__(self, path: Path | None, key: bytes) -> None:
        self._path, self._key, self._trees = path, key, dict[str, Frontier]()
        if path is not None and path.exists():
            self._trees = self._read(path)

    def _read(self, path: Path) -> dict[str, Frontier]:
        try:
            told = json.loads(path.read_bytes())
            trees, mac = told["trees"], bytes.fromhex(told["mac"])
            found = {log: Frontier.unpack(size, bytes.fromhex(hashes)) for log, (size, hashes) in trees.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise ResumeError(f"{path}: not kept by an earlier run ({fault}); remove it to begin anew") from None
        if not hmac.compare_digest(mac, self._mac(trees)):
            raise ResumeError(f"{path}: altered, or kept under another root key; remove it to begin anew")
        return found

    def _mac(self, trees: Mapping[str, Any]) -> bytes:
        data = json.dumps(trees, sort_keys=True).encode()
        return hmac.digest(self._key, b"warden verify progress\0" + data, hashlib.sha256)

    def tree(self, log: str) -> Frontier:
        return self._trees.get(log, Frontier())

    def reached(self, log: str, tree: Frontier) -> None:
        if self._path is not None and tree.size > self.tree(log).size:
            self._trees[log] = tree
            trees = {name: (each.size, each.pack().hex()) for name, each in self._trees.items()}
            write_whole(self._path, json.dumps({"trees": trees, "mac": self._mac(trees).hex()}).encode(), durable=False)

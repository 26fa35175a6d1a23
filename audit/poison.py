"""Keeps what the database would not take, sealed, in files beside the journal: not lost, and in nobody's way."""

from __future__ import annotations

import base64
import json
import re
from datetime import date
from pathlib import Path
from typing import Final

from audit.content import ContentSealer
from audit.spool import write_whole

__all__ = ["PoisonKeeper"]

_DAY: Final = date(1970, 1, 1)  # these files have no tenant and no day of their own
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class PoisonKeeper:
    """One file a record, named by its place in the journal, so that keeping it twice changes nothing."""

    def __init__(self, directory: Path, sealer: ContentSealer) -> None:
        self.directory = directory
        self._sealer = sealer

    def keep(self, journal: str, sequence: int, payload: bytes, error: str) -> Path:
        """``payload`` is whatever there is of the record; durable when this returns."""
        path = self.directory / f"{_UNSAFE.sub('_', journal)}-{sequence:020d}.json"
        sealed = self._sealer.seal([payload], tenant="", day=_DAY, call_id=f"{journal}:{sequence}", column="poison")
        told = {"journal": journal, "sequence": sequence, "error": error[:500]}
        write_whole(path, json.dumps({**told, "sealed": base64.b64encode(sealed).decode()}).encode())
        return path

    def open(self, path: Path) -> bytes:
        """The payload of a kept file. Raises ``ContentError``."""
        told = json.loads(path.read_bytes())
        sealed, place = base64.b64decode(told["sealed"]), f"{told['journal']}:{told['sequence']}"
        return self._sealer.open(sealed, tenant="", day=_DAY, call_id=place, column="poison")[0]

"""The tensors' bytes of an export: each in a file named by its SHA-256, held to what its record commits to."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from audit.content import ContentError
from audit.evidence import Fault, FaultKind
from audit.object_check import ObjectState, opened, state_of
from audit.objects import ObjectStore
from audit.payload import refs_of
from audit.spool import write_whole
from audit.vault import commitment, open_column

__all__ = ["DIRECTORY", "TensorFiles", "check_tensors"]

DIRECTORY: Final = "tensors"  # of the export's
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST, _KEPT = 5, 6  # of a tensor in ``payloads`` (audit.payload)


@dataclass(slots=True)
class TensorFiles:
    """Writes them while records go by, one object in memory at a time; ``lost``: sides that were not to be had."""

    directory: Path
    store: ObjectStore
    now: datetime
    files: int = 0
    lost: int = 0

    def of(self, row: Mapping[str, Any], key: bytes) -> dict[str, Any]:
        """What a record's line says of them: which file each is, and why a side has none.

        Raises OSError where the store can't say, or the directory takes no more.
        """
        kept: list[dict[str, Any]] = []
        lost: dict[str, str] = {}
        try:
            refs = refs_of(row["payloads"])
        except ValueError as fault:
            self.lost += 1
            return {"lost": {"payloads": str(fault)}}
        for ref in refs:
            data = self.store.get(ref.name)
            state = state_of(data, ref, row["shipped_at"], self.now)
            if data is None or state is not ObjectState.THERE:
                lost[ref.side] = str(state)
                continue
            try:
                bodies = opened(data, ref, row["payloads"], key)
            except ContentError as fault:
                lost[ref.side] = f"{ObjectState.ALTERED}: {fault}"
                continue
            kept += [
                {"side": ref.side, "n": n, "sha256": self._written(body)}
                for n, body in enumerate(bodies)
                if body is not None
            ]
        self.lost += len(lost)
        told = {"kept": kept, "lost": lost}
        return {name: value for name, value in told.items() if value}

    def _written(self, body: bytes) -> str:
        digest = hashlib.sha256(body).hexdigest()
        path = _file(self.directory, digest)
        if not path.exists():  # the same input of many calls is one file
            write_whole(path, body)
            self.files += 1
        return digest


def check_tensors(directory: Path, line: Mapping[str, Any], leaf: Mapping[str, Any]) -> Iterator[Fault]:
    """``line`` is a revealed record of an export with tensors: each kept one is there, and is what it commits to.

    Raises KeyError and ValueError for what no export wrote.
    """
    told, payloads = line.get("tensors", {}), json.loads(leaf["payloads"])
    named = {(each["side"], each["n"]): each["sha256"] for each in told.get("kept", ())}
    wanted = {
        (side, n)
        for side, part in payloads.items()
        if part.get("object") is not None and side not in told.get("lost", {})
        for n, tensor in enumerate(part["tensors"])
        if tensor[_KEPT]
    }
    for side, n in sorted(wanted - named.keys()):
        yield _fault(FaultKind.OBJECT_MISSING, line, f"tensor {n} of its {side} is not in the export")
    for side, n in sorted(named.keys() - wanted):
        yield _fault(FaultKind.OBJECT_SWAPPED, line, f"tensor {n} of its {side} is none that the record kept")
    try:
        sealed = base64.b64decode(line["sealed"]["payloads_sealed"])
        salt = open_column(bytes.fromhex(line["record_key"]), "payloads", sealed)
    except (ContentError, KeyError, ValueError) as fault:
        yield _fault(
            FaultKind.ALTERED_COLUMN, line, f"what its tensors' digests are salted with does not open: {fault}"
        )
        return
    for side, n in sorted(wanted & named.keys()):
        words = _amiss(directory, named[side, n], salt, payloads[side]["tensors"][n])
        if words is not None:
            yield _fault(words[0], line, f"tensor {n} of its {side} {words[1]}")


def _amiss(directory: Path, digest: str, salt: bytes, tensor: list[Any]) -> tuple[FaultKind, str] | None:
    if _SHA256.fullmatch(digest) is None:
        return FaultKind.OBJECT_ALTERED, "is named by no digest"
    if commitment(salt, bytes.fromhex(digest)).hex() != tensor[_DIGEST]:
        return FaultKind.OBJECT_ALTERED, "is not the one that the record commits to"
    try:
        with _file(directory, digest).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return FaultKind.OBJECT_MISSING, "is not in the export"
    except OSError as fault:
        return FaultKind.OBJECT_ALTERED, f"cannot be read: {fault.strerror}"
    return None if found == digest else (FaultKind.OBJECT_ALTERED, "is not the file that was exported")


def _file(directory: Path, digest: str) -> Path:
    return directory / DIRECTORY / f"{digest}.bin"


def _fault(kind: FaultKind, line: Mapping[str, Any], words: str) -> Fault:
    return Fault(kind, line["log"], words, line["position"], line["record"]["call_id"])

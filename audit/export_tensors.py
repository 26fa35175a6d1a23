"""The tensors' bytes of an export: each in a file named by its SHA-256, held to what its record commits to."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from audit.content import ContentError
from audit.evidence import Fault, FaultKind
from audit.object_check import ObjectState, opened, state_of
from audit.objects import ObjectStore
from audit.payload import ObjectRef, refs_of
from audit.spool import write_whole
from audit.vault import commitment, open_column

__all__ = ["DIRECTORY", "Checked", "TensorFiles"]

DIRECTORY: Final = "tensors"  # of the export's
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST, _KEPT = 5, 6  # of a tensor in ``payloads`` (audit.payload)
_NO_STORE: Final = "not looked for: no audit.objects in this configuration"
_FAILURES: Final = 5  # in a row, until a store counts as away


@dataclass(slots=True)
class TensorFiles:
    """Writes them while records go by, one object in memory at a time; ``lost``: sides that were not to be had.

    A store that does not answer several times in a row is asked no more.
    """

    directory: Path
    store: ObjectStore | None
    now: datetime
    files: int = 0
    lost: int = 0
    _failed: int = 0  # in a row

    def of(self, row: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
        """What a record's line says of them: which file each is, and why a side has none.

        ``key``: the record's; None where it is not to be had. Raises OSError where the directory takes no more.
        """
        kept: list[dict[str, Any]] = []
        lost: dict[str, str] = {}
        try:
            refs = refs_of(row["payloads"])
        except ValueError as fault:
            self.lost += 1
            return {"lost": {"payloads": str(fault)}}
        for ref in refs:
            bodies = self._bodies(ref, row, key)
            if isinstance(bodies, str):
                lost[ref.side] = bodies
                continue
            kept += [
                {"side": ref.side, "n": n, "sha256": self._written(body)}
                for n, body in enumerate(bodies)
                if body is not None
            ]
        self.lost += len(lost)
        told = {"kept": kept, "lost": lost}
        return {name: value for name, value in told.items() if value}

    def _bodies(self, ref: ObjectRef, row: Mapping[str, Any], key: bytes | None) -> Sequence[bytes | None] | str:
        """The tensors of one side, or in words why there are none."""
        if key is None or self.store is None:
            return _NO_STORE if self.store is None else "unreadable: the record's key is not to be had"
        if self._failed >= _FAILURES:
            return "not known: the store did not answer before, and was asked no more"
        try:
            data = self.store.get(ref.name)
        except OSError as fault:
            self._failed += 1
            return f"not known: {fault}"
        self._failed = 0
        state = state_of(data, ref, row["shipped_at"], self.now)
        if data is None or state is not ObjectState.THERE:
            return str(state)
        try:
            return opened(data, ref, row["payloads"], key)
        except ContentError as fault:
            return f"{ObjectState.ALTERED}: {fault}"

    def _written(self, body: bytes) -> str:
        digest = hashlib.sha256(body).hexdigest()
        path = _file(self.directory, digest)
        if not path.exists():  # the same input of many calls is one file
            write_whole(path, body)
            self.files += 1
        return digest


class _Kept(msgspec.Struct, frozen=True):
    """One that a record's line names."""

    side: str
    n: int
    sha256: str


class _Told(msgspec.Struct, frozen=True):
    """What a record's line says of its tensors."""

    kept: tuple[_Kept, ...] = ()
    lost: dict[str, str] = {}


class Checked:
    """The tensors of an export, record by record: each kept one is there, and is what its record commits to.

    ``lost``: sides that were not to be had when it was written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._named: set[str] = set()
        self.lost = 0

    def of(self, line: Mapping[str, Any], leaf: Mapping[str, Any]) -> Iterator[Fault]:
        """``line`` is a record of an export with tensors, ``leaf`` what it commits to."""
        try:
            told = msgspec.convert(line.get("tensors", {}), _Told)
            payloads = json.loads(leaf.get("payloads") or "{}")
            self.lost += len(told.lost)
            self._named |= {each.sha256 for each in told.kept}
            yield from _check(self._directory, line, told, payloads)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as fault:
            yield _fault(FaultKind.ALTERED_COLUMN, line, f"what it says of its tensors is no export's: {fault}")

    def others(self) -> Iterator[Fault]:
        """Files that no record names."""
        place = self._directory / DIRECTORY
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.suffix != ".bin" or path.stem not in self._named:
                yield Fault(FaultKind.INSERTION, "export", f"{DIRECTORY}/{path.name} is a file that no record names")


def _check(directory: Path, line: Mapping[str, Any], told: _Told, payloads: Mapping[str, Any]) -> Iterator[Fault]:
    if "record_key" not in line:
        return  # of a key that nobody had
    named = {(each.side, each.n): each.sha256 for each in told.kept}
    wanted = {
        (side, n)
        for side, part in payloads.items()
        if part.get("object") is not None and side not in told.lost
        for n, tensor in enumerate(part["tensors"])
        if tensor[_KEPT]
    }
    for side, n in sorted(wanted - named.keys()):
        yield _fault(FaultKind.OBJECT_MISSING, line, f"tensor {n} of its {side} is not in the export")
    for side, n in sorted(named.keys() - wanted):
        yield _fault(FaultKind.OBJECT_SWAPPED, line, f"tensor {n} of its {side} is none that the record kept")
    if not payloads:
        return  # nothing is said of tensors
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

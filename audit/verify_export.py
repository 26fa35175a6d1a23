"""Checks an export offline: files against the signed manifest, records against leaves, leaves against heads."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from audit.content import ContentError
from audit.evidence import Fault, FaultKind, Head, read_head
from audit.export import FILES, FORMAT, hash_of, leaf_pairs, manifest_text
from audit.export_tensors import Checked
from audit.fleet import FLEET
from audit.merkle import verify_inclusion
from audit.report import Report
from audit.tlog import NoteError, Verifier, parse_note
from audit.vault import commitment, open_content

__all__ = ["verify_export"]

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
# What of a record's shape is a column of its leaf under the same name, where neither is empty.
_SAME: Final = (
    "call_id", "tenant", "key_id", "method", "model", "data_class", "rule", "outcome", "reason", "status",
    "input_tokens", "output_tokens", "region", "jurisdiction", "bundle", "trace_id", "sidecar", "position",
    "prompt_bytes", "output_bytes",
)  # fmt: skip


def verify_export(directory: Path, verifier: Callable[[str], Verifier]) -> Report:
    """Raises OSError where a file is missing, ValueError where one is no export's."""
    report = Report()
    manifest = _manifest(directory, verifier, report)
    if manifest["format"] != FORMAT:
        raise ValueError(f"{manifest['format']!r} is not the form of an export that is known here ({FORMAT})")
    proofs = _Proofs(_lines(directory / "proofs.ndjson"))
    heads: dict[str, Head] = {}
    for line in _lines(directory / "checkpoints.ndjson"):
        found = read_head(line["log"], line["size"], line["note"], verifier(line["log"]))
        if isinstance(found, Fault):
            report.faults.append(found)
        else:
            heads[line["log"]] = found
            report.checkpoints += 1
    seen, tensors = _Seen(), Checked(directory)
    for line in _lines(directory / "records.ndjson"):
        place = (line["log"], line["position"])
        if not seen.add(*place):
            report.faults.append(_fault(FaultKind.INSERTION, line, "it is there twice"))
        report.records += 1
        report.faults += _check(line, proofs.of(*place), heads.get(line["log"]), report)
        if manifest.get("tensors"):
            report.faults += tensors.of(line, leaf_pairs(base64.b64decode(line["leaf"])))
    report.faults += tensors.others()
    report.tensors_lost = tensors.lost
    _count(manifest, report)
    return report


class _Proofs:
    """The proofs' lines beside the records', which are in the same order: a few ahead, however many there are."""

    AHEAD: Final = 1000

    def __init__(self, lines: Iterator[dict[str, Any]]) -> None:
        self._lines = lines
        self._ahead: dict[tuple[str, int], list[str]] = {}

    def of(self, log: str, position: int) -> list[str] | None:
        """The path of that record; None where none stands near."""
        if (log, position) not in self._ahead:
            for line in islice(self._lines, self.AHEAD):
                self._ahead[line["log"], line["position"]] = line["path"]
            for stale in list(self._ahead)[: -2 * self.AHEAD]:  # of records that are gone
                del self._ahead[stale]
        return self._ahead.pop((log, position), None)


class _Seen:
    """Which positions of which logs were there: a bit each."""

    def __init__(self) -> None:
        self._bits: dict[tuple[str, int], bytearray] = {}

    def add(self, log: str, position: int) -> bool:
        """Whether it was not there before."""
        bits = self._bits.setdefault((log, position >> 13), bytearray(1024))
        place, bit = position >> 3 & 1023, 1 << (position & 7)
        new = not bits[place] & bit
        bits[place] |= bit
        return new


def _manifest(directory: Path, verifier: Callable[[str], Verifier], report: Report) -> Mapping[str, Any]:
    data = (directory / "manifest.json").read_bytes()
    manifest: dict[str, Any] = json.loads(data)
    try:
        note = parse_note((directory / "manifest.note").read_text(encoding="utf-8"))
    except NoteError as fault:
        raise ValueError(f"manifest.note is no signed note: {fault}") from fault
    signed = note.text == manifest_text(manifest["jurisdiction"], data) and verifier(FLEET).accepts(note)
    if not signed:
        report.faults.append(
            Fault(FaultKind.REPLACED_CHECKPOINT, "export", "the manifest is not signed by this jurisdiction's key")
        )
    for name in FILES:
        with (directory / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest["files"].get(name):
                report.faults.append(Fault(FaultKind.EDIT, "export", f"{name} is not the file that was exported"))
    return manifest


def _check(line: Mapping[str, Any], path: list[str] | None, head: Head | None, report: Report) -> Iterator[Fault]:
    leaf = base64.b64decode(line["leaf"])
    if path is None or head is None:
        report.unsigned += 1
    else:
        steps = [base64.b64decode(step) for step in path]
        if not verify_inclusion(hash_of(leaf), line["position"], head.size, steps, head.root):
            yield _fault(FaultKind.EDIT, line, "its leaf is not in the signed tree")
    pairs, shape = leaf_pairs(leaf), line["record"]
    if pairs.get("log") != line["log"] or pairs.get("position", 0) != line["position"]:
        yield _fault(FaultKind.REORDER, line, "its leaf is of another place")
    differing = [name for name in _SAME if (pairs.get(name) or None) != (shape[name] or None)]
    started = datetime.fromisoformat(shape["started_at"])
    if (started - _EPOCH) // timedelta(microseconds=1) != pairs["started_at"]:
        differing.append("started_at")
    differing += [
        name
        for name in ("prompt_digest", "output_digest")
        if (pairs[name].hex() if pairs.get(name) else None) != shape[name]
    ]
    if differing:
        yield _fault(FaultKind.ALTERED_COLUMN, line, f"not what its leaf covers: {', '.join(differing)}")
    yield from _check_content(line, pairs, shape)


def _check_content(line: Mapping[str, Any], pairs: Mapping[str, Any], shape: Mapping[str, Any]) -> Iterator[Fault]:
    """What was revealed is what was sealed, and what was sealed is what was committed to."""
    key = bytes.fromhex(line.get("record_key", ""))
    sealed = {name: base64.b64decode(data) for name, data in line.get("sealed", {}).items()}
    for name, data in sealed.items():
        if hashlib.sha256(data).digest() != pairs.get(name):
            yield _fault(FaultKind.ALTERED_COLUMN, line, f"{name} is not what its leaf covers")
    for name, joint in (("prompt", b"\n"), ("output", b"")):
        if f"{name}_sealed" not in sealed:
            continue
        try:
            salt, parts = open_content(key, name, sealed[f"{name}_sealed"])
        except ContentError as fault:
            yield _fault(FaultKind.ALTERED_COLUMN, line, f"the {name} does not open: {fault}")
            continue
        if parts is not None and joint.join(parts).decode("utf-8", "replace") != shape[name]:
            yield _fault(FaultKind.ALTERED_COLUMN, line, f"the {name} shown is not the one that was sealed")
        whole = b"".join(parts or ())
        committed = commitment(salt, hashlib.sha256(whole).digest()) == pairs.get(f"{name}_digest")
        if parts is not None and not shape[f"{name}_truncated"] and not committed:
            yield _fault(FaultKind.ALTERED_COLUMN, line, f"the {name} is not the one that was committed to")


def _count(manifest: Mapping[str, Any], report: Report) -> None:
    if report.records != manifest["records"]:
        kind = FaultKind.DELETION if report.records < manifest["records"] else FaultKind.INSERTION
        words = f"{manifest['records']} records were exported, {report.records} are there"
        report.faults.append(Fault(kind, "export", words))


def _fault(kind: FaultKind, line: Mapping[str, Any], words: str) -> Fault:
    return Fault(kind, line["log"], words, line["position"], line["record"]["call_id"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)

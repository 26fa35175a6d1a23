"""Takes records out so that they stand up elsewhere: each with its leaf and proof, signed heads, a signed manifest."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from audit import search, store
from audit.evidence import Fault, read_head
from audit.leaf import leaf_data
from audit.merkle import Tree, leaf_hash
from audit.opening import Opener
from audit.rows import CALL_COLUMNS, officer_row
from audit.search import Asker, Filter, Keyset
from audit.spool import write_whole
from audit.tables import audit_checkpoints, audit_leaves
from audit.tlog import Signer, Verifier

__all__ = ["FILES", "Exported", "Trust", "export", "manifest_text"]

LIMIT: Final = 1_000_000  # records of one export
PAGE: Final = 1000
FILES: Final = ("records.ndjson", "records.csv", "proofs.ndjson", "checkpoints.ndjson")
_SEALED: Final = ("identity_sealed", "prompt_sealed", "output_sealed", "error_sealed", "evidence_sealed")


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count, and who signs the manifest (the fleet's log's key)."""

    verifier: Callable[[str], Verifier]
    signer: Signer


@dataclass(frozen=True, slots=True)
class Exported:
    """``unproven``: records newer than the last signed head."""

    directory: Path
    records: int
    unproven: int


def export(
    engine: sa.Engine, asked: Filter, asker: Asker, opener: Opener, jurisdiction: str, directory: Path, trust: Trust
) -> Exported:
    """Write what ``asked`` finds into ``directory``, which must be empty or new; recorded before anything is written.

    Raises SearchError, store.MismatchError, OSError, KeyFaultError and SQLAlchemy's errors.
    """
    if directory.exists() and any(directory.iterdir()):
        raise search.SearchError(f"{directory} is not empty: an export begins in a directory of its own")
    if asker.reveal and not asker.reason.strip():
        raise search.SearchError("content is revealed only with a reason")
    with store.transaction(engine, statement_ms=600_000, frozen=True, deadline_s=7200.0) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        told = {"filter": asked.told(opener), "reveal": asker.reveal}
        event = officer_row(next(asker.event_ids), asker.at, "audit_export", asker.actor, asker.reason, told)
        store.record_event(connection, event)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _Export(connection, asked, asker, opener, directory, trust).run(jurisdiction)


def manifest_text(jurisdiction: str, manifest: bytes) -> str:
    """What is signed for a manifest."""
    return f"warden/{jurisdiction}/export\n{hashlib.sha256(manifest).hexdigest()}\n"


class _Export:
    def __init__(
        self, connection: sa.Connection, asked: Filter, asker: Asker, opener: Opener, directory: Path, trust: Trust
    ) -> None:
        self._connection, self._asked, self._asker = connection, asked, asker
        self._opener, self._directory, self._trust = opener, directory, trust
        self._places: dict[str, list[int]] = {}

    def run(self, jurisdiction: str) -> Exported:
        records, unproven = self._records(), 0
        heads: dict[str, dict[str, Any]] = {}
        with (self._directory / "proofs.ndjson").open("wb") as file:
            for log, positions in sorted(self._places.items()):
                head, lines = self._proofs(log, positions)
                unproven += len(positions) - len(lines)
                if head is not None:
                    heads[log] = head
                file.writelines(_line(line) for line in lines)
        checkpoints = b"".join(_line({"log": log, **head}) for log, head in sorted(heads.items()))
        write_whole(self._directory / "checkpoints.ndjson", checkpoints)
        manifest = {
            "format": "warden/export/v1",
            "jurisdiction": jurisdiction,
            "made_at": self._asker.at.isoformat(),
            "made_by": self._asker.actor,
            "reason": self._asker.reason,
            "query": self._asked.told(None),
            "revealed": self._asker.reveal,
            "records": records,
            "unproven": unproven,
            "logs": {log: {"first": min(at), "last": max(at), "records": len(at)} for log, at in self._places.items()},
            "keys": [self._trust.verifier(log).text for log in sorted(self._places)],
            "signer": self._trust.signer.verifier.text,
            "files": {name: _digest(self._directory / name) for name in FILES},
        }
        data = json.dumps(manifest, indent=2, ensure_ascii=False).encode()
        write_whole(self._directory / "manifest.json", data)
        write_whole(
            self._directory / "manifest.note", self._trust.signer.sign(manifest_text(jurisdiction, data)).encode()
        )
        return Exported(self._directory, records, unproven)

    def _records(self) -> int:
        count = 0
        with (
            (self._directory / "records.ndjson").open("wb") as lines,
            (self._directory / "records.csv").open("w", encoding="utf-8", newline="") as table,
        ):
            writer: csv.DictWriter[str] | None = None
            for row in self._rows():
                found = search.found(row, self._opener, reveal=self._asker.reveal)
                shape = found.shape()
                lines.write(_line({"record": shape, **self._evidence(row)}))
                if writer is None:
                    writer = csv.DictWriter(table, list(shape))
                    writer.writeheader()
                writer.writerow({name: _cell(value) for name, value in shape.items()})
                self._places.setdefault(row["log"], []).append(row["position"])
                count += 1
                if count > LIMIT:
                    raise search.SearchError(f"more than {LIMIT} records: narrow what is asked for")
        return count

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        asked, before = self._asked, self._asked.before
        while True:
            query = search.select(self._connection, search.replaced(asked, limit=PAGE, before=before), self._opener)
            rows = [dict(row) for row in self._connection.execute(query).mappings()]
            self._opener.load(self._connection, [row["data_key"] for row in rows])
            yield from rows
            if len(rows) < PAGE:
                return
            before = Keyset(rows[-1]["started_at"], rows[-1]["call_id"])

    def _evidence(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The leaf, and with content what opens this record and no other."""
        leaf = leaf_data("call", ((name, row[name]) for name in CALL_COLUMNS))
        told: dict[str, Any] = {"log": row["log"], "position": row["position"], "leaf": _b64(leaf)}
        key = self._opener.record_key(row) if self._asker.reveal else None
        if key is not None:
            sealed = {name: _b64(bytes(row[name])) for name in _SEALED if row[name] is not None}
            told |= {"record_key": key.hex(), "sealed": sealed}
        return told

    def _proofs(self, log: str, positions: list[int]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """The newest head that is right, and a proof under it for each record that it covers."""
        c, v = audit_checkpoints.c, self._trust.verifier(log)
        heads = sa.select(c.size, c.note).where(c.log == log).order_by(c.size.desc()).limit(10)
        leaves = audit_leaves.c
        joined = b"".join(
            bytes(hashes)
            for hashes in self._connection.scalars(
                sa.select(leaves.hashes).where(leaves.log == log).order_by(leaves.first)
            )
        )
        tree = Tree([joined[at : at + 32] for at in range(0, len(joined), 32)])
        for size, note in self._connection.execute(heads):
            head = read_head(log, size, note, v)
            if not isinstance(head, Fault) and size <= tree.size and tree.root(size) == head.root:
                covered = [position for position in positions if position < size]
                proofs = [
                    {"log": log, "position": at, "path": [_b64(step) for step in tree.inclusion(at, size)]}
                    for at in covered
                ]
                return {"size": size, "note": note}, proofs
        return None, []


def leaf_pairs(leaf: bytes) -> dict[str, Any]:
    """The columns that a leaf covers. Raises ValueError."""
    head, _, rest = leaf.partition(b"\x00")
    if head != b"warden/call/v1":
        raise ValueError("not the leaf of a call")
    try:
        return dict(msgspec.msgpack.decode(rest))
    except (msgspec.DecodeError, TypeError) as fault:
        raise ValueError(f"not a leaf: {fault}") from fault


def hash_of(leaf: bytes) -> bytes:
    """The leaf's hash."""
    return leaf_hash(leaf)


def _cell(value: Any) -> str:
    """A spreadsheet must not take a tenant's text for a formula."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} and isinstance(value, str) else text


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8", "surrogatepass") + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return bytes(value).hex()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

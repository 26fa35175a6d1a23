"""Takes records out so that they stand up elsewhere: each with its leaf and proof, signed heads, a signed manifest."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from audit import search, store
from audit.evidence import Fault, read_head
from audit.export_tensors import TensorFiles
from audit.merkle import HASH_BYTES, TILE, TiledTree, Tree, leaf_hash
from audit.objects import ObjectStore
from audit.opening import Opener
from audit.rows import CALL_COLUMNS, CALL_LEAF, officer_row
from audit.search import Asker, Filter, Keyset
from audit.spool import write_whole
from audit.tables import audit_checkpoints, audit_leaves
from audit.tlog import Signer, Verifier

__all__ = ["FILES", "Exported", "Trust", "export", "manifest_text"]

FORMAT: Final = "warden/export/v2"  # v1 had its proofs by log and position, not in the records' order
LIMIT: Final = 1_000_000  # records of one export
PAGE: Final = 1000
DEADLINE_S: Final = 86_400.0  # of one export
FILES: Final = ("records.ndjson", "records.csv", "proofs.ndjson", "checkpoints.ndjson")
_SEALED: Final = (
    "identity_sealed", "prompt_sealed", "output_sealed", "error_sealed", "evidence_sealed", "payloads_sealed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count, and who signs the manifest (the fleet's log's key)."""

    verifier: Callable[[str], Verifier]
    signer: Signer


@dataclass(frozen=True, slots=True)
class Exported:
    """``unproven``: records newer than the last signed head; ``tensors``: files of them.

    ``lost``: how many calls' inputs or outputs had tensors kept that could not be had.
    """

    directory: Path
    records: int
    unproven: int
    tensors: int = 0
    lost: int = 0


def export(
    engine: sa.Engine, asked: Filter, asker: Asker, opener: Opener, jurisdiction: str, directory: Path, trust: Trust,
    objects: ObjectStore | None = None, *, tensors: bool = False,
) -> Exported:  # fmt: skip
    """Write what ``asked`` finds into ``directory``, which must be empty or new; recorded before anything is written,
    and whatever comes of it.

    ``tensors``: with their bytes, from ``objects``, where content is revealed. What is not to be had is told as lost.

    Raises SearchError, store.MismatchError, OSError of the directory, KeyFaultError and SQLAlchemy's errors.
    """
    if directory.exists() and any(directory.iterdir()):
        raise search.SearchError(f"{directory} is not empty: an export begins in a directory of its own")
    if asker.reveal and not asker.reason.strip():
        raise search.SearchError("content is revealed only with a reason")
    files = TensorFiles(directory, objects, asker.at) if asker.reveal and tensors else None
    with store.transaction(engine) as connection:
        store.check_jurisdiction(connection, jurisdiction)
        told = {"filter": _query(asked, opener), "reveal": asker.reveal, "tensors": files is not None}
        event = officer_row(next(asker.event_ids), asker.at, "audit_export", asker.actor, asker.reason, told)
        store.record_event(connection, event)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with store.transaction(engine, statement_ms=600_000, frozen=True, deadline_s=DEADLINE_S) as connection:
        return _Export(connection, asked, asker, opener, directory, trust, files).run(jurisdiction)


def manifest_text(jurisdiction: str, manifest: bytes) -> str:
    """What is signed for a manifest."""
    return f"warden/{jurisdiction}/export\n{hashlib.sha256(manifest).hexdigest()}\n"


def _query(asked: Filter, opener: Opener | None) -> dict[str, Any]:
    """What is told of it: all but ``limit``, which is a page's. An export holds everything that was asked for."""
    return {name: value for name, value in asked.told(opener).items() if name != "limit"}


class _Export:
    def __init__(
        self, connection: sa.Connection, asked: Filter, asker: Asker, opener: Opener, directory: Path, trust: Trust,
        files: TensorFiles | None,
    ) -> None:  # fmt: skip
        self._connection, self._asked, self._asker = connection, asked, asker
        self._opener, self._directory, self._trust, self._tensors = opener, directory, trust, files
        self._logs: list[str] = []
        self._which, self._positions = array("i"), array("q")  # of each record: its log in that list, its place

    def run(self, jurisdiction: str) -> Exported:
        records = self._records()
        heads, unproven = self._proofs()
        checkpoints = b"".join(_line({"log": log, **head}) for log, head in sorted(heads.items()))
        write_whole(self._directory / "checkpoints.ndjson", checkpoints)
        files = self._tensors
        counted = (0, 0) if files is None else (files.files, files.lost)
        manifest = {
            "format": FORMAT,
            "jurisdiction": jurisdiction,
            "made_at": self._asker.at.isoformat(),
            "made_by": self._asker.actor,
            "reason": self._asker.reason,
            "query": _query(self._asked, None),
            "revealed": self._asker.reveal,
            "tensors": files is not None,
            "tensor_files": counted[0],
            "tensors_lost": counted[1],
            "records": records,
            "unproven": unproven,
            "logs": self._extents(),
            "keys": [self._trust.verifier(log).text for log in sorted(self._logs)],
            "signer": self._trust.signer.verifier.text,
            "files": {name: _digest(self._directory / name) for name in FILES},
        }
        data = json.dumps(manifest, indent=2, ensure_ascii=False).encode()
        write_whole(self._directory / "manifest.json", data)
        write_whole(
            self._directory / "manifest.note", self._trust.signer.sign(manifest_text(jurisdiction, data)).encode()
        )
        return Exported(self._directory, records, unproven, *counted)

    def _extents(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for which, position in zip(self._which, self._positions, strict=True):
            one = found.setdefault(self._logs[which], {"first": position, "last": position, "records": 0})
            one["first"], one["last"] = min(one["first"], position), max(one["last"], position)
            one["records"] += 1
        return found

    def _records(self) -> int:
        count = 0
        known: dict[str, int] = {}
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
                if row["log"] not in known:
                    known[row["log"]] = len(self._logs)
                    self._logs.append(row["log"])
                self._which.append(known[row["log"]])
                self._positions.append(row["position"])
                count += 1
                if count > LIMIT:
                    raise search.SearchError(f"more than {LIMIT} records: narrow what is asked for")
        return count

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        asked, before = self._asked, self._asked.before
        page = PAGE if self._tensors is None else PAGE // 20  # the server ends who does nothing in between for minutes
        while True:
            rows = search.rows(self._connection, search.replaced(asked, limit=page, before=before), self._opener)
            self._opener.load(self._connection, [row["data_key"] for row in rows])
            yield from rows
            if len(rows) < page:
                return
            before = Keyset(rows[-1]["started_at"], rows[-1]["call_id"])

    def _evidence(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The leaf, and with content what opens this record and no other."""
        leaf = CALL_LEAF.data([row[name] for name in CALL_COLUMNS])
        told: dict[str, Any] = {"log": row["log"], "position": row["position"], "leaf": _b64(leaf)}
        key = self._opener.record_key(row) if self._asker.reveal else None
        if key is not None:
            sealed = {name: _b64(bytes(row[name])) for name in _SEALED if row[name] is not None}
            told |= {"record_key": key.hex(), "sealed": sealed}
        if self._tensors is not None and row["payloads"] and not self._opener.secret(row["data_key"]).destroyed:
            told["tensors"] = self._tensors.of(row, key)
        return told

    # --- proofs ---------------------------------------------------------------------------------------------------

    def _proofs(self) -> tuple[dict[str, dict[str, Any]], int]:
        """A line for each record that a signed head covers, in their order; the heads, and how many have none."""
        trees = {log: self._signed_tree(log) for log in self._logs}
        unproven = 0
        with (self._directory / "proofs.ndjson").open("wb") as file:
            for which, position in zip(self._which, self._positions, strict=True):
                log = self._logs[which]
                head, tree = trees[log]
                if head is None or position >= head["size"]:
                    unproven += 1
                    continue
                path = [_b64(step) for step in tree.inclusion(position, head["size"])]
                file.write(_line({"log": log, "position": position, "path": path}))
        return {log: head for log, (head, _) in trees.items() if head is not None}, unproven

    def _signed_tree(self, log: str) -> tuple[dict[str, Any] | None, Tree]:
        """The newest head that is right, and the tree that it is of."""
        tree = stored_tree(self._connection, log)
        c, v = audit_checkpoints.c, self._trust.verifier(log)
        heads = sa.select(c.size, c.note).where(c.log == log).order_by(c.size.desc()).limit(10)
        for size, note in self._connection.execute(heads):
            head = read_head(log, size, note, v)
            if not isinstance(head, Fault) and size <= tree.size and tree.root(size) == head.root:
                return {"size": size, "note": note}, tree
        return None, tree


def stored_tree(connection: sa.Connection, log: str) -> TiledTree:
    """A log's tree from its stored leaves; all but a few tiles of them stay in the database."""
    c = audit_leaves.c
    query = sa.select(c.hashes).where(c.log == log).order_by(c.first)
    roots: list[bytes] = []
    waiting = bytearray()
    size = 0
    with connection.execute(query.execution_options(stream_results=True)) as streamed:
        for hashes in streamed.scalars():
            waiting += hashes
            while len(waiting) >= TILE * HASH_BYTES:
                roots.append(Tree(_hashes(waiting[: TILE * HASH_BYTES])).root())
                del waiting[: TILE * HASH_BYTES]
                size += TILE

    def read(number: int) -> list[bytes]:
        first, end = number * TILE, (number + 1) * TILE
        begins = sa.select(sa.func.max(c.first)).where(c.log == log, c.first <= first).scalar_subquery()
        runs = sa.select(c.first, c.hashes).where(c.log == log, c.first >= begins, c.first < end).order_by(c.first)
        rows = connection.execute(runs).all()
        joined = b"".join(bytes(row.hashes) for row in rows)
        from_first = (first - rows[0].first) * HASH_BYTES
        return _hashes(joined[from_first : from_first + TILE * HASH_BYTES])

    return TiledTree(size + len(waiting) // HASH_BYTES, roots, read)


def _hashes(joined: bytes | bytearray) -> list[bytes]:
    return [bytes(joined[at : at + HASH_BYTES]) for at in range(0, len(joined), HASH_BYTES)]


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

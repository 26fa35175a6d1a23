"""The fleet's log: one more Merkle log a jurisdiction, of sidecar logs' births, heads and closes, and officers' acts.

A log a sidecar cannot prove that no whole log is missing; this one does. Whichever shipper holds the advisory lock
writes it. Each shipper mirrors it on its own disk, signs only what extends its mirror, and gives back to a database
that was restored what that has lost. Its heads go where the database's administrators can't reach (``FileAnchor``,
``ObjectAnchor``, witnesses).
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit.anchor import ObjectAnchor
from audit.leaf import canonical_json, leaf_data
from audit.logbook import ForkError, log_signer, origin_of
from audit.merkle import Frontier, leaf_hash
from audit.objects import StoreAt
from audit.rows import EVENT_COLUMNS
from audit.storing import publish, tree_of
from audit.tables import audit_checkpoints, audit_events, audit_leaves, audit_logs, fleet_entries
from audit.tlog import Checkpoint
from audit.witness import Witness, Witnesses
from sidecar.core.model import Secret

__all__ = ["FLEET", "FileAnchor", "Fleet", "body_of", "event_body"]

FLEET: Final = "fleet"  # the log's name; no sidecar's is without a dot
HEAD_SECONDS: Final = 60.0  # a growing log's head is recorded this often
_NOTE_BYTES: Final = 64 * 1024  # more than two notes have
_AT_ONCE: Final = 4096  # entries of the mirror hashed together
OFFICERS: Final = 500  # of their acts taken up at once
_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('warden.fleet', 0))"


def body_of(kind: str, at: datetime, **facts: Any) -> str:
    """One entry, as it is stored and hashed."""
    return canonical_json({"kind": kind, "at": at.isoformat(), **facts})


def event_body(row: dict[str, Any]) -> str:
    """An officer's act, whole: what a restored database has lost is put back from it."""
    values = {name: _told(row[name]) for name in EVENT_COLUMNS}
    leaf = leaf_hash(leaf_data("event", ((name, row[name]) for name in EVENT_COLUMNS)))
    return canonical_json({"kind": "event", "id": row["id"], "leaf": leaf.hex(), "values": values})


def _told(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


class FileAnchor:
    """Heads appended to a file on a volume of its own, one note after another; the last is what counts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def last(self) -> str | None:
        """The newest note, from the file's end: it is looked at every few seconds. Raises OSError."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _NOTE_BYTES))
                notes = file.read().split(b"\0\n")
        except FileNotFoundError:
            return None
        return notes[-2].decode() if len(notes) > 1 else None

    def put(self, note: str) -> None:
        """Durable when this returns. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(note.encode() + b"\0\n")
            file.flush()
            os.fsync(file.fileno())


def read_notes(path: Path) -> list[str]:
    """The notes of an anchor's file; a torn last one is left out."""
    try:
        return [part.decode() for part in path.read_bytes().split(b"\0\n")[:-1]]
    except FileNotFoundError:
        return []


@dataclass(slots=True)
class _Known:
    size: int
    root: bytes
    at: float
    closed: bool


def head_due(told: float, at: float) -> bool:
    """Whether a growing log's head is to be told again, from when it last was (seconds since the epoch).

    It is, too, where that lies far in the future: a clock was set back, and until it had caught up nothing outside the
    log would vouch for what is added to it. A minute ahead may be another pod's clock.
    """
    return abs(at - told) >= HEAD_SECONDS


class Fleet:
    """One shipper's part in the fleet's log. Not for several threads at once."""

    def __init__(
        self, directory: Path, jurisdiction: str, root: Secret, anchor: FileAnchor | None = None,
        witnesses: Sequence[Witness] = (), objects: StoreAt | None = None,
    ) -> None:  # fmt: skip
        self._directory, self._anchor = directory, anchor
        self._signer = log_signer(root, origin_of(jurisdiction, FLEET))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._mirror = directory / "fleet.jsonl"
        self.witnesses = Witnesses(witnesses, self._mirror, time.monotonic) if witnesses else None
        self.objects: ObjectAnchor | None = None
        if objects is not None:
            state = directory / "anchored.json"
            self.objects = ObjectAnchor(objects, state, self._signer.verifier, time.monotonic)
        self._tree = Frontier()
        self._told: dict[str, int] = {}  # the largest head that was told to be anchored, by where
        self._heads: dict[str, _Known] = {}
        self._pending: tuple[Frontier, list[str]] | None = None
        self._load()

    @property
    def size(self) -> int:
        return self._tree.size

    @property
    def anchored(self) -> bool:
        """Whether there is a file or an object store that its heads are taken to."""
        return self._anchor is not None or self.objects is not None

    def turn(self, connection: sa.Connection, now: datetime, closing: Sequence[str] = ()) -> str | None:
        """Write what is new, if nobody else is writing; the new head's note, or None where nothing is.

        ``closing``: logs that end well now. Inside the caller's transaction; ``published`` is to be called after it.
        Raises ForkError where the database's fleet log is not the one that was seen before.
        """
        self._pending = None
        if not connection.execute(sa.text(_LOCK)).scalar_one():
            return None
        self._agree(connection, now)
        bodies = [*self._logs(connection, now, closing), *self._officers(connection)]
        tree = self._tree
        if bodies:
            bodies += self._anchored(now)
            self._store(connection, tree, bodies)
            tree = tree.extended(leaf_hash(body.encode()) for body in bodies)
        note = self._signed(tree)
        if self.witnesses is not None:
            for size, cosigned in self.witnesses.take().items():
                publish(connection, FLEET, size, cosigned, now)
            if tree.size and not bodies:  # what is not committed yet is shown to nobody
                self.witnesses.offer(note)
        if self.objects is not None and tree.size and not bodies:
            self.objects.offer(note)
        if bodies:
            self._pending = (tree, bodies)
            publish(connection, FLEET, tree.size, note, now)
        return note if bodies or self._behind(note) else None

    def published(self, note: str, *, last: bool = False) -> None:
        """The transaction of ``turn`` was committed: remember it, and take its head to where others keep it.

        ``last``: nothing will come after it from here. Raises OSError.
        """
        if self._pending is not None:
            self._take(*self._pending)
            self._pending = None
        if self.objects is not None:
            self.objects.offer(note, last=last)
        if self._anchor is not None and self._anchor.last() != note:
            self._anchor.put(note)

    def _behind(self, note: str) -> bool:
        """Also where the anchor can't be read: ``published`` tells it, and what is new is written all the same."""
        try:
            return self._anchor is not None and self._tree.size > 0 and self._anchor.last() != note
        except OSError:
            return True

    # --- agreeing with the database -------------------------------------------------------------------------------

    def _agree(self, connection: sa.Connection, now: datetime) -> None:
        """Read on where others have written; write again what a restored database lost; refuse another history."""
        there = tree_of(connection, FLEET)
        if there.size < self._tree.size:
            every = self._mirrored()
            known = Frontier().extended(leaf_hash(body.encode()) for body in itertools.islice(every, there.size))
            lost = list(every)
            if known != there:
                raise ForkError(f"the first {there.size} entries of the fleet's log are not those seen before")
            self._store(connection, there, lost)
            connection.execute(sa.text("SELECT warden.restore_events(:since)"), {"since": there.size})
            publish(connection, FLEET, self._tree.size, self._signed(self._tree), now)
            return
        c = fleet_entries.c
        query = sa.select(c.body).where(c.position >= self._tree.size).order_by(c.position)
        new = list(connection.scalars(query))
        tree = self._tree.extended(leaf_hash(body.encode()) for body in new)
        if tree != there:
            raise ForkError(
                f"the fleet's log of {there.size} entries does not extend the {self._tree.size} seen before"
            )
        if new and self._signed(tree) not in self._heads_of(connection, tree.size):
            # Whoever may write the tables can add entries; only who has the root key can sign them.
            raise ForkError(f"nobody with the jurisdiction's key signed the fleet's log of {there.size} entries")
        self._take(tree, new)

    def _signed(self, tree: Frontier) -> str:
        """The one note of that tree: Ed25519 signs the same text the same."""
        return self._signer.sign(Checkpoint(self._signer.verifier.name, tree.size, tree.root).text)

    def _heads_of(self, connection: sa.Connection, size: int) -> list[str]:
        c = audit_checkpoints.c
        return list(connection.scalars(sa.select(c.note).where(c.log == FLEET, c.size == size)))

    # --- what is new ----------------------------------------------------------------------------------------------

    def _logs(self, connection: sa.Connection, now: datetime, closing: Sequence[str]) -> list[str]:
        bodies = []
        c = audit_logs.c
        for row in connection.execute(sa.select(c.log, c.sidecar, c.next_position, c.frontier).where(c.log != FLEET)):
            known = self._heads.get(row.log)
            if known is None:
                bodies.append(body_of("born", now, log=row.log, sidecar=row.sidecar))
            tree = Frontier.unpack(row.next_position, bytes(row.frontier))
            ends = row.log in closing
            grown = known is None or tree.size != known.size
            due = known is None or known.closed or head_due(known.at, now.timestamp()) or ends
            if tree.size and ((grown and due) or (ends and not (known and known.closed))):
                root = base64.b64encode(tree.root).decode()
                kind = "closed" if ends else "head"
                bodies.append(body_of(kind, now, log=row.log, size=tree.size, root=root))
        return bodies

    def _anchored(self, now: datetime) -> list[str]:
        """Up to where its heads are anchored, told along with what else there is: a store put back is known by it."""
        objects = self.objects
        if objects is None or objects.size <= self._told.get(objects.where, 0):
            return []
        return [body_of("anchored", now, where=objects.where, size=objects.size)]

    def _officers(self, connection: sa.Connection) -> list[str]:
        """Acts that no log has yet: taken up in any order, so that one that commits late is not passed over."""
        columns = [audit_events.c[name] for name in EVENT_COLUMNS]
        there = sa.exists().where(fleet_entries.c.event == audit_events.c.id)
        query = sa.select(*columns).where(audit_events.c.log.is_(None), ~there).order_by(audit_events.c.at)
        return [event_body(dict(row)) for row in connection.execute(query.limit(OFFICERS)).mappings()]

    def _store(self, connection: sa.Connection, tree: Frontier, bodies: Sequence[str]) -> None:
        rows = [
            {"position": n, "body": body, "event": json.loads(body).get("id")}
            for n, body in enumerate(bodies, tree.size)
        ]
        connection.execute(sa.insert(fleet_entries), rows)
        hashes = [leaf_hash(body.encode()) for body in bodies]
        connection.execute(sa.insert(audit_leaves).values(log=FLEET, first=tree.size, hashes=b"".join(hashes)))
        grown = tree.extended(hashes)
        values = {"next_position": grown.size, "frontier": grown.pack()}
        statement = pg_insert(audit_logs).values(log=FLEET, sidecar="", **values)
        connection.execute(statement.on_conflict_do_update(index_elements=["log"], set_=values))

    # --- our own memory of it -------------------------------------------------------------------------------------

    def _take(self, tree: Frontier, bodies: Sequence[str]) -> None:
        if bodies:
            with self._mirror.open("ab") as file:
                file.write("".join(f"{body}\n" for body in bodies).encode())
                file.flush()
                os.fsync(file.fileno())
        for body in bodies:
            self._learn(json.loads(body))
        self._tree = tree

    def _mirrored(self) -> Iterator[str]:
        """Every entry seen, in order."""
        with self._mirror.open("rb") as file:
            for line in file:
                yield line[:-1].decode()

    def _learn(self, told: dict[str, Any]) -> None:
        if told["kind"] in {"born", "head", "closed"}:
            size, root = told.get("size", 0), base64.b64decode(told.get("root", ""))
            at = datetime.fromisoformat(told["at"]).timestamp()
            self._heads[told["log"]] = _Known(size, root, at, told["kind"] == "closed")
        elif told["kind"] == "anchored":
            self._told[told["where"]] = max(told["size"], self._told.get(told["where"], 0))

    def _load(self) -> None:
        """A torn last line was never in any head that was shown as ours: it is read from the database again."""
        self._mirror.touch(mode=0o600)
        whole = 0
        leaves: list[bytes] = []
        with self._mirror.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(whole)
                    break
                whole += len(line)
                try:
                    self._learn(json.loads(line))
                except (ValueError, KeyError) as fault:
                    raise ForkError(f"{self._mirror} is damaged: {fault}") from fault
                leaves.append(leaf_hash(line[:-1]))
                if len(leaves) == _AT_ONCE:
                    self._tree, leaves = self._tree.extended(leaves), []
        self._tree = self._tree.extended(leaves)

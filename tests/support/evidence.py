"""A superuser who rewrites the audit database as well as can be done without the keys."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from psycopg.rows import dict_row

from audit.evidence import StoredRow
from audit.fleet import FLEET
from audit.logbook import log_signer, origin_of
from audit.merkle import Frontier, leaf_hash
from audit.tlog import Checkpoint, Signer
from migrations.versions.m0012_usage import _FILL
from sidecar.core.model import Secret
from tests.support.store import ROOT

APPEND_ONLY = (
    "audit_calls",
    "audit_events",
    "audit_leaves",
    "audit_checkpoints",
    "fleet_entries",
    "bundles",
    "audit_logs",
)


def unlock(dsn: str) -> None:
    """What the tables' owner can always do: switch the triggers off that keep them append-only."""
    with psycopg.connect(dsn) as connection:
        for table in APPEND_ONLY:
            connection.execute(f"ALTER TABLE warden.{table} DISABLE TRIGGER ALL")


def tamper(dsn: str, statement: str) -> None:
    """Change what may not be changed."""
    unlock(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute(statement)


class Forger:
    """Tampers with one log."""

    def __init__(self, dsn: str, log: str) -> None:
        self._dsn, self._log = dsn, log
        unlock(dsn)

    def sql(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self._dsn, row_factory=dict_row) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def copy_row(self, position: int, to: int, call_id: str, *, log: str | None = None) -> None:
        """Another row like the one at ``position``."""
        with psycopg.connect(self._dsn) as connection:
            connection.execute(
                "CREATE TEMP TABLE one AS SELECT * FROM warden.audit_calls WHERE log = %s AND position = %s",
                (self._log, position),
            )
            connection.execute("UPDATE one SET position = %s, call_id = %s, log = %s", (to, call_id, log or self._log))
            connection.execute("INSERT INTO warden.audit_calls SELECT * FROM one")

    def leaves(self) -> list[bytes]:
        rows = self.sql("SELECT hashes FROM warden.audit_leaves WHERE log = %s ORDER BY first", self._log)
        joined = b"".join(bytes(row["hashes"]) for row in rows)
        return [joined[at : at + 32] for at in range(0, len(joined), 32)]

    def store(self, leaves: list[bytes], *, tree: bool = True) -> None:
        """These leaves, and the frontier to match."""
        self.sql("DELETE FROM warden.audit_leaves WHERE log = %s", self._log)
        self.sql("INSERT INTO warden.audit_leaves VALUES (%s, 0, %s)", self._log, b"".join(leaves))
        if tree:
            grown = Frontier().extended(leaves)
            self.sql(
                "UPDATE warden.audit_logs SET next_position = %s, frontier = %s WHERE log = %s",
                grown.size, grown.pack(), self._log,
            )  # fmt: skip

    def rewrite(self, position: int, *, tree: bool, sign: bool = False, heads: str = "keep") -> None:
        """Alter a row and make its leaf, and if asked tree and heads (with a key of our own), agree."""
        self.sql(
            "UPDATE warden.audit_calls SET outcome = 'failed' WHERE log = %s AND position = %s", self._log, position
        )
        (row,) = self.sql("SELECT * FROM warden.audit_calls WHERE log = %s AND position = %s", self._log, position)
        leaves = self.leaves()
        leaves[position] = StoredRow.named("call", row).leaf()
        self.store(leaves, tree=tree)
        if heads == "delete":
            self.sql("DELETE FROM warden.audit_checkpoints WHERE log = %s", self._log)
        if sign:
            signer = Signer(origin_of("EU", self._log), b"f" * 32)
            for head in self.sql("SELECT size FROM warden.audit_checkpoints WHERE log = %s", self._log):
                root = Frontier().extended(leaves[: head["size"]]).root
                note = signer.sign(Checkpoint(signer.verifier.name, head["size"], root).text)
                self.sql(
                    "UPDATE warden.audit_checkpoints SET note = %s WHERE log = %s AND size = %s",
                    note, self._log, head["size"],
                )  # fmt: skip

    def cut_out(self, position: int) -> None:
        """Delete a row and its leaf, and move all that follows up."""
        self.sql("DELETE FROM warden.audit_calls WHERE log = %s AND position = %s", self._log, position)
        for table in ("audit_calls", "audit_events"):
            self.sql(
                f"UPDATE warden.{table} SET position = position - 1 WHERE log = %s AND position > %s",
                self._log, position,
            )  # fmt: skip
        leaves: list[tuple[int, bytes]] = []
        for kind, table in (("call", "audit_calls"), ("event", "audit_events")):
            rows = self.sql(f"SELECT * FROM warden.{table} WHERE log = %s", self._log)
            leaves += [(row["position"], StoredRow.named(kind, row).leaf()) for row in rows]
        self.store([leaf for _, leaf in sorted(leaves)])

    def truncate(self, size: int, *, heads: bool) -> None:
        """Cut the log off at ``size``."""
        for table in ("audit_calls", "audit_events"):
            self.sql(f"DELETE FROM warden.{table} WHERE log = %s AND position >= %s", self._log, size)
        self.store(self.leaves()[:size])
        self.sum_up()
        if heads:
            self.sql("DELETE FROM warden.audit_checkpoints WHERE log = %s AND size > %s", self._log, size)

    def drop_log(self, *, fleet: bool = False) -> None:
        """As if that sidecar had never been."""
        for table in ("audit_calls", "audit_events", "audit_leaves", "audit_checkpoints", "audit_logs"):
            self.sql(f"DELETE FROM warden.{table} WHERE log = %s", self._log)
        self.sum_up()
        if fleet:
            self.drop_fleet()

    def detach(self) -> None:
        """The day of its calls is a table by itself, with an empty one in its place."""
        (row,) = self.sql(
            "SELECT to_char(min(started_at) AT TIME ZONE 'UTC', 'YYYYMMDD') AS day FROM warden.audit_calls"
        )
        name = f"audit_calls_{row['day']}"
        self.sql(f"ALTER TABLE warden.audit_calls DETACH PARTITION warden.{name}")
        self.sql("CREATE SCHEMA IF NOT EXISTS away")
        self.sql(f"DROP TABLE IF EXISTS away.{name}")
        self.sql(f"ALTER TABLE warden.{name} SET SCHEMA away")
        self.sql("SELECT warden.make_partition('audit_calls', to_date(%s, 'YYYYMMDD'))", row["day"])

    def extend(self) -> None:
        """One more record at the end, with leaf, tree and usage to match; nobody signs it."""
        leaves = self.leaves()
        calls = self.sql("SELECT max(position) AS last FROM warden.audit_calls WHERE log = %s", self._log)
        self.copy_row(calls[0]["last"], len(leaves), "extended")
        (row,) = self.sql("SELECT * FROM warden.audit_calls WHERE log = %s AND position = %s", self._log, len(leaves))
        self.store([*leaves, StoredRow.named("call", row).leaf()])
        self.sum_up()

    def sum_up(self) -> None:
        """The usage of what is left."""
        self.sql("DELETE FROM warden.usage_hours")
        self.sql(_FILL)

    def drop_fleet(self) -> None:
        """As if there had been no fleet's log."""
        self.sql("DELETE FROM warden.fleet_entries")
        for table in ("audit_leaves", "audit_checkpoints", "audit_logs"):
            self.sql(f"DELETE FROM warden.{table} WHERE log = %s", FLEET)

    def forge_drop(self, position: int) -> None:
        """Delete a row, and write into the fleet's log, unsigned, that its drop is on record."""
        self.sql("DELETE FROM warden.audit_calls WHERE log = %s AND position = %s", self._log, position)
        values = {"kind": "partition_dropped", "detail": {"logs": {self._log: [[position, position]]}}}
        body = json.dumps({"kind": "event", "id": "forged", "leaf": "", "values": values})
        (row,) = self.sql("SELECT next_position, frontier FROM warden.audit_logs WHERE log = %s", FLEET)
        size, leaf = row["next_position"], leaf_hash(body.encode())
        grown = Frontier.unpack(size, bytes(row["frontier"])).extended([leaf])
        self.sql("INSERT INTO warden.fleet_entries (position, body) VALUES (%s, %s)", size, body)
        self.sql("INSERT INTO warden.audit_leaves VALUES (%s, %s, %s)", FLEET, size, leaf)
        self.sql(
            "UPDATE warden.audit_logs SET next_position = %s, frontier = %s WHERE log = %s",
            grown.size, grown.pack(), FLEET,
        )  # fmt: skip

    def invent(self, log: str) -> None:
        """A log that no sidecar wrote, with this log's calls as its own; as of a time that is yet to come."""
        for position in range(3):
            self.copy_row(position, position, f"invented-{position}", log=log)
        rows = self.sql("SELECT * FROM warden.audit_calls WHERE log = %s ORDER BY position", log)
        tree = Frontier().extended(leaves := [StoredRow.named("call", row).leaf() for row in rows])
        self.sql("INSERT INTO warden.audit_leaves VALUES (%s, 0, %s)", log, b"".join(leaves))
        self.sql(
            "INSERT INTO warden.audit_logs (log, sidecar, next_position, frontier, born_at)"
            " VALUES (%s, 'pod-9', %s, %s, now() + interval '70 years')",
            log, tree.size, tree.pack(),
        )  # fmt: skip

    def fork(self) -> None:
        """A second head of the same size, signed with the log's own key: a sidecar that was cloned."""
        signer = log_signer(Secret(ROOT), origin_of("EU", self._log))
        note = signer.sign(Checkpoint(signer.verifier.name, 8, leaf_hash(b"another")).text)
        self.sql("INSERT INTO warden.audit_checkpoints VALUES (%s, 8, %s, now())", self._log, note)

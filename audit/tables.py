"""The audit database's tables, schema ``warden`` (DESIGN §6); migrations/ makes them, a test compares the two."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSONB

__all__ = [
    "SCHEMA",
    "audit_calls",
    "audit_events",
    "audit_logs",
    "bundles",
    "database_facts",
    "journal_cursors",
    "metadata",
]

SCHEMA: Final = "warden"

metadata: Final = sa.MetaData(schema=SCHEMA)
_when: Final = sa.DateTime(timezone=True)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


audit_calls: Final = sa.Table(
    "audit_calls",
    metadata,
    sa.Column("started_at", _when, primary_key=True),
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("sidecar", sa.Text, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),  # in its sidecar's log
    sa.Column("journal", sa.Text, nullable=False),
    sa.Column("first_sequence", sa.BigInteger, nullable=False),  # in the journal: the admission
    sa.Column("sequence", sa.BigInteger, nullable=False),  # the entry that ended it
    *map(_text, ("region", "jurisdiction")),
    sa.Column("decided_at", _when, nullable=False),
    sa.Column("settled_at", _when),
    *map(_text, ("tenant", "principal", "principal_kind", "issuer", "key_id", "subject", "conversation", "method")),
    *map(_text, ("model", "requested_version", "model_version")),
    sa.Column("model_digest", sa.Text),  # of the version's directory; null: not known
    *map(_text, ("alias", "routed_version", "route", "route_why")),  # audit.record.CallFacts
    *map(_text, ("request_id", "data_class", "rule", "bundle", "level")),
    sa.Column("retention_days", sa.Integer),
    *map(_text, ("peer", "outcome")),
    sa.Column("status", sa.SmallInteger, nullable=False),  # gRPC code
    *map(_text, ("reason", "detail", "internal", "would_refuse", "trace_id", "span_id", "parent_id")),
    sa.Column("decision", JSONB, nullable=False, server_default="{}"),  # what else it was made from: audit.rows
    _flag("sampled"),
    sa.Column("parameters", JSONB, nullable=False, server_default="{}"),
    sa.Column("tensors", JSONB, nullable=False, server_default="[]"),  # [name, datatype, shape, bytes] each
    *map(_count, ("request_bytes", "requested_tokens", "response_bytes", "responses", "prompt_bytes", "output_bytes")),
    sa.Column("prompt_sha256", BYTEA),
    sa.Column("prompt_sealed", BYTEA),  # audit.content; null where the level keeps none
    _flag("prompt_truncated"),
    sa.Column("output_sha256", BYTEA),
    sa.Column("output_sealed", BYTEA),
    _flag("output_truncated"),
    sa.Column("error_sealed", BYTEA),  # Triton's words that the client was not told
    _count("error_bytes"),
    *map(_count, ("input_tokens", "output_tokens")),
    _flag("input_exact"),
    _flag("output_exact"),
    sa.Column("ttft_ns", sa.BigInteger),
    _count("duration_ns"),
    sa.Column("findings", JSONB, nullable=False, server_default="[]"),  # [guard, on, verdict, enforced] each
    sa.Column("redacted", JSONB, nullable=False, server_default="{}"),  # identifiers taken out, by class
    _flag("sanitised"),  # a column differs from what was journaled; evidence holds the original
    sa.Column("evidence", BYTEA),
    sa.Column("shipped_at", _when, nullable=False, server_default=sa.func.now()),
    postgresql_partition_by="RANGE (started_at)",
)
sa.Index("audit_calls_tenant", audit_calls.c.tenant, audit_calls.c.started_at.desc(), audit_calls.c.call_id.desc())
sa.Index("audit_calls_call", audit_calls.c.call_id)
sa.Index("audit_calls_trace", audit_calls.c.trace_id, postgresql_where=sa.text("trace_id <> ''"))
sa.Index("audit_calls_position", audit_calls.c.sidecar, audit_calls.c.position)

audit_events: Final = sa.Table(
    "audit_events",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", _when, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    *map(_text, ("actor", "reason")),
    sa.Column("detail", JSONB, nullable=False, server_default="{}"),
    sa.Column("sidecar", sa.Text),  # these six are null for what an officer did
    sa.Column("position", sa.BigInteger),
    sa.Column("journal", sa.Text),
    sa.Column("sequence", sa.BigInteger),
    sa.Column("region", sa.Text),
    sa.Column("jurisdiction", sa.Text),
    _flag("sanitised"),
    sa.Column("recorded_at", _when, nullable=False, server_default=sa.func.now()),
)
sa.Index("audit_events_at", audit_events.c.at.desc(), audit_events.c.id.desc())
sa.Index("audit_events_position", audit_events.c.sidecar, audit_events.c.position)

journal_cursors: Final = sa.Table(
    "journal_cursors",
    metadata,
    sa.Column("journal", sa.Text, primary_key=True),
    sa.Column("sidecar", sa.Text, nullable=False),
    sa.Column("needed", sa.BigInteger, nullable=False),  # read again from here after a restart
    sa.Column("done", sa.BigInteger, nullable=False),  # everything that ended up to here is stored
    sa.Column("updated_at", _when, nullable=False, server_default=sa.func.now()),
)

audit_logs: Final = sa.Table(
    "audit_logs",
    metadata,
    sa.Column("sidecar", sa.Text, primary_key=True),
    sa.Column("next_position", sa.BigInteger, nullable=False),
    sa.Column("born_at", _when, nullable=False, server_default=sa.func.now()),
)

bundles: Final = sa.Table(
    "bundles",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("content", BYTEA, nullable=False),
    sa.Column("first_loaded_at", _when, nullable=False),
    sa.Column("sidecar", sa.Text, nullable=False),
)

database_facts: Final = sa.Table(
    "database_facts",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

"""The audit database's tables, schema ``warden`` (DESIGN §6); migrations/ makes them, a test compares the two."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB

__all__ = [
    "SCHEMA",
    "audit_calls",
    "audit_checkpoints",
    "audit_events",
    "audit_leaves",
    "audit_logs",
    "audit_terms",
    "bundles",
    "data_keys",
    "database_facts",
    "erasures",
    "fleet_entries",
    "journal_cursors",
    "legal_holds",
    "metadata",
    "usage_hours",
]

SCHEMA: Final = "warden"
SUMS_OF_TIME: Final = ("call_ns", "compute_ns", "kv_byte_ms")  # a year's may not fit into 64 bits

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
    sa.Column("log", sa.Text, nullable=False),  # audit.logbook
    sa.Column("position", sa.BigInteger, nullable=False),  # in that log
    sa.Column("journal", sa.Text, nullable=False),
    sa.Column("first_sequence", sa.BigInteger, nullable=False),  # in the journal: the admission
    sa.Column("sequence", sa.BigInteger, nullable=False),  # the entry that ended it
    *map(_text, ("region", "jurisdiction")),
    sa.Column("decided_at", _when, nullable=False),
    sa.Column("settled_at", _when),
    *map(_text, ("tenant", "principal", "principal_kind", "issuer", "key_id", "method")),
    *map(_text, ("model", "requested_version", "model_version")),
    sa.Column("model_digest", sa.Text),  # of the version's directory; null: not known
    *map(_text, ("alias", "routed_version", "route", "route_why")),  # audit.record.CallFacts
    *map(_text, ("data_class", "rule", "bundle", "level")),
    sa.Column("retention_days", sa.Integer),
    *map(_text, ("outcome",)),
    sa.Column("status", sa.SmallInteger, nullable=False),  # gRPC code
    *map(_text, ("reason", "detail", "internal", "would_refuse", "trace_id", "span_id", "parent_id")),
    sa.Column("decision", JSONB, nullable=False, server_default="{}"),  # what else it was made from: audit.rows
    _flag("sampled"),
    sa.Column("tensors", JSONB, nullable=False, server_default="[]"),  # [name, datatype, shape, bytes] each
    *map(_count, ("request_bytes", "requested_tokens", "response_bytes", "responses", "prompt_bytes", "output_bytes")),
    sa.Column("data_key", sa.Text, nullable=False),  # what its sealed columns are under (data_keys)
    sa.Column("identity_sealed", BYTEA, nullable=False),  # audit.rows.Identity
    sa.Column("conversation_mac", BYTEA),  # audit.vault.lookup
    sa.Column("prompt_digest", BYTEA),  # audit.vault.commitment
    sa.Column("prompt_sealed", BYTEA),  # salt, and texts where the level keeps them
    _flag("prompt_truncated"),
    sa.Column("output_digest", BYTEA),
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
    sa.Column("evidence_sealed", BYTEA),
    _count("kv_byte_ms"),
    sa.Column("payloads", JSONB, nullable=False, server_default="{}"),  # tensors whose bytes are kept: audit.payload
    sa.Column("payloads_sealed", BYTEA),  # the salt of their digests
    sa.Column("shipped_at", _when, nullable=False, server_default=sa.func.now()),
    postgresql_partition_by="RANGE (started_at)",
)
sa.Index("audit_calls_tenant", audit_calls.c.tenant, audit_calls.c.started_at.desc(), audit_calls.c.call_id.desc())
sa.Index("audit_calls_call", audit_calls.c.call_id)
sa.Index("audit_calls_trace", audit_calls.c.trace_id, postgresql_where=sa.text("trace_id <> ''"))
sa.Index("audit_calls_position", audit_calls.c.log, audit_calls.c.position)
sa.Index("audit_calls_key", audit_calls.c.data_key, audit_calls.c.started_at)
_NEWEST: Final = (audit_calls.c.started_at.desc(), audit_calls.c.call_id.desc())
sa.Index(
    "audit_calls_outcome", audit_calls.c.outcome, audit_calls.c.reason, *_NEWEST,
    postgresql_where=sa.text("outcome <> 'completed'"),
)  # fmt: skip
sa.Index(
    "audit_calls_would_refuse", audit_calls.c.would_refuse, *_NEWEST, postgresql_where=sa.text("would_refuse <> ''")
)
sa.Index("audit_calls_api_key", audit_calls.c.key_id, *_NEWEST, postgresql_where=sa.text("key_id <> ''"))
sa.Index("audit_calls_principal", audit_calls.c.principal, *_NEWEST, postgresql_where=sa.text("principal <> ''"))
sa.Index("audit_calls_class", audit_calls.c.data_class, *_NEWEST, postgresql_where=sa.text("data_class <> ''"))
sa.Index(
    "audit_calls_conversation", audit_calls.c.conversation_mac,
    postgresql_where=sa.text("conversation_mac IS NOT NULL"),
)  # fmt: skip
sa.Index("audit_calls_findings", *_NEWEST, postgresql_where=sa.text("findings <> '[]'::jsonb"))
sa.Index(
    "audit_calls_payloads", audit_calls.c.log, audit_calls.c.position,
    postgresql_where=sa.text("payloads <> '{}'::jsonb"),
)  # fmt: skip
sa.Index(
    "audit_calls_few", *(audit_calls.c[name] for name in ("model", "rule", "region")),
    postgresql_using="brin",
)  # fmt: skip

audit_events: Final = sa.Table(
    "audit_events",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", _when, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    *map(_text, ("actor", "reason")),
    sa.Column("detail", JSONB, nullable=False, server_default="{}"),
    sa.Column("sidecar", sa.Text),  # these seven are null for what an officer did: the fleet's log takes it up
    sa.Column("log", sa.Text),
    sa.Column("position", sa.BigInteger),
    sa.Column("journal", sa.Text),
    sa.Column("sequence", sa.BigInteger),
    sa.Column("region", sa.Text),
    sa.Column("jurisdiction", sa.Text),
    _flag("sanitised"),
    sa.Column("recorded_at", _when, nullable=False, server_default=sa.func.now()),
)
sa.Index("audit_events_at", audit_events.c.at.desc(), audit_events.c.id.desc())
sa.Index("audit_events_kind", audit_events.c.kind, audit_events.c.at)
sa.Index("audit_events_position", audit_events.c.log, audit_events.c.position)

# What was used, summed as records are stored (audit.rollup): no content and nobody's name, so it outlives them.
usage_hours: Final = sa.Table(
    "usage_hours",
    metadata,
    sa.Column("hour", _when, primary_key=True),
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("tenant", "model", "key_id")),
    sa.Column("log", sa.Text, primary_key=True),  # each shipper has rows of its own, so none waits for another
    *map(_count, ("calls", "input_tokens", "output_tokens", "exact_input_tokens", "exact_output_tokens")),
    *map(_count, ("estimated_calls", "request_bytes", "response_bytes")),
    *(sa.Column(name, sa.Numeric, nullable=False, server_default="0") for name in SUMS_OF_TIME),
)
sa.Index("usage_hours_tenant", usage_hours.c.tenant, usage_hours.c.hour)

journal_cursors: Final = sa.Table(
    "journal_cursors",
    metadata,
    sa.Column("journal", sa.Text, primary_key=True),
    sa.Column("log", sa.Text, primary_key=True),
    sa.Column("needed", sa.BigInteger, nullable=False),  # read again from here after a restart
    sa.Column("done", sa.BigInteger, nullable=False),  # everything that ended up to here is stored
    sa.Column("updated_at", _when, nullable=False, server_default=sa.func.now()),
    sa.Column("closed_at", _when),  # its sidecar ended well, with everything stored
    sa.Column("keeps", JSONB),  # what its sidecar can still read of the past (audit.remains); null: it never said
)

audit_logs: Final = sa.Table(  # each log's tree as it is stored: its size and frontier (audit.merkle)
    "audit_logs",
    metadata,
    sa.Column("log", sa.Text, primary_key=True),
    sa.Column("sidecar", sa.Text, nullable=False),
    sa.Column("next_position", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("frontier", BYTEA, nullable=False, server_default=""),
    sa.Column("born_at", _when, nullable=False, server_default=sa.func.now()),
)

audit_leaves: Final = sa.Table(  # leaf hashes, 32 bytes each; they stay when a partition goes
    "audit_leaves",
    metadata,
    sa.Column("log", sa.Text, primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True),
    sa.Column("hashes", BYTEA, nullable=False),
)

audit_checkpoints: Final = sa.Table(  # signed tree heads (C2SP tlog-checkpoint)
    "audit_checkpoints",
    metadata,
    sa.Column("log", sa.Text, primary_key=True),
    sa.Column("size", sa.BigInteger, primary_key=True),
    sa.Column("note", sa.Text, primary_key=True),
    sa.Column("signed_at", _when, nullable=False),
)

fleet_entries: Final = sa.Table(  # the leaves of the log "fleet" (audit.fleet)
    "fleet_entries",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),  # canonical JSON
    sa.Column("event", sa.Text, unique=True),  # the officer's act that it holds
)

data_keys: Final = sa.Table(
    "data_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("days", sa.Integer),  # the retention class; null: for ever
    sa.Column("day", sa.Date, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),  # of the tenant's master key
    sa.Column("wrapped", BYTEA),  # null: destroyed
    sa.Column("subject_sealed", BYTEA),
    sa.Column("subject_mac", BYTEA),  # KeyProvider.mac
    sa.Column("destroyed_at", _when),
    sa.Column("destroyed_by", sa.Text),  # the event that says why
)
sa.Index("data_keys_subject", data_keys.c.tenant, data_keys.c.subject_mac)
sa.Index("data_keys_day", data_keys.c.tenant, data_keys.c.day)

audit_terms: Final = sa.Table(  # what finds a call by its words (audit.vault.terms); goes with its data key
    "audit_terms",
    metadata,
    sa.Column("started_at", _when, primary_key=True),
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("data_key", sa.Text, nullable=False),
    sa.Column("terms", ARRAY(sa.BigInteger), nullable=False),
    postgresql_partition_by="RANGE (started_at)",
)
sa.Index("audit_terms_key", audit_terms.c.data_key)
sa.Index("audit_terms_terms", audit_terms.c.terms, postgresql_using="gin")

legal_holds: Final = sa.Table(
    "legal_holds",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("version", sa.Integer),  # of the master key that the subject's name is wrapped under
    sa.Column("subject_wrapped", BYTEA),  # null: everybody of the tenant
    *map(_text, ("reason", "placed_by")),
    sa.Column("placed_at", _when, nullable=False),
    sa.Column("released_at", _when),
    sa.Column("released_by", sa.Text),
)

erasures: Final = sa.Table(
    "erasures",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("version", sa.Integer),
    sa.Column("subject_wrapped", BYTEA),  # null once it is done: nobody can be named any more
    *map(_text, ("reason", "requested_by")),
    sa.Column("requested_at", _when, nullable=False),
    sa.Column("confirmed_by", sa.Text),
    sa.Column("erased_at", _when),
    sa.Column("keys", sa.BigInteger, nullable=False, server_default="0"),  # destroyed
    sa.Column("records", sa.BigInteger, nullable=False, server_default="0"),  # that no longer open
    _count("objects"),  # of tensors' bytes, that no longer open either
    sa.Column("pending_until", _when),  # copies outside the database are gone by then
    sa.Column("renewed", sa.Integer),  # the master key's version since: what is of an older one is from before
    sa.Column("done_at", _when),
    *map(_text, ("requested_login", "confirmed_login")),  # whom the database took them for
    sa.Column("excludes", JSONB),  # what it says nothing of, once it is done (audit.remains)
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

database_roles: Final = sa.Table(  # the logins that `warden db enroll` made (audit.roles)
    "database_roles",
    metadata,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("made_at", _when, nullable=False),
    _text("made_by"),
    sa.Column("revoked_at", _when),
)

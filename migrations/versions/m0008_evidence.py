"""The audit log as a transparency log: leaves, signed heads, the fleet's log, data keys, holds and erasures."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_OLD = ("audit_calls", "audit_events", "audit_logs", "journal_cursors")

_CALLS = """
CREATE TABLE warden.audit_calls (
    started_at timestamptz NOT NULL,
    call_id TEXT NOT NULL,
    sidecar TEXT NOT NULL,
    log TEXT NOT NULL,
    position BIGINT NOT NULL,
    journal TEXT NOT NULL,
    first_sequence BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    region TEXT DEFAULT '' NOT NULL,
    jurisdiction TEXT DEFAULT '' NOT NULL,
    decided_at timestamptz NOT NULL,
    settled_at timestamptz,
    tenant TEXT DEFAULT '' NOT NULL,
    principal TEXT DEFAULT '' NOT NULL,
    principal_kind TEXT DEFAULT '' NOT NULL,
    issuer TEXT DEFAULT '' NOT NULL,
    key_id TEXT DEFAULT '' NOT NULL,
    method TEXT DEFAULT '' NOT NULL,
    model TEXT DEFAULT '' NOT NULL,
    requested_version TEXT DEFAULT '' NOT NULL,
    model_version TEXT DEFAULT '' NOT NULL,
    model_digest TEXT,
    alias TEXT DEFAULT '' NOT NULL,
    routed_version TEXT DEFAULT '' NOT NULL,
    route TEXT DEFAULT '' NOT NULL,
    route_why TEXT DEFAULT '' NOT NULL,
    data_class TEXT DEFAULT '' NOT NULL,
    rule TEXT DEFAULT '' NOT NULL,
    bundle TEXT DEFAULT '' NOT NULL,
    level TEXT DEFAULT '' NOT NULL,
    retention_days INTEGER,
    outcome TEXT DEFAULT '' NOT NULL,
    status SMALLINT NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    detail TEXT DEFAULT '' NOT NULL,
    internal TEXT DEFAULT '' NOT NULL,
    would_refuse TEXT DEFAULT '' NOT NULL,
    trace_id TEXT DEFAULT '' NOT NULL,
    span_id TEXT DEFAULT '' NOT NULL,
    parent_id TEXT DEFAULT '' NOT NULL,
    decision JSONB DEFAULT '{}' NOT NULL,
    sampled BOOLEAN DEFAULT false NOT NULL,
    tensors JSONB DEFAULT '[]' NOT NULL,
    request_bytes BIGINT DEFAULT '0' NOT NULL,
    requested_tokens BIGINT DEFAULT '0' NOT NULL,
    response_bytes BIGINT DEFAULT '0' NOT NULL,
    responses BIGINT DEFAULT '0' NOT NULL,
    prompt_bytes BIGINT DEFAULT '0' NOT NULL,
    output_bytes BIGINT DEFAULT '0' NOT NULL,
    data_key TEXT NOT NULL,
    identity_sealed BYTEA NOT NULL,
    conversation_mac BYTEA,
    prompt_digest BYTEA,
    prompt_sealed BYTEA,
    prompt_truncated BOOLEAN DEFAULT false NOT NULL,
    output_digest BYTEA,
    output_sealed BYTEA,
    output_truncated BOOLEAN DEFAULT false NOT NULL,
    error_sealed BYTEA,
    error_bytes BIGINT DEFAULT '0' NOT NULL,
    input_tokens BIGINT DEFAULT '0' NOT NULL,
    output_tokens BIGINT DEFAULT '0' NOT NULL,
    input_exact BOOLEAN DEFAULT false NOT NULL,
    output_exact BOOLEAN DEFAULT false NOT NULL,
    ttft_ns BIGINT,
    duration_ns BIGINT DEFAULT '0' NOT NULL,
    findings JSONB DEFAULT '[]' NOT NULL,
    redacted JSONB DEFAULT '{}' NOT NULL,
    sanitised BOOLEAN DEFAULT false NOT NULL,
    evidence_sealed BYTEA,
    shipped_at timestamptz DEFAULT now() NOT NULL,
    PRIMARY KEY (started_at, call_id)
) PARTITION BY RANGE (started_at);
CREATE INDEX audit_calls_trace ON warden.audit_calls (trace_id) WHERE trace_id <> '';
CREATE INDEX audit_calls_tenant ON warden.audit_calls (tenant, started_at DESC, call_id DESC);
CREATE INDEX audit_calls_position ON warden.audit_calls (log, position);
CREATE INDEX audit_calls_call ON warden.audit_calls (call_id);
CREATE INDEX audit_calls_key ON warden.audit_calls (data_key, started_at);
"""

_REST = """
CREATE TABLE warden.audit_events (
    id TEXT NOT NULL,
    at timestamptz NOT NULL,
    kind TEXT NOT NULL,
    actor TEXT DEFAULT '' NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    detail JSONB DEFAULT '{}' NOT NULL,
    sidecar TEXT,
    log TEXT,
    position BIGINT,
    journal TEXT,
    sequence BIGINT,
    region TEXT,
    jurisdiction TEXT,
    sanitised BOOLEAN DEFAULT false NOT NULL,
    recorded_at timestamptz DEFAULT now() NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX audit_events_position ON warden.audit_events (log, position);
CREATE INDEX audit_events_at ON warden.audit_events (at DESC, id DESC);
CREATE TABLE warden.journal_cursors (
    journal TEXT NOT NULL,
    log TEXT NOT NULL,
    needed BIGINT NOT NULL,
    done BIGINT NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    PRIMARY KEY (journal)
);
CREATE TABLE warden.audit_logs (
    log TEXT NOT NULL,
    sidecar TEXT NOT NULL,
    next_position BIGINT DEFAULT '0' NOT NULL,
    frontier BYTEA DEFAULT '' NOT NULL,
    born_at timestamptz DEFAULT now() NOT NULL,
    PRIMARY KEY (log)
);
CREATE TABLE warden.audit_leaves (
    log TEXT NOT NULL,
    first BIGINT NOT NULL,
    hashes BYTEA NOT NULL,
    PRIMARY KEY (log, first)
);
CREATE TABLE warden.audit_checkpoints (
    log TEXT NOT NULL,
    size BIGINT NOT NULL,
    note TEXT NOT NULL,
    signed_at timestamptz NOT NULL,
    PRIMARY KEY (log, size, note)
);
CREATE TABLE warden.fleet_entries (
    position BIGINT NOT NULL,
    body TEXT NOT NULL,
    event TEXT,
    PRIMARY KEY (position),
    UNIQUE (event)
);
CREATE TABLE warden.data_keys (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    days INTEGER,
    day DATE NOT NULL,
    version INTEGER NOT NULL,
    wrapped BYTEA,
    subject_sealed BYTEA,
    subject_mac BYTEA,
    destroyed_at timestamptz,
    destroyed_by TEXT,
    PRIMARY KEY (id)
);
CREATE INDEX data_keys_subject ON warden.data_keys (tenant, subject_mac);
CREATE INDEX data_keys_day ON warden.data_keys (tenant, day);
CREATE TABLE warden.audit_terms (
    call_id TEXT NOT NULL,
    started_at timestamptz NOT NULL,
    data_key TEXT NOT NULL,
    terms BIGINT[] NOT NULL,
    PRIMARY KEY (call_id, started_at)
);
CREATE INDEX audit_terms_terms ON warden.audit_terms USING gin (terms);
CREATE INDEX audit_terms_key ON warden.audit_terms (data_key);
CREATE TABLE warden.legal_holds (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    version INTEGER,
    subject_wrapped BYTEA,
    reason TEXT DEFAULT '' NOT NULL,
    placed_by TEXT DEFAULT '' NOT NULL,
    placed_at timestamptz NOT NULL,
    released_at timestamptz,
    released_by TEXT,
    PRIMARY KEY (id)
);
CREATE TABLE warden.erasures (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    version INTEGER,
    subject_wrapped BYTEA,
    reason TEXT DEFAULT '' NOT NULL,
    requested_by TEXT DEFAULT '' NOT NULL,
    requested_at timestamptz NOT NULL,
    confirmed_by TEXT,
    erased_at timestamptz,
    keys BIGINT DEFAULT '0' NOT NULL,
    records BIGINT DEFAULT '0' NOT NULL,
    pending_until timestamptz,
    done_at timestamptz,
    PRIMARY KEY (id)
);
"""


def upgrade() -> None:
    """Records of earlier releases were never in a log, so nothing could prove them: they are not taken over."""
    bind = op.get_bind()
    held = bind.exec_driver_sql("SELECT EXISTS (SELECT FROM warden.audit_calls)").scalar_one()
    if held:
        raise RuntimeError(
            "this database holds records of a release before 0008, which no log proves; keep it as it is for as long as"
            " they must be kept, and let the configuration name a new database"
        )
    for name in _OLD:
        bind.exec_driver_sql(f"DROP TABLE warden.{name}")
    for statements in (_CALLS, _REST):
        bind.exec_driver_sql(statements)

"""The audit log, the journals' cursors, policy bundles, API keys."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_CALLS = """
CREATE TABLE warden.audit_calls (
    started_at timestamptz NOT NULL,
    call_id text NOT NULL,
    sidecar text NOT NULL,
    position bigint NOT NULL,
    journal text NOT NULL,
    first_sequence bigint NOT NULL,
    sequence bigint NOT NULL,
    region text NOT NULL DEFAULT '',
    jurisdiction text NOT NULL DEFAULT '',
    decided_at timestamptz NOT NULL,
    settled_at timestamptz,
    tenant text NOT NULL DEFAULT '',
    principal text NOT NULL DEFAULT '',
    principal_kind text NOT NULL DEFAULT '',
    issuer text NOT NULL DEFAULT '',
    key_id text NOT NULL DEFAULT '',
    subject text NOT NULL DEFAULT '',
    conversation text NOT NULL DEFAULT '',
    method text NOT NULL DEFAULT '',
    model text NOT NULL DEFAULT '',
    requested_version text NOT NULL DEFAULT '',
    model_version text NOT NULL DEFAULT '',
    model_digest text,
    request_id text NOT NULL DEFAULT '',
    data_class text NOT NULL DEFAULT '',
    rule text NOT NULL DEFAULT '',
    bundle text NOT NULL DEFAULT '',
    level text NOT NULL DEFAULT '',
    retention_days integer,
    peer text NOT NULL DEFAULT '',
    outcome text NOT NULL DEFAULT '',
    status smallint NOT NULL,
    reason text NOT NULL DEFAULT '',
    detail text NOT NULL DEFAULT '',
    internal text NOT NULL DEFAULT '',
    would_refuse text NOT NULL DEFAULT '',
    trace_id text NOT NULL DEFAULT '',
    span_id text NOT NULL DEFAULT '',
    parent_id text NOT NULL DEFAULT '',
    sampled boolean NOT NULL DEFAULT false,
    parameters jsonb NOT NULL DEFAULT '{}',
    tensors jsonb NOT NULL DEFAULT '[]',
    request_bytes bigint NOT NULL DEFAULT 0,
    requested_tokens bigint NOT NULL DEFAULT 0,
    response_bytes bigint NOT NULL DEFAULT 0,
    responses bigint NOT NULL DEFAULT 0,
    prompt_bytes bigint NOT NULL DEFAULT 0,
    output_bytes bigint NOT NULL DEFAULT 0,
    prompt_sha256 bytea,
    prompt_sealed bytea,
    prompt_truncated boolean NOT NULL DEFAULT false,
    output_sha256 bytea,
    output_sealed bytea,
    output_truncated boolean NOT NULL DEFAULT false,
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    input_exact boolean NOT NULL DEFAULT false,
    output_exact boolean NOT NULL DEFAULT false,
    ttft_ns bigint,
    duration_ns bigint NOT NULL DEFAULT 0,
    sanitised boolean NOT NULL DEFAULT false,
    evidence bytea,
    shipped_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (started_at, call_id)
) PARTITION BY RANGE (started_at);
CREATE INDEX audit_calls_tenant ON warden.audit_calls (tenant, started_at DESC, call_id DESC);
CREATE INDEX audit_calls_call ON warden.audit_calls (call_id);
CREATE INDEX audit_calls_trace ON warden.audit_calls (trace_id) WHERE trace_id <> '';
CREATE INDEX audit_calls_position ON warden.audit_calls (sidecar, position);
"""

_LOGS = """
CREATE TABLE warden.audit_events (
    id text PRIMARY KEY,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    actor text NOT NULL DEFAULT '',
    reason text NOT NULL DEFAULT '',
    detail jsonb NOT NULL DEFAULT '{}',
    sidecar text,
    position bigint,
    journal text,
    sequence bigint,
    region text,
    jurisdiction text,
    sanitised boolean NOT NULL DEFAULT false,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX audit_events_at ON warden.audit_events (at DESC, id DESC);
CREATE INDEX audit_events_position ON warden.audit_events (sidecar, position);
CREATE TABLE warden.journal_cursors (
    journal text PRIMARY KEY,
    sidecar text NOT NULL,
    needed bigint NOT NULL,
    done bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE warden.audit_logs (
    sidecar text PRIMARY KEY,
    next_position bigint NOT NULL,
    born_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE warden.bundles (
    digest text PRIMARY KEY,
    content bytea NOT NULL,
    first_loaded_at timestamptz NOT NULL,
    sidecar text NOT NULL
);
CREATE TABLE warden.database_facts (
    key text PRIMARY KEY,
    value text NOT NULL
);
"""

_KEYS = """
CREATE TABLE warden.api_keys (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    name text NOT NULL,
    environment text NOT NULL,
    secret_mac bytea NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    not_before timestamptz,
    revoked_at timestamptz,
    models text[],
    roles text[] NOT NULL DEFAULT '{tenant}',
    last_used_at timestamptz,
    rotated_mac bytea,
    rotated_until timestamptz,
    created_by text NOT NULL,
    CONSTRAINT api_keys_secret_mac CHECK (octet_length(secret_mac) = 32),
    CONSTRAINT api_keys_rotation CHECK ((rotated_mac IS NULL) = (rotated_until IS NULL))
);
CREATE INDEX api_keys_tenant ON warden.api_keys (tenant);
CREATE FUNCTION warden.notify_api_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('warden_api_keys', '');
    RETURN NULL;
END $$;
CREATE TRIGGER api_keys_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON warden.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION warden.notify_api_keys();
"""


def upgrade() -> None:
    for statements in (_CALLS, _LOGS, _KEYS):
        op.get_bind().exec_driver_sql(statements)

"""What was used by hour, tenant, model and key, summed as records are stored; filled from the records there are."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TABLE = """
CREATE TABLE warden.usage_hours (
    hour timestamptz NOT NULL,
    tenant text NOT NULL,
    model text NOT NULL,
    key_id text NOT NULL,
    log text NOT NULL,
    calls bigint NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    exact_input_tokens bigint NOT NULL DEFAULT 0,
    exact_output_tokens bigint NOT NULL DEFAULT 0,
    estimated_calls bigint NOT NULL DEFAULT 0,
    request_bytes bigint NOT NULL DEFAULT 0,
    response_bytes bigint NOT NULL DEFAULT 0,
    call_ns numeric NOT NULL DEFAULT 0,
    compute_ns numeric NOT NULL DEFAULT 0,
    kv_byte_ms numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, tenant, model, key_id, log)
)
"""

_FILL = """
INSERT INTO warden.usage_hours
SELECT date_trunc('hour', started_at, 'UTC'), tenant, model, key_id, log, count(*), sum(input_tokens),
       sum(output_tokens), coalesce(sum(input_tokens) FILTER (WHERE input_exact), 0),
       coalesce(sum(output_tokens) FILTER (WHERE output_exact), 0),
       count(*) FILTER (WHERE NOT (input_exact AND output_exact)), sum(request_bytes), sum(response_bytes),
       sum(duration_ns), coalesce(sum(duration_ns) FILTER (WHERE input_tokens = 0 AND output_tokens = 0), 0), 0
FROM warden.audit_calls WHERE outcome <> 'refused' AND model <> '' GROUP BY 1, 2, 3, 4, 5
"""


# As in 0011: a sidecar adds to its own sums, and sees no other's.
_OWN = """
ALTER TABLE warden.usage_hours ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY others ON warden.usage_hours USING (NOT warden.is_sidecar()) WITH CHECK (NOT warden.is_sidecar());
CREATE POLICY sidecars_see ON warden.usage_hours FOR SELECT USING (warden.is_sidecar() AND warden.is_own(log));
CREATE POLICY sidecars_add ON warden.usage_hours FOR INSERT WITH CHECK (warden.is_sidecar() AND warden.is_own(log));
CREATE POLICY sidecars_move ON warden.usage_hours FOR UPDATE
    USING (warden.is_sidecar() AND warden.is_own(log)) WITH CHECK (warden.is_sidecar() AND warden.is_own(log));
"""


def upgrade() -> None:
    op.execute("ALTER TABLE warden.audit_calls ADD COLUMN kv_byte_ms bigint NOT NULL DEFAULT 0")
    op.execute(_TABLE)
    op.execute("CREATE INDEX usage_hours_tenant ON warden.usage_hours (tenant, hour)")
    op.execute(_FILL)
    op.get_bind().exec_driver_sql(_OWN)


def downgrade() -> None:
    op.execute("DROP TABLE warden.usage_hours")
    op.execute("ALTER TABLE warden.audit_calls DROP COLUMN kv_byte_ms")

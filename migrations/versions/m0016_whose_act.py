"""Whose act it was, as the database knows them; who asked for an erasure and confirmed it; what sidecars keep."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# A login that was enrolled records its own acts only: of the kinds it is for, and under its own name.
_MAY = """
CREATE FUNCTION warden.may_record(kind text, detail jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE substr(session_user::text, 1, 10)
        WHEN 'warden_rd_' THEN kind = ANY(reads) WHEN 'warden_of_' THEN kind = ANY(reads || acts)
        WHEN 'warden_ky_' THEN kind ~ '^(key|token)\\.'
        ELSE true END
        AND (session_user::text !~ '^warden_(rd|of|ky)_' OR detail ->> 'login' = session_user::text)
    FROM (SELECT ARRAY['audit_search', 'audit_show', 'content_revealed', 'audit_export', 'audit_verify', 'holds_read',
                       'usage_read', 'policy_explain', 'policy_replay'] AS reads,
                 ARRAY['hold_placed', 'hold_released', 'erasure_requested', 'subject_erased', 'erasure_done',
                       'master_keys_given_up'] AS acts)
        AS of
$$;
DROP POLICY others ON warden.audit_events;
CREATE POLICY others ON warden.audit_events USING (NOT warden.is_sidecar()) WITH CHECK (
    NOT warden.is_sidecar() AND (log IS NULL OR current_user::text !~ '^warden_(rd|ky|of)_')
    AND (current_user::text !~ '^warden_(rd|ky|of)_' OR warden.may_record(kind, detail)));
CREATE INDEX audit_events_kind ON warden.audit_events (kind, at);
ALTER TABLE warden.erasures ADD COLUMN requested_login TEXT DEFAULT '' NOT NULL,
    ADD COLUMN confirmed_login TEXT DEFAULT '' NOT NULL, ADD COLUMN excludes JSONB;
ALTER TABLE warden.journal_cursors ADD COLUMN keeps JSONB;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_MAY)

"""Key scopes and history, what changed since when, and the deny-list of tokens."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# `changed` is the transaction that last changed what decides about a row. A reader whose last snapshot had the xmin m
# has missed at most the rows with changed >= m: every transaction before m had ended by then.
_KEYS = """
ALTER TABLE warden.api_keys
    ADD COLUMN methods text[],
    ADD COLUMN regions text[],
    ADD COLUMN networks text[],
    ADD COLUMN history jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN changed bigint NOT NULL DEFAULT 0;
CREATE INDEX api_keys_changed_at ON warden.api_keys (changed);
CREATE FUNCTION warden.stamp_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END $$;
CREATE TRIGGER api_keys_inserted BEFORE INSERT ON warden.api_keys
    FOR EACH ROW EXECUTE FUNCTION warden.stamp_changed();
CREATE TRIGGER api_keys_updated BEFORE UPDATE ON warden.api_keys FOR EACH ROW
    WHEN ((to_jsonb(OLD) - '{last_used_at,history,changed}'::text[])
        IS DISTINCT FROM (to_jsonb(NEW) - '{last_used_at,history,changed}'::text[]))
    EXECUTE FUNCTION warden.stamp_changed();
DROP TRIGGER api_keys_changed ON warden.api_keys;
CREATE TRIGGER api_keys_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF
    tenant, name, environment, secret_mac, expires_at, not_before, revoked_at, models, roles, rotated_mac,
    rotated_until, methods, regions, networks ON warden.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION warden.notify_api_keys();
"""

_DENIALS = """
CREATE TABLE warden.token_denials (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    issuer text,
    jti text,
    tenant text,
    issued_before timestamptz,
    until timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT token_denials_kind CHECK (
        (issuer IS NOT NULL AND jti IS NOT NULL AND tenant IS NULL AND issued_before IS NULL)
        OR (issuer IS NULL AND jti IS NULL AND tenant IS NOT NULL AND issued_before IS NOT NULL))
);
CREATE UNIQUE INDEX token_denials_token ON warden.token_denials (issuer, jti);
CREATE UNIQUE INDEX token_denials_tenant ON warden.token_denials (tenant);
CREATE TRIGGER token_denials_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON warden.token_denials
    FOR EACH STATEMENT EXECUTE FUNCTION warden.notify_api_keys();
"""


def upgrade() -> None:
    for statements in (_KEYS, _DENIALS):
        op.get_bind().exec_driver_sql(statements)

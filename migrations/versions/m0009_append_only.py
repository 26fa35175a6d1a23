"""The evidence is append-only: triggers that fire whatever the session says, on every table and partition of it."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TABLES = ("audit_events", "audit_leaves", "audit_checkpoints", "fleet_entries", "bundles")

_FUNCTION = """
CREATE FUNCTION warden.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%%.%% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
"""

_CALLS = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON warden.audit_calls
    FOR EACH ROW EXECUTE FUNCTION warden.refuse_change();
ALTER TABLE warden.audit_calls ENABLE ALWAYS TRIGGER append_only;
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON warden.audit_calls
    FOR EACH STATEMENT EXECUTE FUNCTION warden.refuse_change();
ALTER TABLE warden.audit_calls ENABLE ALWAYS TRIGGER no_truncate;
"""

# A trigger on TRUNCATE of the parent says nothing of its partitions; audit.store makes it for later ones.
_PARTITIONS = """
DO $$
DECLARE part regclass;
BEGIN
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'warden.audit_calls'::regclass LOOP
        EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON %%s FOR EACH STATEMENT'
                       ' EXECUTE FUNCTION warden.refuse_change()', part);
        EXECUTE format('ALTER TABLE %%s ENABLE ALWAYS TRIGGER no_truncate', part);
    END LOOP;
END $$;
"""


def upgrade() -> None:
    bind = op.get_bind()
    for statements in (_FUNCTION, _CALLS, _PARTITIONS):
        bind.exec_driver_sql(statements)
    for name in _TABLES:
        bind.exec_driver_sql(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON warden.{name}"
            " FOR EACH STATEMENT EXECUTE FUNCTION warden.refuse_change();"
            f"ALTER TABLE warden.{name} ENABLE ALWAYS TRIGGER append_only"
        )

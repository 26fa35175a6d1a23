"""Least roles: a sidecar's writes its own log only, whatever its DSN's thief tries; partitions come from a function."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# A sidecar's role is named after it (audit.roles), so what it may write follows from its name: no table is asked.
# COPY does not work under row-level security, and audit_calls is written by COPY: there a CHECK says the same, and a
# sidecar may not read it at all.
_OWN = """
CREATE TABLE warden.database_roles (
    role TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    made_at timestamptz NOT NULL,
    made_by TEXT DEFAULT '' NOT NULL,
    revoked_at timestamptz,
    PRIMARY KEY (role)
);
CREATE FUNCTION warden.is_sidecar() RETURNS boolean LANGUAGE sql STABLE AS
    $$ SELECT starts_with(current_user::text, 'warden_sc_') $$;
CREATE FUNCTION warden.is_own(log text) RETURNS boolean LANGUAGE sql STABLE AS
    $$ SELECT log = substr(current_user::text, 11) || '.' || right(log, 16) $$;
ALTER TABLE warden.audit_calls ADD CONSTRAINT own_log CHECK (
    NOT starts_with(current_user::text, 'warden_sc_')
    OR log = substr(current_user::text, 11) || '.' || right(log, 16));
ALTER TABLE warden.journal_cursors DROP CONSTRAINT journal_cursors_pkey;
ALTER TABLE warden.journal_cursors ADD PRIMARY KEY (journal, log);
"""

# By table: what a sidecar may see, and what it may write.
_RULES = {
    "audit_logs": ("true", "warden.is_own(log) OR log = 'fleet'"),
    "journal_cursors": ("true", "warden.is_own(log)"),
    "audit_leaves": ("log = 'fleet'", "warden.is_own(log) OR log = 'fleet'"),
    "audit_checkpoints": ("log = 'fleet'", "warden.is_own(log) OR log = 'fleet'"),
    "audit_events": ("log IS NULL", "warden.is_own(log)"),
}

# Everybody else writes what officers do, and no log.
_OTHERS = "NOT warden.is_sidecar()"
_ACTS = "NOT warden.is_sidecar() AND (log IS NULL OR current_user::text !~ '^warden_(rd|ky|of)_')"

_GROWS = """
CREATE FUNCTION warden.only_grow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' OR NEW.log <> OLD.log OR NEW.sidecar <> OLD.sidecar OR NEW.born_at <> OLD.born_at
        OR NEW.next_position < OLD.next_position THEN
        RAISE EXCEPTION 'warden.audit_logs only grows' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE ON warden.audit_logs
    FOR EACH ROW EXECUTE FUNCTION warden.only_grow();
ALTER TABLE warden.audit_logs ENABLE ALWAYS TRIGGER only_grows;
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON warden.audit_logs
    FOR EACH STATEMENT EXECUTE FUNCTION warden.refuse_change();
ALTER TABLE warden.audit_logs ENABLE ALWAYS TRIGGER no_truncate;
"""

# Run as the tables' owner, so that who writes need not be it. Attaching leaves readers and writers alone.
_PARTITIONS = """
CREATE FUNCTION warden.make_partition(parent text, day date) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE name text := parent || '_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF parent NOT IN ('audit_calls', 'audit_terms') THEN
        RAISE EXCEPTION '%% has no partitions', parent USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('warden.partitions', 0));
    IF EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = ('warden.' || parent)::regclass AND c.relname = name) THEN
        RETURN;
    END IF;
    IF (SELECT count(*) FROM pg_inherits WHERE inhparent = ('warden.' || parent)::regclass) >= 10000 THEN
        RAISE EXCEPTION '%% has 10000 partitions, and gets no more', parent USING ERRCODE = 'program_limit_exceeded';
    END IF;
    EXECUTE format('CREATE TABLE warden.%%I (LIKE warden.%%I'
                   ' INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)', name, parent);
    EXECUTE format('ALTER TABLE warden.%%I ATTACH PARTITION warden.%%I FOR VALUES FROM (%%L) TO (%%L)',
                   parent, name, day::timestamptz, (day + 1)::timestamptz);
    IF parent = 'audit_calls' THEN
        -- Row triggers come with the parent; one on TRUNCATE does not.
        EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON warden.%%I'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION warden.refuse_change()', name);
        EXECUTE format('ALTER TABLE warden.%%I ENABLE ALWAYS TRIGGER no_truncate', name);
    END IF;
END $$;
REVOKE ALL ON FUNCTION warden.make_partition(text, date) FROM PUBLIC;
"""

# What a restored database lost of the officers' acts is put back from the fleet's log, and from nowhere else.
_RESTORE = """
CREATE FUNCTION warden.restore_events(since bigint) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO warden.audit_events (id, at, kind, actor, reason, detail, sanitised)
    SELECT v.id, v.at, v.kind, v.actor, v.reason, v.detail, v.sanitised FROM warden.fleet_entries f,
        LATERAL jsonb_populate_record(NULL::warden.audit_events, f.body::jsonb -> 'values') v
    WHERE f.position >= since AND f.event IS NOT NULL
    ON CONFLICT DO NOTHING
$$;
REVOKE ALL ON FUNCTION warden.restore_events(bigint) FROM PUBLIC;
"""

# Which of these data keys still open something: asked before words are indexed under them.
_LIVING = """
CREATE FUNCTION warden.living_keys(ids text[]) RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS
    $$ SELECT id FROM warden.data_keys WHERE id = ANY(ids) AND wrapped IS NOT NULL $$;
REVOKE ALL ON FUNCTION warden.living_keys(text[]) FROM PUBLIC;
"""


def upgrade() -> None:
    bind = op.get_bind()
    for statements in (_OWN, _GROWS, _PARTITIONS, _RESTORE, _LIVING):
        bind.exec_driver_sql(statements)
    for table, (sees, writes) in _RULES.items():
        others = _ACTS if table == "audit_events" else _OTHERS
        bind.exec_driver_sql(
            f"ALTER TABLE warden.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
            f"CREATE POLICY others ON warden.{table} USING ({_OTHERS}) WITH CHECK ({others});"
            f"CREATE POLICY sidecars_see ON warden.{table} FOR SELECT USING (warden.is_sidecar() AND ({sees}));"
            f"CREATE POLICY sidecars_add ON warden.{table} FOR INSERT WITH CHECK (warden.is_sidecar() AND ({writes}));"
            f"CREATE POLICY sidecars_move ON warden.{table} FOR UPDATE"
            f" USING (warden.is_sidecar() AND ({writes})) WITH CHECK (warden.is_sidecar() AND ({writes}))"
        )

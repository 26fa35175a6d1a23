"""Whether the database holds what is sealed under a tenant's master keys: asked before a tenant gets its first one."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_VERSIONS = """
CREATE FUNCTION warden.key_versions(whose text) RETURNS SETOF integer LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS
    $$ SELECT DISTINCT version FROM warden.data_keys WHERE tenant = whose AND wrapped IS NOT NULL $$;
REVOKE ALL ON FUNCTION warden.key_versions(text) FROM PUBLIC;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_VERSIONS)

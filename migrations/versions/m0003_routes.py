"""Which version the sidecar picked for a call, and why; what the caller called the model."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# A constant default costs no rewrite of the table.
_ROUTES = """
ALTER TABLE warden.audit_calls
    ADD COLUMN alias text NOT NULL DEFAULT '',
    ADD COLUMN routed_version text NOT NULL DEFAULT '',
    ADD COLUMN route text NOT NULL DEFAULT '',
    ADD COLUMN route_why text NOT NULL DEFAULT '';
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_ROUTES)

"""What a call was decided from, beside the columns there are: roles, models, data classes, evidence of place."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE warden.audit_calls ADD COLUMN decision jsonb NOT NULL DEFAULT '{}'")

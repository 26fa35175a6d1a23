"""What was taken out of a record before it was stored, by class."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE warden.audit_calls ADD COLUMN redacted jsonb NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    op.execute("ALTER TABLE warden.audit_calls DROP COLUMN redacted")

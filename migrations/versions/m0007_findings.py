"""What guards found in a call's prompt and output."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE warden.audit_calls ADD COLUMN findings jsonb NOT NULL DEFAULT '[]'")


def downgrade() -> None:
    op.execute("ALTER TABLE warden.audit_calls DROP COLUMN findings")

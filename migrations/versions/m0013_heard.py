"""What an erasure must know: which keys are of after it, and whether a sidecar may still hold something of before."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql("ALTER TABLE warden.erasures ADD COLUMN renewed INTEGER")
    bind.exec_driver_sql("ALTER TABLE warden.journal_cursors ADD COLUMN closed_at timestamptz")

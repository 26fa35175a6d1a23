"""What Triton said where its caller may not read it: an exception may quote others' input, so it is sealed."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


_ERRORS = """
ALTER TABLE warden.audit_calls
    ADD COLUMN error_sealed bytea,
    ADD COLUMN error_bytes bigint NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_ERRORS)

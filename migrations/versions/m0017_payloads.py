"""What a record says of tensors whose bytes are kept in an object store, and the salt of their digests."""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_COLUMNS = """
ALTER TABLE warden.erasures ADD COLUMN objects bigint NOT NULL DEFAULT 0;
ALTER TABLE warden.audit_calls ADD COLUMN payloads jsonb NOT NULL DEFAULT '{}', ADD COLUMN payloads_sealed bytea;
CREATE INDEX audit_calls_payloads ON warden.audit_calls (log, position) WHERE payloads <> '{}'::jsonb;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_COLUMNS)

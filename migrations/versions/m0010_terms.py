"""What finds a call by its words, a partition a day like the calls themselves; nothing wrote the table before."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TERMS = """
DROP TABLE warden.audit_terms;
CREATE TABLE warden.audit_terms (
    started_at timestamptz NOT NULL,
    call_id TEXT NOT NULL,
    data_key TEXT NOT NULL,
    terms BIGINT[] NOT NULL,
    PRIMARY KEY (started_at, call_id)
) PARTITION BY RANGE (started_at);
CREATE INDEX audit_terms_terms ON warden.audit_terms USING gin (terms);
CREATE INDEX audit_terms_key ON warden.audit_terms (data_key);
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_TERMS)

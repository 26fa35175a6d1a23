"""Alembic's entry: runs the migrations on the connection it is handed (sidecar.runtime.migrate makes it)."""

from __future__ import annotations

import re
from typing import Any

from alembic import context

from audit.tables import SCHEMA
from audit.tables import metadata as audit_tables
from sidecar.identity.store import METADATA as IDENTITY_TABLES

_PARTITION = re.compile(r"^audit_(?:calls|terms)_\d{8}$")


def include_name(name: str | None, kind: str, _parents: Any) -> bool:
    """Only our schema, and no partition: those come and go by the day."""
    if kind == "schema":
        return name == SCHEMA
    return not (kind == "table" and name is not None and _PARTITION.match(name))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=[audit_tables, IDENTITY_TABLES],
    version_table_schema=SCHEMA,
    include_schemas=True,
    include_name=include_name,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()

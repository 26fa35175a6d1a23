"""What every integration test may ask for."""

from __future__ import annotations

from tests.support.postgres import dsn, postgres
from tests.support.stack import otlp, triton

__all__ = ["dsn", "otlp", "postgres", "triton"]

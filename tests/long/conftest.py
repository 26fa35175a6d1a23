"""What the long tests share with the conformance suite."""

from __future__ import annotations

from tests.integration.conftest import dsn, otlp, postgres, triton
from tests.integration.wire.conftest import bundle, own, wire

__all__ = ["bundle", "dsn", "otlp", "own", "postgres", "triton", "wire"]

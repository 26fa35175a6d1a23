"""Whole sidecars that share, beside quotas alone."""

from __future__ import annotations

from tests.integration.wire.conftest import bundle, own, wire

__all__ = ["bundle", "own", "wire"]

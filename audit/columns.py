"""The columns of a call's and of an event's record, in the order of their leaves. New ones go at the end."""

from __future__ import annotations

from typing import Final

__all__ = ["CALL_COLUMNS", "EVENT_COLUMNS"]

CALL_COLUMNS: Final = (
    "started_at", "call_id", "sidecar", "log", "position", "journal", "first_sequence", "sequence", "region",
    "jurisdiction", "decided_at", "tenant", "principal", "principal_kind", "issuer", "key_id",
    "method", "model", "requested_version", "data_class", "rule", "bundle", "level", "retention_days",
    "trace_id", "span_id", "parent_id", "sampled", "tensors", "request_bytes",
    "requested_tokens", "data_key", "identity_sealed", "conversation_mac",
    "prompt_sealed", "prompt_bytes", "prompt_digest", "prompt_truncated", "would_refuse",
    "alias", "routed_version", "route", "route_why",
    "decision",
    "settled_at", "outcome", "status", "reason", "detail", "internal",
    "output_sealed", "output_bytes", "output_digest", "output_truncated", "input_tokens", "output_tokens",
    "input_exact", "output_exact", "responses", "response_bytes", "ttft_ns", "duration_ns", "model_version",
    "model_digest", "error_sealed", "error_bytes", "findings", "redacted", "sanitised", "evidence_sealed",
    "kv_byte_ms", "payloads", "payloads_sealed",
)  # fmt: skip

EVENT_COLUMNS: Final = (
    "id", "at", "kind", "actor", "reason", "detail", "sidecar", "log", "position", "journal", "sequence", "region",
    "jurisdiction", "sanitised",
)  # fmt: skip

"""Turns joined records into the values of their database columns: texts cleaned, content sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from audit.assemble import CallRecord, Cleaner, EventRecord, evidence, moment
from audit.content import ContentSealer
from audit.record import Content, Settled

__all__ = ["CALL_COLUMNS", "EVENT_COLUMNS", "CallRow", "EventRow", "call_row", "event_row", "officer_row"]

CALL_COLUMNS: Final = (
    "started_at", "call_id", "sidecar", "journal", "first_sequence", "sequence", "region", "jurisdiction",
    "decided_at", "tenant", "principal", "principal_kind", "issuer", "key_id", "subject", "conversation",
    "method", "model", "requested_version", "request_id", "data_class", "rule", "bundle", "level", "retention_days",
    "peer", "trace_id", "span_id", "parent_id", "sampled", "parameters", "tensors", "request_bytes",
    "requested_tokens", "prompt_sealed", "prompt_bytes", "prompt_sha256", "prompt_truncated", "would_refuse",
    "alias", "routed_version", "route", "route_why",
    "decision",
    "settled_at", "outcome", "status", "reason", "detail", "internal",
    "output_sealed", "output_bytes", "output_sha256", "output_truncated", "input_tokens", "output_tokens",
    "input_exact", "output_exact", "responses", "response_bytes", "ttft_ns", "duration_ns", "model_version",
    "model_digest", "error_sealed", "error_bytes",
    "findings", "redacted", "sanitised", "evidence",
)  # fmt: skip

_NONE: Final[Mapping[str, int]] = {}

EVENT_COLUMNS: Final = (
    "id", "at", "kind", "actor", "reason", "detail", "sidecar", "journal", "sequence", "region", "jurisdiction",
    "sanitised",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallRow:
    """``values`` in the order of CALL_COLUMNS, as binary COPY takes them; ``nbytes`` is about what the row takes."""

    sequence: int
    started: datetime
    call_id: str
    values: tuple[Any, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class EventRow:
    """``values`` in the order of EVENT_COLUMNS; ``sequence`` is None for what an officer does."""

    sequence: int | None
    values: tuple[Any, ...]


def call_row(record: CallRecord, sealer: ContentSealer, redacted: Mapping[str, int] = _NONE) -> CallRow:
    """``redacted``: identifiers taken out of it before, by class.

    Raises OverflowError for a time that no calendar has, or a number that no column holds.
    """
    clean = Cleaner()
    started = record.started
    call_id = clean.index(record.facts.call_id)
    tenant = clean.index(record.facts.tenant)
    seal = partial(sealer.seal, tenant=tenant, day=started.date(), call_id=call_id)
    prompt = record.facts.prompt
    prompt_sealed = seal(prompt.parts, column="prompt") if prompt.parts is not None else None
    keep_output = record.facts.level == "full" and isinstance(record.end, Settled)
    output_sealed = seal(record.output, column="output") if keep_output else None
    quoted = record.end.quoted if isinstance(record.end, Settled) else Content()
    error_sealed = seal(quoted.parts, column="error") if quoted.parts is not None else None
    values = (
        *_call_part(record, clean, started, call_id, tenant),
        prompt_sealed,
        clean.number(prompt.nbytes),
        prompt.sha256 or None,
        _cut(prompt),
        clean.text(record.facts.would_refuse),
        clean.index(record.facts.alias),
        clean.text(record.facts.routed_version),
        clean.text(record.facts.route),
        clean.text(record.facts.route_why),
        _jsonb(clean.json(_decision(record))),
        *_end_part(record, clean, output_sealed),
        error_sealed,
        clean.number(quoted.nbytes),
    )
    altered = clean.changed
    kept = evidence(record) if altered else None
    nbytes = 800 + sum(map(len, filter(None, (prompt_sealed, output_sealed, error_sealed))))
    found = record.facts.findings + (record.end.findings if isinstance(record.end, Settled) else ())
    added = (_jsonb(msgspec.json.encode(found)), _jsonb(msgspec.json.encode(dict(redacted))))
    return CallRow(record.sequence, started, call_id, (*values, *added, altered, kept), nbytes)


def _call_part(record: CallRecord, clean: Cleaner, started: datetime, call_id: str, tenant: str) -> tuple[Any, ...]:
    facts, place = record.facts, record.place
    tensors = [[clean.text(t.name), clean.text(t.datatype), t.shape, t.nbytes] for t in facts.tensors]
    return (
        started,
        call_id,
        place.sidecar,
        place.journal,
        record.first,
        record.sequence,
        place.region,
        place.jurisdiction,
        moment(facts.decided_ns),
        tenant,
        clean.index(facts.principal),
        facts.principal_kind,
        clean.text(facts.issuer),
        clean.index(facts.key_id),
        clean.index(facts.subject),
        clean.index(facts.conversation),
        clean.text(facts.method),
        clean.index(facts.model),
        clean.text(facts.version),
        clean.text(facts.request_id),
        clean.text(facts.data_class),
        clean.text(facts.rule),
        clean.text(facts.bundle),
        facts.level,
        None if facts.retention_days is None else _fitting(facts.retention_days, 32),
        clean.text(facts.peer),
        clean.index(facts.trace_id),
        clean.text(facts.span_id),
        clean.text(facts.parent_id),
        facts.sampled,
        _jsonb(clean.json(facts.parameters)),
        _jsonb(msgspec.json.encode(tensors)),
        clean.number(facts.request_bytes),
        clean.number(facts.requested_tokens),
    )


def _decision(record: CallRecord) -> dict[str, Any]:
    """What a decision was made from beside the columns, so that it can be made again, under this bundle or another."""
    facts, place = record.facts, record.place
    return {
        "roles": facts.roles,
        "models": facts.narrowed,
        "classes": facts.classes,
        "would_rule": facts.would_rule,
        "evidence": place.evidence,
        "telemetry": place.telemetry,
    }


def _end_part(record: CallRecord, clean: Cleaner, output_sealed: bytes | None) -> tuple[Any, ...]:
    """From ``settled_at`` to ``model_digest``."""
    end, facts = record.end, record.facts
    if not isinstance(end, Settled):
        spent = max(0, facts.decided_ns - facts.started_ns)
        refusal = (
            None,
            "refused",
            _fitting(end.status, 16),
            clean.index(end.reason),
            clean.text(end.detail),
            clean.text(end.internal),
        )
        return (
            *refusal,
            None,
            0,
            None,
            False,
            clean.number(facts.prompt_tokens),
            0,
            False,
            False,
            0,
            0,
            None,
            spent,
            "",
            None,
        )
    return (
        moment(end.at_ns),
        clean.text(end.outcome),
        _fitting(end.status, 16),
        clean.index(end.reason),
        "",
        clean.text(end.internal),
        output_sealed,
        clean.number(end.output_bytes),
        end.output_sha256 or None,
        output_sealed is not None and sum(map(len, record.output)) < end.output_bytes,
        clean.number(end.input_tokens),
        clean.number(end.output_tokens),
        end.input_exact,
        end.output_exact,
        clean.number(end.responses),
        clean.number(end.response_bytes),
        None if end.first_response_ns is None else clean.number(end.first_response_ns),
        clean.number(end.duration_ns),
        clean.text(end.model_version),
        clean.text(end.model_digest) or None,
    )


def _jsonb(text: bytes) -> bytes:
    """As binary COPY takes it (jsonb_recv): version 1, then the text."""
    return b"\x01" + text


def _fitting(value: int, bits: int) -> int:
    """Raises OverflowError: psycopg's binary dumpers would wrap a number that is too large for its column."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise OverflowError(f"{value} does not fit {bits} bits")
    return value


def _cut(content: Content) -> bool:
    return content.parts is not None and sum(map(len, content.parts)) < content.nbytes


def event_row(record: EventRecord) -> EventRow:
    """Raises OverflowError for a time that no calendar has."""
    clean, event, place = Cleaner(), record.event, record.place
    values = (
        clean.index(event.id),
        moment(event.at_ns),
        clean.index(event.kind),
        clean.index(event.actor),
        "",
        _jsonb(clean.json(event.detail)),
        place.sidecar,
        place.journal,
        record.sequence,
        place.region,
        place.jurisdiction,
    )
    return EventRow(record.sequence, (*values, clean.changed))


def officer_row(event_id: str, at: datetime, kind: str, actor: str, reason: str, detail: dict[str, Any]) -> EventRow:
    """What somebody did by command or console; it belongs to no sidecar's log. ``detail`` is JSON without NUL."""
    clean = Cleaner()
    encoded = msgspec.json.encode(detail).replace(b"\\u0000", b"\\ufffd")
    values = (
        clean.index(event_id),
        at.astimezone(UTC),
        clean.index(kind),
        clean.index(actor),
        clean.text(reason),
        _jsonb(encoded),
        None, None, None, None, None,
    )  # fmt: skip
    return EventRow(None, (*values, clean.changed or b"\\ufffd" in encoded))

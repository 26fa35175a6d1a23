"""Turns joined records into the values of their database columns and the leaf of their log; content sealed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from audit.assemble import CallRecord, Cleaner, EventRecord, evidence, moment
from audit.fitting import fitted
from audit.leaf import LeafShape, canonical_json
from audit.merkle import leaf_hash
from audit.record import CallFacts, Content, Settled
from audit.vault import RecordSealer, Vault
from audit.words import words_of
from sidecar.core.model import Finding

__all__ = [
    "CALL_COLUMNS", "EVENT_COLUMNS", "CallRow", "EventRow", "Identity", "call_row", "event_row", "leaf_of", "named_by",
    "officer_row",
]  # fmt: skip

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
    "kv_byte_ms",
)  # fmt: skip

_ENCODER: Final = msgspec.msgpack.Encoder()
_JSON: Final = msgspec.json.Encoder()  # of arrays of texts and integers, for which its text is the canonical one
_NONE: Final[Mapping[str, int]] = {}

EVENT_COLUMNS: Final = (
    "id", "at", "kind", "actor", "reason", "detail", "sidecar", "log", "position", "journal", "sequence", "region",
    "jurisdiction", "sanitised",
)  # fmt: skip


class CallRow(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """``values`` in the order of CALL_COLUMNS, JSON as its canonical text; ``nbytes`` is about what the row takes.

    ``terms`` are no part of the evidence: what finds it by its words (``audit.vault.terms``), where it may be so found.
    """

    position: int
    sequence: int
    started: datetime
    call_id: str
    values: list[Any]
    nbytes: int
    terms: list[int] = []

    def __post_init__(self) -> None:
        """One sealed before a column was added, at the end, has nothing there, and its leaf is what it was."""
        self.values.extend([0] * (len(CALL_COLUMNS) - len(self.values)))


class EventRow(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """``values`` in the order of EVENT_COLUMNS; ``position`` and ``sequence`` are None for what an officer does."""

    position: int | None
    sequence: int | None
    values: list[Any]


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What tells who somebody is, or is a tenant's own text: sealed with the record, gone when its key goes."""

    subject: str = ""
    conversation: str = ""
    principal: str = ""
    peer: str = ""
    request_id: str = ""
    parameters: dict[str, bool | int | float | str] = {}
    actor: str = ""


def named_by(facts: CallFacts) -> str:
    """Whose data this is ("": nobody is named): whom the tenant acts for, else who asked with a token."""
    return facts.subject or (facts.principal if facts.principal_kind == "jwt" else "")


_SEALED: Final = tuple(place for place, name in enumerate(CALL_COLUMNS) if name.endswith("_sealed"))
CALL_LEAF: Final = LeafShape("call", CALL_COLUMNS)
EVENT_LEAF: Final = LeafShape("event", EVENT_COLUMNS)


def leaf_of(row: CallRow | EventRow) -> bytes:
    """The leaf's hash."""
    return leaf_hash((CALL_LEAF if isinstance(row, CallRow) else EVENT_LEAF).data(row.values))


def call_row(record: CallRecord, vault: Vault, log: str, position: int, redacted: Mapping[str, int] = _NONE) -> CallRow:
    """``redacted``: identifiers taken out of it before, by class.

    Raises OverflowError for a time that no calendar has, or a number that no column holds; KeyFaultError.
    """
    given, place = record.facts, record.place
    subject = named_by(given)
    named = given.principal != subject  # else whose it is, is sealed
    told, changed = fitted(record, names=named)
    facts = told.facts
    started = moment(given.started_ns)
    sealer = vault.sealer(
        tenant=facts.tenant, days=facts.retention_days, day=started.date(), subject=subject, call_id=facts.call_id
    )
    prompt_sealed, prompt_digest = _content(sealer, "prompt", given.prompt.sha256, given.prompt.parts)
    identity = Identity(
        given.subject,
        given.conversation,
        given.principal,
        given.peer,
        given.request_id,
        given.parameters,
        given.actor,
    )
    decision, unlike = _decision(record)
    end, error, findings = _end_part(told, sealer)
    changed = changed or unlike
    values = [
        started, facts.call_id, place.sidecar, log, position, place.journal, record.first, record.sequence,
        place.region, place.jurisdiction, moment(facts.decided_ns), facts.tenant, facts.principal if named else "",
        facts.principal_kind, facts.issuer, facts.key_id, facts.method, facts.model, facts.version, facts.data_class,
        facts.rule, facts.bundle, facts.level,
        None if facts.retention_days is None else _fitting(facts.retention_days, 32),
        facts.trace_id, facts.span_id, facts.parent_id, facts.sampled,
        _JSON.encode(facts.tensors).decode() if facts.tensors else "[]",
        facts.request_bytes, facts.requested_tokens,
        sealer.data_key,
        sealer.seal("identity", _ENCODER.encode(identity)),
        sealer.lookup("conversation", given.conversation) if given.conversation else None,
        prompt_sealed, facts.prompt.nbytes, prompt_digest, _cut(given.prompt),
        facts.would_refuse, facts.alias, facts.routed_version, facts.route, facts.route_why, decision,
        *end, *error, findings,
        canonical_json(dict(redacted)) if redacted else "{}",
        changed,
        sealer.seal("evidence", evidence(record)) if changed else None,
        told.end.kv_byte_ms if isinstance(told.end, Settled) else 0,
    ]  # fmt: skip
    nbytes = 1000 + sum(len(values[place]) for place in _SEALED if values[place] is not None)
    terms = _terms(record, sealer) if given.searchable else []
    return CallRow(position, record.sequence, started, facts.call_id, values, nbytes + 8 * len(terms), terms)


def _terms(record: CallRecord, sealer: RecordSealer) -> list[int]:
    """Of the texts that are kept, as they are kept: what was redacted finds nothing."""
    quoted = record.end.quoted if isinstance(record.end, Settled) else Content()
    output = b"".join(record.output) if record.facts.level == "full" else b""
    texts = [*(record.facts.prompt.parts or ()), output, *(quoted.parts or ())]
    words, cut = words_of(text.decode("utf-8", "replace") for text in texts)
    return sealer.terms(words, cut=cut)


def _content(
    sealer: RecordSealer, column: str, digest: bytes, parts: list[bytes] | None
) -> tuple[bytes | None, bytes | None]:
    """Sealed and committed to; neither where there was no content at all."""
    return sealer.content(column, digest, parts) if digest or parts is not None else (None, None)


def _decision(record: CallRecord) -> tuple[str, bool]:
    """What a decision was made from beside the columns, so that it can be made again, under this bundle or another.

    And whether any of it had to be altered.
    """
    facts, place = record.facts, record.place
    models = None if facts.narrowed is None else tuple(facts.narrowed)
    return _decided(tuple(facts.roles), models, tuple(facts.classes), facts.would_rule, place.evidence, place.telemetry)


@lru_cache(maxsize=4096)  # a tenant's calls are decided from the same few facts, one after another
def _decided(
    roles: tuple[str, ...], models: tuple[str, ...] | None, classes: tuple[str, ...], rule: str, *place: str
) -> tuple[str, bool]:
    clean = Cleaner()
    evidence, telemetry = place
    told: dict[str, Any] = {
        "roles": list(roles), "models": None if models is None else list(models), "classes": list(classes),
        "would_rule": rule, "evidence": evidence, "telemetry": telemetry,
    }  # fmt: skip
    return clean.json(told), clean.changed


def _end_part(told: CallRecord, sealer: RecordSealer) -> tuple[tuple[Any, ...], tuple[bytes | None, int], str]:
    """From ``settled_at`` to ``model_digest``; the error's two columns; the findings."""
    end, facts = told.end, told.facts
    if not isinstance(end, Settled):
        spent = max(0, facts.decided_ns - facts.started_ns)
        ended: tuple[Any, ...]
        ended = (None, "refused", _fitting(end.status, 16), end.reason, end.detail, end.internal, None, 0, None, False,
                 facts.prompt_tokens, 0, False, False, 0, 0, None, spent, "", None)  # fmt: skip
        return ended, (None, 0), _findings(facts.findings)
    kept = told.output if facts.level == "full" else None
    sealed, digest = _content(sealer, "output", end.output_sha256, kept)
    ended = (
        moment(end.at_ns), end.outcome, _fitting(end.status, 16), end.reason, "", end.internal, sealed,
        end.output_bytes, digest, kept is not None and sum(map(len, kept)) < end.output_bytes, end.input_tokens,
        end.output_tokens, end.input_exact, end.output_exact, end.responses, end.response_bytes,
        end.first_response_ns, end.duration_ns, end.model_version, end.model_digest or None,
    )  # fmt: skip
    quoted = end.quoted
    error = None if quoted.parts is None else sealer.seal("error", _ENCODER.encode(quoted.parts))
    return ended, (error, quoted.nbytes), _findings(facts.findings + end.findings)


def _findings(found: tuple[Finding, ...]) -> str:
    return canonical_json([msgspec.structs.astuple(each) for each in found]) if found else "[]"


def _fitting(value: int, bits: int) -> int:
    """Raises OverflowError: psycopg's binary dumpers would wrap a number that is too large for its column."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise OverflowError(f"{value} does not fit {bits} bits")
    return value


def _cut(content: Content) -> bool:
    return content.parts is not None and sum(map(len, content.parts)) < content.nbytes


def event_row(record: EventRecord, log: str, position: int) -> EventRow:
    """Raises OverflowError for a time that no calendar has."""
    clean, event, place = Cleaner(), record.event, record.place
    values = [
        clean.index(event.id),
        moment(event.at_ns),
        clean.index(event.kind),
        clean.index(event.actor),
        "",
        clean.json(event.detail),
        place.sidecar,
        log,
        position,
        place.journal,
        record.sequence,
        place.region,
        place.jurisdiction,
    ]
    return EventRow(position, record.sequence, [*values, clean.changed])


def officer_row(event_id: str, at: datetime, kind: str, actor: str, reason: str, detail: dict[str, Any]) -> EventRow:
    """What somebody did by command or console; the fleet log takes it up. ``detail`` is JSON without NaN."""
    clean = Cleaner()
    encoded = canonical_json(detail).replace("\\u0000", "\\ufffd")
    values = [
        clean.index(event_id), at.astimezone(UTC), clean.index(kind), clean.index(actor), clean.text(reason), encoded,
        None, None, None, None, None, None, None,
    ]  # fmt: skip
    return EventRow(None, None, [*values, clean.changed or "\\ufffd" in encoded])

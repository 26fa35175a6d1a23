"""Turns joined records into the values of their database columns and the leaf of their log; content sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from audit.assemble import CallRecord, Cleaner, EventRecord, evidence, moment
from audit.columns import CALL_COLUMNS, EVENT_COLUMNS
from audit.fitting import fitted
from audit.leaf import LeafShape, canonical_json
from audit.merkle import leaf_hash
from audit.packing import UnfitError, pack, pack_any, surely_fits, unpack
from audit.payload import NO_PAYLOAD, Payload, SealedObject, sealed_payload
from audit.record import CallFacts, Content, Settled
from audit.vault import RecordSealer, Vault
from audit.words import words_of
from sidecar.core.model import Finding

__all__ = [
    "CALL_COLUMNS", "EVENT_COLUMNS", "CallRow", "EventRow", "Identity", "Used", "call_row", "event_row", "leaf_of",
    "named_by", "officer_row", "used_of",
]  # fmt: skip

_ENCODER: Final = msgspec.msgpack.Encoder()
_JSON: Final = msgspec.json.Encoder()  # of arrays of texts and integers, for which its text is the canonical one
_NONE: Final[Mapping[str, int]] = {}
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_1970: Final = date(1970, 1, 1).toordinal()
_SOONEST: Final = (1 - _1970) * _DAY_US  # µs since the UNIX epoch: what Python's calendar has
_LATEST: Final = (date.max.toordinal() + 1 - _1970) * _DAY_US

Used = tuple[int, str, str, str, tuple[int, ...]]
"""(hours since the UNIX epoch, tenant, model, key's id, what it used in the order of audit.rollup.SUMS but calls)."""


class CallRow(msgspec.Struct, frozen=True, array_like=True, tag="packed"):
    """``packed``: its columns as a binary COPY takes them (audit.packing). ``started``: µs since the UNIX epoch.

    ``terms`` are no part of the evidence: what finds it by its words (``audit.vault.terms``), where it may be so found.
    """

    position: int
    sequence: int
    started: int
    call_id: str
    tenant: str
    data_key: str
    packed: bytes
    used: Used | None
    terms: list[int] = []
    objects: list[SealedObject] = []  # what it names in the object store

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        return len(self.packed) + 8 * len(self.terms) + sum(len(each.data) for each in self.objects)

    @property
    def values(self) -> list[Any]:
        """In the order of CALL_COLUMNS, but those that were added since it was sealed; JSON as its canonical text."""
        return unpack(self.packed)


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


CALL_LEAF: Final = LeafShape("call", CALL_COLUMNS)
EVENT_LEAF: Final = LeafShape("event", EVENT_COLUMNS)


def leaf_of(row: CallRow | EventRow) -> bytes:
    """The leaf's hash."""
    if isinstance(row, EventRow):
        return leaf_hash(EVENT_LEAF.data(row.values))
    values = row.values
    return leaf_hash(CALL_LEAF.data([*values, *[None] * (len(CALL_COLUMNS) - len(values))]))


def call_row(
    record: CallRecord, vault: Vault, log: str, position: int, redacted: Mapping[str, int] = _NONE,
    payload: Payload = NO_PAYLOAD,
) -> tuple[CallRow, bytes]:  # fmt: skip
    """And its leaf's hash. ``redacted``: identifiers taken out of it before, by class; ``payload``: its tensors.

    Raises OverflowError for a time that no calendar has, or a number that no column holds; KeyFaultError.
    """
    decision, unlike = _decision(record)
    making = _Making(record, vault, log, position, decision, redacted)
    objects: list[SealedObject] = []
    found = None if unlike or payload.tensors else _at_once(making)
    if found is None:
        facts = record.facts
        told, changed = fitted(record, names=facts.principal != named_by(facts))
        sealer = _sealer(told, making)
        clean, day = Cleaner(), _day(_calendar(facts.started_ns) // _DAY_US)
        payloads, salt, objects = sealed_payload(payload, sealer, day=day, call_id=told.facts.call_id, clean=clean)
        altered = changed or unlike or clean.changed
        values = _values(told, making, sealer, payloads, salt, altered=altered)
        found = values, *pack_any(values), sealer
    values, packed, leaf, sealer = found
    terms = _terms(record, sealer) if record.facts.searchable else []
    started, call_id, tenant, key = values[0], values[1], values[_TENANT], sealer.data_key
    used = used_of(values, started)
    return CallRow(position, record.sequence, started, call_id, tenant, key, packed, used, terms, objects), leaf


class _Making(msgspec.Struct, frozen=True, gc=False):
    """What a row is made of beside the record as its columns take it."""

    given: CallRecord  # as it came: what is sealed is of this
    vault: Vault
    log: str
    position: int
    decision: str
    redacted: Mapping[str, int]


def _at_once(making: _Making) -> tuple[tuple[Any, ...], bytes, bytes, RecordSealer] | None:
    """The values, the row and its leaf's hash, of a record that is surely fit for the columns as it came."""
    record = making.given
    if not surely_fits(record.facts.tenant + record.facts.call_id):  # what its key is made for
        return None
    try:
        sealer = _sealer(record, making)
        values = _values(record, making, sealer, altered=False)
        return values, *pack(values), sealer
    except (UnfitError, UnicodeError, OverflowError):
        return None


def _sealer(told: CallRecord, making: _Making) -> RecordSealer:
    facts, given = told.facts, making.given.facts
    day = _day(_calendar(given.started_ns) // _DAY_US)
    return making.vault.sealer(
        tenant=facts.tenant, days=facts.retention_days, day=day, subject=named_by(given), call_id=facts.call_id
    )


def _values(
    told: CallRecord, making: _Making, sealer: RecordSealer, payloads: str = "{}", salt: bytes | None = None, *,
    altered: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """In the order of CALL_COLUMNS; times as µs since the UNIX epoch, JSON as its canonical text."""
    given, facts, place = making.given.facts, told.facts, told.place
    prompt, digest = _content(sealer, "prompt", given.prompt.sha256, given.prompt.parts)
    identity = Identity(
        given.subject,
        given.conversation,
        given.principal,
        given.peer,
        given.request_id,
        given.parameters,
        given.actor,
    )
    end, error, findings = _end_part(told, sealer)
    return (
        _calendar(given.started_ns), facts.call_id, place.sidecar, making.log, making.position, place.journal,
        told.first, told.sequence, place.region, place.jurisdiction, _calendar(facts.decided_ns), facts.tenant,
        facts.principal if given.principal != named_by(given) else "",  # else whose it is, is sealed
        facts.principal_kind, facts.issuer, facts.key_id, facts.method, facts.model, facts.version, facts.data_class,
        facts.rule, facts.bundle, facts.level, facts.retention_days,
        facts.trace_id, facts.span_id, facts.parent_id, facts.sampled,
        _JSON.encode(facts.tensors).decode() if facts.tensors else "[]",
        facts.request_bytes, facts.requested_tokens,
        sealer.data_key,
        sealer.seal("identity", _ENCODER.encode(identity)),
        sealer.lookup("conversation", given.conversation) if given.conversation else None,
        prompt, facts.prompt.nbytes, digest, _cut(given.prompt),
        facts.would_refuse, facts.alias, facts.routed_version, facts.route, facts.route_why, making.decision,
        *end, *error, findings,
        canonical_json(dict(making.redacted)) if making.redacted else "{}",
        altered,
        sealer.seal("evidence", evidence(making.given)) if altered else None,
        told.end.kv_byte_ms if isinstance(told.end, Settled) else 0,
        payloads, salt,
    )  # fmt: skip


def used_of(values: Sequence[Any], started: int) -> Used | None:
    """What a call used that was forwarded to a model, whatever its end; ``started``: µs since the UNIX epoch."""
    if values[_OUTCOME] == "refused" or not values[_MODEL]:
        return None
    request_bytes, (tokens_in, tokens_out, exact_in, exact_out, _, response_bytes, _, spent) = (
        values[_REQUEST_BYTES], values[_SPENT],
    )  # fmt: skip
    used = (
        tokens_in, tokens_out, tokens_in if exact_in else 0, tokens_out if exact_out else 0,
        0 if exact_in and exact_out else 1, request_bytes, response_bytes, spent,
        0 if tokens_in or tokens_out else spent,  # of calls without tokens, which are charged for their time
        values[_HELD] if len(values) > _HELD else 0,
    )  # fmt: skip
    return started // _HOUR_US, values[_TENANT], values[_MODEL], values[_KEY], used


_OUTCOME: Final = CALL_COLUMNS.index("outcome")
_TENANT: Final = CALL_COLUMNS.index("tenant")
_MODEL: Final = CALL_COLUMNS.index("model")
_KEY: Final = CALL_COLUMNS.index("key_id")
_REQUEST_BYTES: Final = CALL_COLUMNS.index("request_bytes")
_SPENT: Final = slice(CALL_COLUMNS.index("input_tokens"), CALL_COLUMNS.index("duration_ns") + 1)
_HELD: Final = CALL_COLUMNS.index("kv_byte_ms")


@lru_cache(maxsize=512)
def _day(number: int) -> date:
    """Days since 1970-01-01."""
    return date.fromordinal(_1970 + number)


def _calendar(ns: int) -> int:
    """ns since the UNIX epoch → µs. Raises OverflowError for a year that no calendar has."""
    found = ns // 1000
    if not _SOONEST <= found < _LATEST:
        raise OverflowError(f"{ns} ns since 1970 are in no year from 1 to 9999")
    return found


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
        ended = (None, "refused", end.status, end.reason, end.detail, end.internal, None, 0, None, False,
                 facts.prompt_tokens, 0, False, False, 0, 0, None, spent, "", None)  # fmt: skip
        return ended, (None, 0), _findings(facts.findings)
    kept = told.output if facts.level == "full" else None
    sealed, digest = _content(sealer, "output", end.output_sha256, kept)
    ended = (
        _calendar(end.at_ns), end.outcome, end.status, end.reason, "", end.internal, sealed,
        end.output_bytes, digest, kept is not None and sum(map(len, kept)) < end.output_bytes, end.input_tokens,
        end.output_tokens, end.input_exact, end.output_exact, end.responses, end.response_bytes,
        end.first_response_ns, end.duration_ns, end.model_version, end.model_digest or None,
    )  # fmt: skip
    quoted = end.quoted
    error = None if quoted.parts is None else sealer.seal("error", _ENCODER.encode(quoted.parts))
    return ended, (error, quoted.nbytes), _findings(facts.findings + end.findings)


def _findings(found: tuple[Finding, ...]) -> str:
    return canonical_json([msgspec.structs.astuple(each) for each in found]) if found else "[]"


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

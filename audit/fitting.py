"""Makes a record fit for Postgres's columns (no NUL, no lone surrogate, bounded); one that is fit stays as it is."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from audit.assemble import INDEXED_CHARS, CallRecord, Cleaner
from audit.record import CallFacts, Refused, Settled

__all__ = ["fitted"]

# What a column is made of, by how it is cleaned (audit.assemble.Cleaner). Who somebody is, is sealed as it came.
_INDEXED: Final = ("call_id", "tenant", "key_id", "model", "trace_id", "alias")
_TEXTS: Final = (
    "issuer", "method", "version", "data_class", "rule", "bundle", "span_id", "parent_id", "would_refuse",
    "routed_version", "route", "route_why",
)  # fmt: skip
_NUMBERS: Final = ("request_bytes", "requested_tokens")
_END_TEXTS: Final = ("outcome", "internal", "detail", "model_version", "model_digest")
_END_NUMBERS: Final = (
    "output_bytes", "input_tokens", "output_tokens", "responses", "response_bytes", "duration_ns", "kv_byte_ms",
)  # fmt: skip


def fitted(record: CallRecord, *, names: bool) -> tuple[CallRecord, bool]:
    """The record as its columns take it, and whether that is otherwise than it came.

    ``names``: the principal is a column of its own, and not sealed alone.
    """
    return (record, False) if _fits(record) else _cleaned(record, names=names)


def _fits(record: CallRecord) -> bool:
    """Whether nothing needs to be changed: told at once of all texts and numbers, for nearly all records are so."""
    facts, end, prompt = record.facts, record.end, record.facts.prompt
    texts = [
        facts.call_id, facts.tenant, facts.principal, facts.issuer, facts.key_id, facts.method, facts.model,
        facts.version, facts.data_class, facts.rule, facts.bundle, facts.trace_id, facts.span_id, facts.parent_id,
        facts.would_refuse, facts.alias, facts.routed_version, facts.route, facts.route_why, end.reason, end.internal,
    ]  # fmt: skip
    for tensor in facts.tensors:
        texts += tensor.name, tensor.datatype
    numbers = facts.request_bytes | facts.requested_tokens | facts.prompt_tokens | prompt.nbytes
    if isinstance(end, Settled):
        texts += end.outcome, end.model_version, end.model_digest
        numbers |= (
            end.output_bytes | end.input_tokens | end.output_tokens | end.responses | end.response_bytes
            | (end.first_response_ns or 0) | end.duration_ns | end.kv_byte_ms | end.quoted.nbytes
        )  # fmt: skip
    else:
        texts.append(end.detail)
    whole = "".join(texts)
    return whole.isascii() and "\x00" not in whole and max(map(len, texts)) <= INDEXED_CHARS and not numbers >> 63


def _cleaned(record: CallRecord, *, names: bool) -> tuple[CallRecord, bool]:
    clean, facts, end = Cleaner(), record.facts, record.end
    changes: dict[str, Any] = _changes(clean, facts, _INDEXED, _TEXTS, _NUMBERS)
    if names:
        changes["principal"] = clean.index(facts.principal)
    changes["tensors"] = [
        msgspec.structs.replace(each, name=clean.text(each.name), datatype=clean.text(each.datatype))
        for each in facts.tensors
    ]
    changes["prompt"] = msgspec.structs.replace(facts.prompt, nbytes=clean.number(facts.prompt.nbytes))
    changed = msgspec.structs.replace(facts, **changes)
    ended = _changes(clean, end, ("reason",), _END_TEXTS, _END_NUMBERS)
    if isinstance(end, Settled):
        ended["quoted"] = msgspec.structs.replace(end.quoted, nbytes=clean.number(end.quoted.nbytes))
        if end.first_response_ns is not None:
            ended["first_response_ns"] = clean.number(end.first_response_ns)
    else:
        changed = msgspec.structs.replace(changed, prompt_tokens=clean.number(facts.prompt_tokens))
    told = CallRecord(
        record.place, record.first, record.sequence, changed, msgspec.structs.replace(end, **ended), record.output
    )
    return told, clean.changed


def _changes(
    clean: Cleaner, value: CallFacts | Settled | Refused, indexed: tuple[str, ...], texts: tuple[str, ...],
    numbers: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    found: dict[str, Any] = {name: clean.index(getattr(value, name)) for name in indexed}
    found |= {name: clean.text(getattr(value, name)) for name in texts if hasattr(value, name)}
    return found | {name: clean.number(getattr(value, name)) for name in numbers if hasattr(value, name)}

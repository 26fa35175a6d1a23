"""What can be asked of the records, by whom, and what is told of one that was found: values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from audit.opening import Opener

__all__ = ["Asker", "Filter", "Found", "Keyset", "Messages", "Page", "SearchError", "replaced"]

_FINDING: Final = ("guard", "on", "verdict", "enforced")


class SearchError(Exception):
    """The question cannot be asked like this; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Keyset:
    """Where a page ends: the next one goes on with what is older."""

    started_at: datetime
    call_id: str


@dataclass(frozen=True, slots=True)
class Filter:
    """What is asked for; None is "any". ``since`` is included, ``until`` is not; ``text`` is sought without case.

    ``call`` is a call's id, or a stream's: then every message of it is meant (``<stream id>/<n>``).
    """

    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    model: str | None = None
    outcome: str | None = None
    refused_for: str | None = None
    would_refuse: str | None = None  # what mode observe did not enforce
    principal: str | None = None
    key: str | None = None
    subject: str | None = None
    conversation: str | None = None
    data_class: str | None = None
    rule: str | None = None
    region: str | None = None
    call: str | None = None
    trace: str | None = None
    text: str | None = None
    limit: int = 100
    before: Keyset | None = None
    scan: bool = False  # seek the text by opening every record, index or none
    among: tuple[Keyset, ...] | None = None  # these records only
    after: str | None = None  # go on where a page ended (audit.paging.token)
    logs: Mapping[str, int] | None = None  # what was stored when the logs had these sizes

    def told(self, opener: Opener | None) -> dict[str, Any]:
        """As its record shows it: no name and no words that were sought, for that record outlives an erasure."""
        asked = {name: getattr(self, name) for name in (field.name for field in fields(self))}
        for name in ("subject", "conversation", "principal", "text"):
            if asked[name] is not None and opener is not None:
                asked[name] = f"mac:{opener.pseudonym(self.tenant, asked[name])}"
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asked.items()
            if value is not None and value is not False and name not in {"before", "among", "logs"}
        }


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, when, why, and whether content is to be shown. ``event_ids`` names the records of this asking."""

    actor: str
    at: datetime
    event_ids: Iterator[str]
    reason: str = ""
    reveal: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One record: all columns but content, and the content where it was revealed and could be opened."""

    columns: Mapping[str, Any]
    prompt: str | None = None
    output: str | None = None
    content: str = "withheld"  # withheld | revealed | none (the level kept none) | erased | unreadable: why
    error: str | None = None  # Triton's words that the client was not told

    @property
    def key(self) -> Keyset:
        """Its place in the order of pages."""
        return Keyset(self.columns["started_at"], self.columns["call_id"])

    @property
    def texts(self) -> list[str]:
        """What was revealed of its content."""
        return [text for text in (self.prompt, self.output, self.error) if text]

    def shape(self) -> dict[str, Any]:
        """The JSON object of DESIGN §6, then the content's lengths and digests."""
        c = self.columns
        return {
            "call_id": c["call_id"],
            "started_at": _iso(c["started_at"]),
            "tenant": c["tenant"] or None,
            "principal": c["principal"] or None,
            "key_id": c["key_id"] or None,
            "subject": c["subject"] or None,
            "conversation": c["conversation"] or None,
            "method": c["method"],
            "model": c["model"] or None,
            "model_version": c["model_version"] or c["requested_version"] or None,
            "model_digest": c["model_digest"],
            "data_class": c["data_class"] or None,
            "rule": c["rule"] or None,
            "outcome": c["outcome"],
            "reason": c["reason"] or None,
            "status": c["status"],
            "prompt": self.prompt,
            "output": self.output,
            "input_tokens": c["input_tokens"],
            "output_tokens": c["output_tokens"],
            "ttft_ms": None if c["ttft_ns"] is None else round(c["ttft_ns"] / 1e6, 3),
            "duration_ms": round(c["duration_ns"] / 1e6, 3),
            "region": c["region"],
            "jurisdiction": c["jurisdiction"],
            "bundle": c["bundle"] or None,
            "trace_id": c["trace_id"] or None,
            "sidecar": c["sidecar"],
            "position": c["position"],
            "principal_kind": c["principal_kind"] or None,  # how it was authenticated
            "actor": c["actor"] or None,  # who had the token made (its `act`)
            "alias": c["alias"] or None,  # what the caller called the model
            "routed_version": c["routed_version"] or None,  # that the sidecar picked, and why
            "route": c["route"] or None,
            "route_why": c["route_why"] or None,
            "would_refuse": c["would_refuse"] or None,  # what mode observe did not enforce
            "findings": [dict(zip(_FINDING, found, strict=True)) for found in c["findings"]],  # of guards
            "redacted": c["redacted"],  # identifiers taken out before it was stored, by class
            "would_refuse_rule": c["decision"].get("would_rule") or None,
            "evidence": c["decision"].get("evidence") or None,  # what agreed on the region
            "content": self.content,
            "error": self.error,
            **{name: c[name] for name in ("prompt_bytes", "output_bytes", "prompt_truncated", "output_truncated")},
            "error_bytes": c["error_bytes"],
            **{name: _hex(c[name]) for name in ("prompt_digest", "output_digest")},  # audit.vault.commitment
        }

    def whole(self) -> dict[str, Any]:
        """The shape and every other column."""
        shape = self.shape()
        rest = {name: value for name, value in self.columns.items() if name not in shape}
        return shape | {name: _plain(value) for name, value in rest.items()}


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. ``following`` goes on from here; ``cut`` says that a word search stopped at its bound.

    ``told``: how it was searched, where the answer depends on it. ``next`` asks for the page that
    follows, of what was stored when the first one was asked (audit.paging).
    """

    found: list[Found]
    following: Keyset | None = None
    cut: bool = False
    told: str = ""
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Messages:
    """A stream's id was given where one call's was meant: its messages, oldest first; ``more``: not all are listed."""

    call_ids: tuple[str, ...]
    more: bool


def replaced(asked: Filter, **changes: Any) -> Filter:
    """The same question but for ``changes``."""
    return Filter(**{field.name: getattr(asked, field.name) for field in fields(asked)} | changes)


def _iso(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _hex(value: bytes | memoryview | None) -> str | None:
    return None if value is None else bytes(value).hex()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return _iso(value)
    return _hex(value) if isinstance(value, bytes | memoryview) else value

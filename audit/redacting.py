"""A call's record without the identifiers that its tenant wants redacted: on every path that a text comes by."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from audit.assemble import CallRecord
from audit.record import Content, Refused, Settled
from audit.redact import CUT, Redactor, redactor

__all__ = ["WITHHELD", "redacted"]

WITHHELD: Final = b"[withheld: it was to be redacted in a way that is not known here]"
_KEY_BYTES: Final = 32
_TEXTS: Final = ("request_id", "version", "model")  # of the facts, as the caller wrote them


def redacted(record: CallRecord, root: bytes) -> tuple[CallRecord, Mapping[str, int]]:
    """The record to be stored, and how many identifiers of each class were taken out of it.

    Where its rules can't be followed (a newer sidecar wrote them) no content is kept at all. Who called (principal,
    subject, conversation, peer) stays: a record is about them. ``root`` keys the hashes, apart for each tenant.
    """
    rules = record.facts.redact
    if not rules:
        return record, {}
    try:
        tool = redactor(rules, _key(root, record.facts.tenant))
    except Exception:  # noqa: BLE001 — whatever it was, unredacted is not the answer
        return _withheld(record), {"withheld": 1}
    return _Redacting(record, tool).done()


def _key(root: bytes, tenant: str) -> bytes:
    who = tenant.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(who, key=root, digest_size=_KEY_BYTES, person=b"warden redact v1").digest()


class _Redacting:
    """One record's pass; counts as it goes."""

    def __init__(self, record: CallRecord, tool: Redactor) -> None:
        self._record, self._tool = record, tool
        self._counts: Counter[str] = Counter()

    def done(self) -> tuple[CallRecord, Mapping[str, int]]:
        record = self._record
        facts = record.facts
        changes: dict[str, Any] = {name: self._text(getattr(facts, name)) for name in _TEXTS}
        changes["parameters"] = {
            self._text(name): self._text(value) if isinstance(value, str) else value
            for name, value in facts.parameters.items()
        }
        changes["prompt"] = self._content(facts.prompt)
        facts = msgspec.structs.replace(facts, **changes)
        end, output = self._end(record.end), record.output
        if isinstance(end, Settled):
            end, output = self._output(end, output)
        else:
            end = msgspec.structs.replace(end, call=facts)  # it holds them too
        return CallRecord(record.place, record.first, record.sequence, facts, end, output), dict(self._counts)

    def _text(self, text: str, *, open_end: bool = False) -> str:
        found = self._tool.text(text, open_end=open_end)
        self._counts.update(found.counts)
        return found.text

    def _bytes(self, data: bytes, *, open_end: bool = False) -> bytes:
        return self._text(data.decode("utf-8", "surrogateescape"), open_end=open_end).encode("utf-8", "surrogateescape")

    def _content(self, content: Content) -> Content:
        """Each part by itself: a prompt's are the elements of its tensor."""
        if content.parts is None:
            return content
        cut = sum(map(len, content.parts)) < content.nbytes
        last = len(content.parts) - 1
        parts = [self._bytes(part, open_end=cut and n == last) for n, part in enumerate(content.parts)]
        if parts == content.parts:
            return content
        return Content(content.nbytes, b"" if cut else _digest(parts), parts)

    def _end(self, end: Settled | Refused) -> Settled | Refused:
        """Texts of others' making, which may quote the caller's own."""
        words: dict[str, Any] = {
            name: self._text(getattr(end, name)) for name in ("internal", "detail") if hasattr(end, name)
        }
        if isinstance(end, Settled):
            words["quoted"] = self._content(end.quoted)
        return msgspec.structs.replace(end, **words)

    def _output(self, end: Settled, output: list[bytes]) -> tuple[Settled, list[bytes]]:
        """All parts as the one text they are: an identifier may begin in one chunk of a stream and end in another."""
        whole = b"".join(output)
        if not whole:
            return end, output
        unfinished = len(whole) < end.output_bytes or end.outcome != "completed"
        kept = self._bytes(whole, open_end=unfinished)
        if kept == whole:
            return end, output
        digest = b"" if len(whole) < end.output_bytes else hashlib.sha256(kept).digest()
        return msgspec.structs.replace(end, output_sha256=digest), [kept]


def _digest(parts: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def _none(content: Content) -> Content:
    return Content(content.nbytes, b"", None if content.parts is None else [WITHHELD])


def _withheld(record: CallRecord) -> CallRecord:
    facts, end = record.facts, record.end
    prompt = facts.prompt
    none = _none(prompt)
    words = {name: CUT for name in ("internal", "detail") if getattr(end, name, "")}
    facts = msgspec.structs.replace(facts, prompt=none, parameters={}, request_id="")
    end = msgspec.structs.replace(end, **words)
    end = (
        msgspec.structs.replace(end, output_sha256=b"", quoted=_none(end.quoted))
        if isinstance(end, Settled)
        else msgspec.structs.replace(end, call=facts)
    )
    output = [WITHHELD] if record.output else []
    return CallRecord(record.place, record.first, record.sequence, facts, end, output)

"""Joins a journal's entries into one record a call: admission, output and outcome, kept until the call has ended."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, assert_never

import msgspec

from audit.leaf import canonical_json
from audit.record import Admitted, CallFacts, Content, Entry, Event, Output, Refused, Responded, Settled

__all__ = ["CallRecord", "CutOff", "EventRecord", "Joiner", "Place", "Record", "event_record"]

OPEN_BYTES: Final = 256 * 2**20  # of content kept for calls that have not ended; beyond it, output is cut and marked
INDEXED_CHARS: Final = 256  # 1,024 bytes at most: a btree entry takes 2,704
TEXT_CHARS: Final = 4096
PARAMETERS: Final = 256  # of one call
_I64: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BAD: Final = re.compile(r"[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Place:
    """Whose journal, and where it was written: the same for every entry of one segment.

    ``store``: the jurisdiction whose database the journal is for; "": that of the place. ``open_from``: the lowest
    sequence of a call that had not ended when the segment began.
    """

    sidecar: str
    journal: str
    region: str
    jurisdiction: str
    evidence: str = ""
    telemetry: str = ""
    store: str = ""
    open_from: int = 0


class CallRecord(msgspec.Struct, frozen=True):
    """One call, whole. ``facts`` and ``end`` are the journal's own values; texts are parts in order."""

    place: Place
    first: int  # sequence of the admission
    sequence: int  # of the entry that ended it
    facts: CallFacts
    end: Settled | Refused
    output: list[bytes]
    responded: list[Responded] = []  # the answers whose tensors are kept, in order
    held: bool = False  # messages were let go, because calls that had not ended held too much

    @property
    def started(self) -> datetime:
        """Microseconds, as Postgres keeps them. Raises OverflowError for a year that no calendar has."""
        return moment(self.facts.started_ns)


class EventRecord(msgspec.Struct, frozen=True):
    """Whatever else belongs in the log."""

    place: Place
    sequence: int
    event: Event


Record = CallRecord | EventRecord


def moment(ns: int) -> datetime:
    """ns since the UNIX epoch → UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=ns // 1000)


def event_record(place: Place, sequence: int, at_ns: int, kind: str, **detail: bool | int | float | str) -> EventRecord:
    """An event that the shipper itself adds; its id follows from its place, so adding it twice changes nothing."""
    event = Event(f"{place.journal}:{sequence}:{kind}", at_ns, kind, f"ship:{place.sidecar}", detail)
    return EventRecord(place, sequence, event)


# --- joining ------------------------------------------------------------------------------------------------------


class _Open(msgspec.Struct):
    first: int
    facts: CallFacts
    place: Place
    texts: list[bytes] = []
    responded: list[Responded] = []
    dropped: bool = False  # of its messages
    held: int = 0  # bytes of prompt, output and messages kept
    end: int = 0  # offset after the last output seen


def _cut_off(call: _Open) -> CutOff:
    return CutOff(call.first, call.facts, call.end, sha256(b"".join(call.texts)).digest())


@dataclass(frozen=True, slots=True)
class CutOff:
    """A call without an end; ``output_*`` are of what was journaled of its output."""

    first: int  # sequence of the admission
    facts: CallFacts
    output_bytes: int
    output_sha256: bytes


class Joiner:
    """Keeps the calls that have not ended. Pure: entries in sequence order go in, records come out."""

    def __init__(self, *, open_bytes: int = OPEN_BYTES) -> None:
        self._open: dict[str, _Open] = {}  # in order of admission, so the first is the lowest sequence
        self._held = 0
        self._bound = open_bytes

    @property
    def open_calls(self) -> int:
        return len(self._open)

    def needed(self, following: int) -> int:
        """The lowest sequence that a restart must read again, where ``following`` comes next in the journal."""
        return next((call.first for call in self._open.values()), following)

    def cut_off(self) -> list[CutOff]:
        """The calls that have not ended, in order of admission: a journal that nobody writes leaves them so."""
        return [_cut_off(call) for call in self._open.values()]

    def ended_before(self, sequence: int) -> list[CutOff]:
        """Those of them that were admitted before ``sequence``, where it is known that they had ended then."""
        return [_cut_off(call) for call in itertools.takewhile(lambda call: call.first < sequence, self._open.values())]

    def add(self, place: Place, sequence: int, entry: Entry) -> Record | None:
        """The record that ``entry`` completes, if it does."""
        match entry:
            case Admitted(call=facts):
                stale = self._open.pop(facts.call_id, None)  # journaled twice: the later place is the one to go back to
                self._held -= stale.held if stale else 0
                facts, dropped = self._within(facts)
                held = _kept(facts.prompt) + len(facts.request or b"")
                self._open[facts.call_id] = _Open(sequence, facts, place, dropped=dropped, held=held)
                self._held += held
                return None
            case Output():
                self._collect(entry.call_id, entry.offset, entry.texts)
                return None
            case Responded():
                self._respond(entry)
                return None
            case Settled():
                return self._end(place, sequence, entry)
            case Refused(call=facts):
                # What was admitted and then refused after all (its admission could not be made durable) ends here.
                stale = self._open.pop(facts.call_id, None)
                self._held -= stale.held if stale else 0
                return CallRecord(place, sequence, sequence, facts, entry, [])
            case Event():
                return EventRecord(place, sequence, entry)
            case _:
                assert_never(entry)

    def _within(self, facts: CallFacts) -> tuple[CallFacts, bool]:
        """Without its message, where too much is held already; and whether that is so."""
        if facts.request is None or self._held + len(facts.request) <= self._bound:
            return facts, False
        return msgspec.structs.replace(facts, request=None), True

    def _respond(self, told: Responded) -> None:
        call = self._open.get(told.call_id)
        if call is None or (call.responded and told.index <= call.responded[-1].index):
            return  # not ours to keep, or journaled twice
        nbytes = len(told.message or b"")
        if self._held + nbytes > self._bound:
            call.dropped = True
            return
        call.responded.append(told)
        call.held += nbytes
        self._held += nbytes

    def _collect(self, call_id: str, offset: int, texts: Sequence[bytes]) -> None:
        call = self._open.get(call_id)
        if call is None or offset < call.end:
            return  # not ours to keep, or journaled twice
        for text in texts:
            if self._held + len(text) > self._bound:
                break
            call.texts.append(text)
            call.held += len(text)
            self._held += len(text)
        call.end = offset + sum(map(len, texts))

    def _end(self, place: Place, sequence: int, settled: Settled) -> Record:
        self._collect(settled.call_id, settled.offset, settled.texts)
        call = self._open.pop(settled.call_id, None)
        if call is None:
            # Mode observe forwards a call whose admission could not be journaled: its outcome must not vanish.
            return event_record(
                place,
                sequence,
                settled.at_ns,
                "settled_without_admission",
                call_id=settled.call_id,
                outcome=settled.outcome,
                reason=settled.reason,
                output_bytes=settled.output_bytes,
            )
        self._held -= call.held
        return CallRecord(
            call.place, call.first, sequence, call.facts, settled, call.texts, call.responded, call.dropped
        )


def _kept(content: Content) -> int:
    return sum(map(len, content.parts or ()))


# --- as columns ---------------------------------------------------------------------------------------------------


class Cleaner:
    """Makes texts fit for Postgres (no NUL, no lone surrogate, bounded) and remembers whether it changed any."""

    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.changed = False

    def text(self, value: str, limit: int = TEXT_CHARS) -> str:
        if not value or (len(value) <= limit and value.isascii() and "\x00" not in value):
            return value
        clean = _BAD.sub("\ufffd", value)[:limit]
        self.changed = self.changed or clean != value
        return clean

    def index(self, value: str) -> str:
        """For columns that have an index."""
        return self.text(value, INDEXED_CHARS)

    def number(self, value: int) -> int:
        if -_I64 <= value <= _I64:
            return value
        self.changed = True
        return max(-_I64, min(_I64, value))

    def json(self, value: dict[str, bool | int | float | str]) -> str:
        """A JSON object that Postgres takes, and gives back so that its canonical text is the same."""
        if not value:
            return "{}"
        if len(value) > PARAMETERS:
            self.changed = True
        return canonical_json(dict(self._pairs(value)))

    def _pairs(self, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, item in list(value.items())[:PARAMETERS]:
            if isinstance(item, str):
                yield self.text(name), self.text(item)
            elif isinstance(item, float) and not math.isfinite(item):
                self.changed = True
                yield self.text(name), str(item)  # JSON has no NaN
            else:
                yield self.text(name), item


def evidence(record: CallRecord) -> bytes:
    """The journal's own values without content, for a record whose columns had to be altered."""
    prompt = msgspec.structs.replace(record.facts.prompt, parts=None)
    facts = msgspec.structs.replace(record.facts, prompt=prompt, request=None)
    end = record.end
    if isinstance(end, Settled):
        quoted = msgspec.structs.replace(end.quoted, parts=None)
        return msgspec.msgpack.encode([facts, msgspec.structs.replace(end, texts=[], quoted=quoted)])
    return msgspec.msgpack.encode([facts, end.reason, end.status, end.detail, end.internal])

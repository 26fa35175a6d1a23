"""What a sidecar finds when it opens its journal again: where to go on, what was cut off, what is damaged."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, assert_never

import msgspec

from audit.files import Files
from audit.record import Admitted, Event, Output, Refused, Responded, Settled, decode
from audit.rootkeys import Root
from audit.segments import (
    End,
    FaultKind,
    Frame,
    FrameReader,
    JournalFault,
    Lost,
    OpenSegment,
    read_info,
    segment_path,
    segments_in,
    unlock,
)
from sidecar.core.model import counted_as

__all__ = ["DAMAGE_MARK", "ENGINE_IDLE", "PAST_CALLS", "PAST_NS", "OpenCall", "PastCall", "Recovery", "recover"]

DAMAGE_MARK: Final = ".damaged"  # beside a damaged segment; it is then never changed and never released


# Of what calls took from their tenants' limits: no limit of time looks back further than an hour, hardly any further
# than its minute. Bounded by what is quickly read, so that a start after a flood isn't slower than it need be.
PAST_NS: Final = 3600 * 10**9
PAST_CALLS: Final = 100_000
ENGINE_IDLE: Final = "engine_idle"  # an event: at ``at_ns`` Triton was at work on nothing of ``model``
_PAST_SEGMENTS: Final = 4  # the newest, by default 64 MiB each


@dataclass(frozen=True, slots=True)
class PastCall:
    """What a call took from its tenant's limits. ``ended_ns`` None: a crash cut it off. Times are ns since the epoch.

    ``holds_until_ns``: Triton may be working on it until then; 0: it isn't. ``reserved``: tokens, KV bytes, tensor
    bytes. ``key``: whom its tenant's limits for each key count apart; ``key_name``: "" where it was no API key.
    """

    call_id: str
    sequence: int
    tenant: str
    key: str
    model: str
    decided_ns: int
    prompt_tokens: int
    reserved: tuple[int, int, int]
    ended_ns: int | None = None
    tokens: int = 0
    responses: int = 0
    duration_ns: int = 0
    holds_until_ns: int = 0
    key_name: str = ""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that was admitted and never settled. ``output_*`` are of what had been journaled of its output."""

    call_id: str
    sequence: int
    started_ns: int
    last_ns: int  # when its last entry was written
    level: str
    model: str
    prompt_tokens: int
    output_bytes: int
    output_sha256: bytes
    store: str = ""  # the jurisdiction whose database keeps it


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found and did. ``past``: the open calls and those that ended lately, in the order of admission."""

    next_sequence: int
    open_calls: tuple[OpenCall, ...] = ()
    faults: tuple[JournalFault, ...] = ()
    truncated_bytes: int = 0
    segments: int = 0
    past: tuple[PastCall, ...] = ()


@dataclass(slots=True)
class _Live:
    admitted: Admitted
    sequence: int
    last_ns: int
    nbytes: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def frozen(self) -> OpenCall:
        call = self.admitted.call
        return OpenCall(
            call.call_id,
            self.sequence,
            call.started_ns,
            self.last_ns,
            call.level,
            call.model,
            call.prompt_tokens,
            self.nbytes,
            self.digest.digest(),
            call.store,
        )

    def past(self, end: Settled | None = None) -> PastCall:
        call = self.admitted.call
        took = PastCall(
            call.call_id,
            self.sequence,
            call.tenant,
            counted_as(call.key_id, call.principal_kind, call.issuer, call.principal),
            call.model,
            call.decided_ns,
            call.prompt_tokens,
            call.reserved,
            key_name=call.principal if call.principal_kind == "api_key" else "",
        )
        if end is None:
            return took
        return replace(
            took,
            ended_ns=end.at_ns,
            tokens=end.input_tokens + end.output_tokens,
            responses=end.responses,
            duration_ns=end.duration_ns,
            holds_until_ns=end.holds_until_ns,
        )


class _Calls:
    """The calls that are open after the entries so far, and those that ended since ``since_ns`` or hold something."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns, self._since_ns = now_ns, now_ns - PAST_NS
        self.live: dict[str, _Live] = {}
        self.ended: deque[PastCall] = deque(maxlen=PAST_CALLS)
        self.held: deque[PastCall] = deque(maxlen=PAST_CALLS)

    def add(self, sequence: int, data: bytes) -> None:
        try:
            entry = decode(data)
        except (msgspec.DecodeError, UnicodeError):
            return  # the shipper reports it; what can't be read opens and closes nothing
        match entry:
            case Admitted(call=facts):
                kept = Admitted(msgspec.structs.replace(facts, request=None))  # thousands may be open
                self.live[facts.call_id] = _Live(kept, sequence, facts.decided_ns)
            case Output(texts=texts):
                self._heard(entry, texts)
            case Responded():
                self._heard(entry, [])
            case Settled():
                live = self.live.pop(entry.call_id, None)
                if live is not None:
                    self._keep(live, entry)
            case Event(kind=kind, detail=detail) if kind == ENGINE_IDLE:
                self._over(detail.get("model"), detail.get("at_ns"))
            case Refused() | Event():
                return
            case _:
                assert_never(entry)

    def _heard(self, entry: Output | Responded, texts: list[bytes]) -> None:
        live = self.live.get(entry.call_id)
        if live is not None:
            live.last_ns = entry.at_ns
            for text in texts:
                live.nbytes += len(text)
                live.digest.update(text)

    def _over(self, model: object, at_ns: object) -> None:
        """What had ended before holds nothing any more."""
        if not isinstance(at_ns, int):
            return
        for _ in range(len(self.held)):
            call = self.held.popleft()
            if call.model == model and call.ended_ns is not None and call.ended_ns < at_ns:
                self.ended.append(replace(call, holds_until_ns=0))
            else:
                self.held.append(call)

    def _keep(self, live: _Live, end: Settled) -> None:
        if end.holds_until_ns > self._now_ns:
            self.held.append(live.past(end))
        elif end.at_ns >= self._since_ns:
            self.ended.append(live.past(end))

    def past(self) -> tuple[PastCall, ...]:
        found = [*self.ended, *self.held, *(live.past() for live in self.live.values())]
        return tuple(sorted(found, key=lambda each: each.sequence))


class _Scan:
    """One recovery; the caller holds the journal's lock."""

    def __init__(self, files: Files, directory: Path, root: Root, now_ns: int) -> None:
        self._files, self._directory, self._root = files, directory, root
        self._now_ns = now_ns
        self.faults: list[JournalFault] = []
        self.truncated = 0
        self.calls = _Calls(now_ns)
        self.next: int | None = None

    def run(self) -> JournalFault | None:
        """Read from the segment where the oldest open call may have begun. A fault here means: don't open."""
        found = segments_in(self._directory)
        start, lately = self._start(found), self._lately(found)
        for place, (first, path) in enumerate(found):
            following = found[place + 1][0] if place + 1 < len(found) else None
            past = following is not None and following <= start
            if past and (first < lately or _put_aside_before(path)):
                self.next = None  # its last sequence is the next segment's business
                continue
            fault = self._segment(first, path, last=following is None)
            if fault is not None:
                return fault
        return None

    def _start(self, found: list[tuple[int, Path]]) -> int:
        """The lowest sequence of a call that can still be open, as the newest readable header says."""
        for _, path in reversed(found):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                header = read_info(descriptor)
            finally:
                os.close(descriptor)
            if header is not None:
                return header[0].open_from
        return 0

    def _lately(self, found: list[tuple[int, Path]]) -> int:
        """The first sequence of the oldest segment that is read for what calls took lately."""
        begins = found[-1][0] if found else 0
        for first, path in reversed(found[-_PAST_SEGMENTS:]):
            if path.stat().st_mtime_ns < self._now_ns - PAST_NS:
                break
            begins = first
        return begins

    def _segment(self, first: int, path: Path, *, last: bool) -> JournalFault | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            match unlock(descriptor, path, self._root):
                case OpenSegment() as segment:
                    self._frames(descriptor, path, segment, last=last)
                case JournalFault(kind=FaultKind.KEY) as fault:
                    return fault
                case JournalFault() as fault:
                    self._headless(descriptor, first, path, fault, last=last)
        finally:
            os.close(descriptor)
        return None

    def _frames(self, descriptor: int, path: Path, segment: OpenSegment, *, last: bool) -> None:
        first = segment.info.first
        if self.next is not None and first > self.next:
            self.faults.append(
                JournalFault(FaultKind.GAP, f"{path}: nothing holds {self.next} to {first - 1}", self.next, first - 1)
            )
        damage: list[JournalFault] = []
        end = End(0, segment.start, 0)
        for item in _items(FrameReader(descriptor, segment)):
            match item:
                case Frame():
                    self.calls.add(first + item.index, item.entry)
                case Lost():
                    damage.append(
                        JournalFault(
                            FaultKind.DAMAGED,
                            f"{path}: damaged at byte {item.offset}",
                            first + item.index,
                            first + item.resumes - 1,
                        )
                    )
                case End():
                    end = item
                case _:
                    assert_never(item)
        self.next = first + end.index
        if end.left and (damage or not last):
            damage.append(JournalFault(FaultKind.DAMAGED, f"{path}: {end.left} bytes after byte {end.offset} are lost"))
        elif end.left:
            self._cut(descriptor, end)
        if damage:
            self._put_aside(path, damage)
        elif last and end.index == 0:
            self._files.unlink(path)  # nothing in it; the next segment takes its name

    def _cut(self, descriptor: int, end: End) -> None:
        self._files.truncate(descriptor, end.offset)
        self._files.fsync(descriptor)
        self.truncated += end.left

    def _headless(self, descriptor: int, first: int, path: Path, fault: JournalFault, *, last: bool) -> None:
        """A header that a crash tore has nothing after it; any other is damage."""
        nbytes = os.fstat(descriptor).st_size
        if last and (nbytes == 0 or (read_info(descriptor) is None and not _marked(descriptor))):
            self._files.unlink(path)
            self.truncated += nbytes
            self.next = max(self.next or 0, first)
            return
        self._put_aside(path, [fault])
        self.next = max(self.next or 0, first + _most_frames(nbytes))

    def _put_aside(self, path: Path, damage: list[JournalFault]) -> None:
        self.faults += damage
        mark = path.with_name(path.name + DAMAGE_MARK)
        mark.write_text("".join(f"{fault.detail}\n" for fault in damage), encoding="utf-8")


def _put_aside_before(path: Path) -> bool:
    """Whether an earlier recovery found damage in it, and told of it."""
    return path.with_name(path.name + DAMAGE_MARK).exists()


def _marked(descriptor: int) -> bool:
    """Whether anything that looks like a frame is in the file; bounded by a header's greatest length."""
    return b"\xf5WF\x01" in os.pread(descriptor, 256 * 1024, 0)


def _most_frames(nbytes: int) -> int:
    """No more sequences than this can be in ``nbytes``: an unreadable segment's may have been shipped already."""
    return nbytes // 32 + 1


def _items(reader: FrameReader) -> Iterator[Frame | Lost | End]:
    while True:
        item = reader.next(search=True)
        yield item
        if isinstance(item, End):
            return


def recover(files: Files, directory: Path, root: Root, shipped: int, now_ns: int) -> Recovery | JournalFault:
    """Make the journal whole: cut a torn tail, put damage aside, find the open calls. Raises OSError.

    The next sequence is past everything written here *and* everything shipped, so that no sequence is used twice
    even where the disk lost what the shipper had already read.
    """
    scan = _Scan(files, directory, root, now_ns)
    fault = scan.run()
    if fault is not None:
        return fault
    following = max(scan.next or 0, shipped + 1)
    if following > (scan.next or 0):
        scan.faults.append(
            JournalFault(
                FaultKind.GAP,
                f"{directory}: shipped up to {shipped}, but the journal ends before",
                scan.next or 0,
                shipped,
            )
        )
    while segment_path(directory, following).exists():  # a damaged segment keeps its name
        following += 1
    calls = tuple(live.frozen() for live in scan.calls.live.values())
    segments = len(segments_in(directory))
    return Recovery(following, calls, tuple(scan.faults), scan.truncated, segments, scan.calls.past())

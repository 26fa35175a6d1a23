"""Puts a lost journal together again from its copies: the segments' own bytes, under their own names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from audit.copies import Beat, SegmentCopies, beat_name, journal_of, segments_of
from audit.follow import read_identity, write_identity
from audit.objects import ObjectStore, Stored
from audit.rootkeys import Root
from audit.segments import FaultKind, JournalFault, segment_path, unlock

__all__ = ["CopiedJournal", "forget", "journals_in", "reassemble"]


@dataclass(frozen=True, slots=True)
class CopiedJournal:
    """What a store holds of one journal. ``newest``: when anything of it was written last, by the store's clock."""

    journal: str
    beat: Beat | None
    segments: tuple[SegmentCopies, ...]
    newest: float
    names: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(each.whole for each in self.segments)

    def alive(self, now: float, within_s: float) -> bool:
        """Whether its sidecar was heard of ``within_s`` seconds ago, and did not say that it ended."""
        return not (self.beat is not None and self.beat.stopped) and now - self.newest < within_s


def journals_in(store: ObjectStore) -> list[CopiedJournal]:
    """In the order in which they were written last. Raises OSError."""
    found: dict[str, list[Stored]] = {}
    for each in store.list():
        journal = journal_of(each.name)
        if journal is not None:
            found.setdefault(journal, []).append(each)
    journals = [
        CopiedJournal(
            journal, _beat(store, journal), tuple(segments_of(stored).values()), max(each.at for each in stored),
            tuple(each.name for each in stored),
        )
        for journal, stored in found.items()
    ]  # fmt: skip
    return sorted(journals, key=lambda each: each.newest)


def _beat(store: ObjectStore, journal: str) -> Beat | None:
    data = store.get(beat_name(journal))
    with suppress(msgspec.DecodeError):
        return None if data is None else msgspec.json.decode(data, type=Beat)
    return None


def reassemble(store: ObjectStore, found: CopiedJournal, directory: Path, root: Root) -> list[JournalFault]:
    """Write the segments into ``directory``, durable when this returns; again changes nothing. Raises OSError.

    What comes back is what could not be put together; a KEY among it: nothing can be read, and nothing was written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = read_identity(directory)
    if known not in ("", found.journal):
        raise OSError(f"{directory}: holds journal {known}, not {found.journal}")
    faults: list[JournalFault] = []
    names: set[str] = set()
    for copies in found.segments:
        path = segment_path(directory, copies.first)
        if path.name in names:
            words = f"two segments begin with {copies.first}; {copies.segment} is left out"
            faults.append(JournalFault(FaultKind.DAMAGED, words))
            continue
        names.add(path.name)
        part = path.with_name(f".{path.name}.part")
        for fault in _write(store, copies, part, path, root):
            faults.append(fault)
            if fault.kind is FaultKind.KEY:
                return [fault]
    write_identity(directory, found.journal)
    return faults


def _write(store: ObjectStore, copies: SegmentCopies, part: Path, path: Path, root: Root) -> Iterator[JournalFault]:
    """Bytes that no copy holds are left zero: the journal's reader knows them for damage, and reads on behind."""
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for piece in copies.pieces:
            data = store.get(piece.name)
            if data is None or len(data) != piece.nbytes:
                yield JournalFault(FaultKind.GAP, f"{store.where}: {piece.name} is gone, or shorter than it was")
                continue
            _pwrite(descriptor, data, piece.start)
        opened = unlock(descriptor, path, root)
        if isinstance(opened, JournalFault):
            part.unlink()
            yield opened
            return
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(path)


def _pwrite(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


def forget(store: ObjectStore, found: CopiedJournal) -> None:
    """Delete all that the store holds of a journal; its beat goes last. Raises OSError."""
    for name in sorted(found.names, key=lambda name: name == beat_name(found.journal)):
        store.delete(name)

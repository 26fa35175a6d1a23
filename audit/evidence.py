"""Checks one log: leaves against signed heads, rows against leaves; names what is wrong for what it is. Pure."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from audit.merkle import HASH_BYTES, Frontier, leaf_hash
from audit.rows import CALL_COLUMNS, CALL_LEAF, EVENT_COLUMNS, EVENT_LEAF
from audit.tlog import Checkpoint, NoteError, Verifier, parse_checkpoint, parse_note

__all__ = ["Fault", "FaultKind", "Head", "StoredRow", "TreeCheck", "TreeResult", "check_rows", "covered", "read_head"]

REORDERED: Final = 300  # rows that are tried at each other's places; beyond it they count as altered
FAULTS: Final = 1000  # told of one range
FLEETS: Final = "the fleet's log"  # a head that is no signature of the log's own


class FaultKind(enum.StrEnum):
    """What was done to the evidence."""

    ALTERED_COLUMN = "altered_column"  # a row is not what its leaf covers; the leaf is proven
    EDIT = "edit"  # rows and leaves were rewritten together; the signed heads are of other leaves
    DELETION = "deletion"  # a leaf is there, its row is not
    INSERTION = "insertion"  # a row, leaf or log that nothing signed accounts for
    REORDER = "reorder"  # rows are at each other's places
    FORK = "fork"  # two signed heads that cannot both be of one log
    TRUNCATED_TAIL = "truncated_tail"  # a signed head is of more leaves than there are
    REPLACED_CHECKPOINT = "replaced_checkpoint"  # a head whose signature or words are not the log's
    VANISHED_LOG = "vanished_log"  # the fleet's log knows it, the database doesn't
    UNCLOSED_LOG = "unclosed_log"  # it ended without a word
    OBJECT_MISSING = "object_missing"  # tensors' bytes that a record names are not in the object store
    OBJECT_ALTERED = "object_altered"  # they are not those that it names
    OBJECT_SWAPPED = "object_swapped"  # they are those that another record names
    ANCHOR_ROLLED_BACK = "anchor_rolled_back"  # the fleet's log says that a larger head was kept there


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. ``position`` and ``call_id`` where they are known."""

    kind: FaultKind
    log: str
    detail: str
    position: int | None = None
    call_id: str | None = None

    def shape(self) -> dict[str, Any]:
        """As JSON (DESIGN §6)."""
        place = {"call_id": self.call_id, "position": self.position}
        told = {name: value for name, value in place.items() if value is not None}
        return {"kind": str(self.kind), "log": self.log, **told, "detail": self.detail}


# --- the tree -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """A tree head that counts: signed by the log, or written in the fleet's log; ``by`` says which.

    Whoever writes the fleet's log takes a log's size and root from the database. So one of its heads tells what a log
    must still be, but does not tell that the log's own sidecar wrote it: only a checkpoint does (``own``).
    """

    size: int
    root: bytes
    by: str

    @property
    def own(self) -> bool:
        return self.by != FLEETS


def read_head(log: str, size: int | None, note: str, verifier: Verifier) -> Head | Fault:
    """A stored checkpoint, if it is the log's own and says what its row says (``size`` None: any)."""

    def replaced(words: str) -> Fault:
        return Fault(FaultKind.REPLACED_CHECKPOINT, log, f"the head stored for {size} records {words}", size)

    try:
        parsed = parse_note(note)
        head: Checkpoint = parse_checkpoint(parsed.text)
    except NoteError as fault:
        return replaced(f"is none: {fault}")
    if not verifier.accepts(parsed):
        return replaced("is not signed by the log's key")
    if head.origin != verifier.name or size not in {None, head.size}:
        return replaced(f"is that of {head.size} records of {head.origin}")
    return Head(head.size, head.root, "checkpoint")


@dataclass(slots=True)
class TreeResult:
    """What the leaves of one log amount to. ``signed``: how many of them a head of its own that fits accounts for."""

    tree: Frontier
    faults: list[Fault] = field(default_factory=list)
    signed: int = 0
    heads: int = 0


class TreeCheck:
    """Takes a log's leaves in order, then judges its heads by the roots they gave."""

    def __init__(self, log: str, heads: Sequence[Head], *, start: Frontier | None = None) -> None:
        """``start`` was checked before; heads of fewer leaves are not asked again."""
        self.tree = start or Frontier()
        self._log, self._heads, self._start = log, heads, self.tree.size
        self._roots: dict[int, bytes] = {self.tree.size: self.tree.root}
        self._by_size: dict[int, set[bytes]] = {}
        for head in heads:
            self._by_size.setdefault(head.size, set()).add(head.root)
        self.fits = self._fit([self.tree.size])  # every head of no more leaves than were taken is of them
        self._wanted = sorted({head.size for head in heads if head.size > self.tree.size})
        self._faults: list[Fault] = []

    def add(self, first: int, hashes: bytes) -> bool:
        """Whether these leaves follow; where they do not, nothing after them can be judged."""
        if first != self.tree.size or len(hashes) % HASH_BYTES:
            missing = f"leaves {self.tree.size} to {first - 1} are missing"
            words = missing if first > self.tree.size else "leaves overlap"
            self._faults.append(Fault(FaultKind.DELETION, self._log, words, self.tree.size))
            return False
        before = bisect.bisect_right(self._wanted, self.tree.size)
        self.tree = _extended(self.tree, hashes, self._wanted, self._roots)
        passed = self._wanted[before : bisect.bisect_right(self._wanted, self.tree.size)]
        self.fits = self.fits and self._fit(passed)
        return True

    def _fit(self, sizes: Iterable[int]) -> bool:
        return all(self._by_size.get(size, set()) <= {self._roots[size]} for size in sizes)

    def finish(self) -> TreeResult:
        before = [head.size for head in self._heads if head.own and head.size <= self._start]  # and checked then
        signed = max(before, default=0)
        result = TreeResult(self.tree, self._faults, signed)
        heads = [head for head in self._heads if head.size in self._roots or head.size > self.tree.size]
        _judge(self._log, heads, self._roots, result)
        return result


def _extended(tree: Frontier, hashes: bytes, wanted: list[int], roots: dict[int, bytes]) -> Frontier:
    """Grow the tree, noting its root at each size that a head is of."""
    found = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    end, done = tree.size + len(found), 0
    for size in wanted[bisect.bisect_right(wanted, tree.size) : bisect.bisect_right(wanted, end)]:
        upto = size - (end - len(found))
        tree = tree.extended(found[done:upto])
        roots[size], done = tree.root, upto
    return tree.extended(found[done:])


def _judge(log: str, heads: Sequence[Head], roots: Mapping[int, bytes], result: TreeResult) -> None:
    good = {head.size for head in heads if roots.get(head.size) == head.root}
    own = {head.size for head in heads if head.own and roots.get(head.size) == head.root}
    result.heads = sum(roots.get(head.size) == head.root for head in heads)
    result.signed = max([result.signed, *own])
    by_size: dict[int, set[bytes]] = {}
    for head in heads:
        by_size.setdefault(head.size, set()).add(head.root)
    for size, found in sorted(by_size.items()):
        if len(found) > 1:
            words = f"{len(found)} heads of {size} records were signed, with different roots"
            result.faults.append(Fault(FaultKind.FORK, log, words, size))
    if any(fault.kind is FaultKind.DELETION for fault in result.faults):
        return  # what follows a gap can't be judged
    tail = max((head.size for head in heads), default=0)
    if tail > result.tree.size:
        words = f"a head of {tail} records was signed ({_by(heads, tail)}); {result.tree.size} are left"
        result.faults.append(Fault(FaultKind.TRUNCATED_TAIL, log, words, result.tree.size))
    wrong = sorted(size for size in by_size if size in roots and roots[size] not in by_size[size])
    if not wrong:
        return
    first = wrong[0]
    sound = max([0, *(size for size in good if size < first)])
    if any(size > first for size in good):
        words = f"the head of {first} records ({_by(heads, first)}) is of another history than later heads"
        result.faults.append(Fault(FaultKind.FORK, log, words, first))
    else:
        words = (
            f"records {sound} to {first - 1} are not those whose head was signed ({_by(heads, first)}):"
            " rows and leaves were rewritten together"
        )
        result.faults.append(Fault(FaultKind.EDIT, log, words, sound))


def _by(heads: Sequence[Head], size: int) -> str:
    return ", ".join(sorted({head.by for head in heads if head.size == size}))


# --- the rows -----------------------------------------------------------------------------------------------------


class StoredRow(msgspec.Struct, frozen=True):
    """A row as it was read back: its columns in the order of audit.rows, JSON parsed or canonical."""

    kind: str  # call | event
    position: int
    values: Sequence[Any]

    @staticmethod
    def named(kind: str, columns: Mapping[str, Any]) -> StoredRow:
        """From its columns by name."""
        names = CALL_COLUMNS if kind == "call" else EVENT_COLUMNS
        return StoredRow(kind, columns["position"], [columns[name] for name in names])

    @property
    def id(self) -> str:
        return str(self.values[(CALL_COLUMNS.index("call_id") if self.kind == "call" else EVENT_COLUMNS.index("id"))])

    def leaf(self, position: int | None = None) -> bytes:
        """Its leaf's hash; as if it were at ``position``."""
        shape, names = (CALL_LEAF, CALL_COLUMNS) if self.kind == "call" else (EVENT_LEAF, EVENT_COLUMNS)
        values = self.values
        if position is not None:
            values = list(values)
            values[names.index("position")] = position
        return leaf_hash(shape.data(values))


def check_rows(
    log: str, start: int, hashes: bytes, rows: Iterable[StoredRow], *, gone: Sequence[tuple[int, int]] = ()
) -> Iterator[Fault]:
    """The rows at positions from ``start`` on, in order, against as many ``hashes``.

    ``gone``: [first, last] ranges whose rows a signed record says were dropped.
    """
    count = len(hashes) // HASH_BYTES
    expected = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    sound: set[int] = set()
    wrong: list[StoredRow] = []
    for row in rows:
        if not start <= row.position < start + count:
            yield Fault(FaultKind.INSERTION, log, "a row where the log has no leaf", row.position, row.id)
        elif row.leaf() != expected[row.position - start]:
            wrong.append(row)
        elif row.position in sound:
            yield Fault(FaultKind.INSERTION, log, "a row is there twice", row.position, row.id)
        else:
            sound.add(row.position)
    yield from _misplaced(log, start, expected, wrong, sound)
    present = sound | {row.position for row in wrong}
    for first, last in _runs(position for position in range(start, start + count) if position not in present):
        if not covered(first, last, gone):
            words = f"the rows of positions {first} to {last} are gone" if last > first else "its row is gone"
            yield Fault(FaultKind.DELETION, log, words, first)


def _misplaced(
    log: str, start: int, expected: Sequence[bytes], wrong: Sequence[StoredRow], sound: set[int]
) -> Iterator[Fault]:
    """Rows whose leaf is not the one at their place: moved, added, or altered."""
    free = [position for position in range(start, start + len(expected)) if position not in sound]
    places = {expected[position - start]: position for position in free} if len(wrong) <= REORDERED else {}
    taken = {row.position for row in wrong}
    candidates = [position for position in free if position in taken or len(free) <= REORDERED]
    for row in wrong:
        true = next((p for p in candidates[:REORDERED] if p != row.position and places.get(row.leaf(p)) == p), None)
        if true is not None:
            words = f"it belongs at position {true}"
            yield Fault(FaultKind.REORDER, log, words, row.position, row.id)
        elif row.position in sound:
            words = "a row beside the one whose leaf is proven"
            yield Fault(FaultKind.INSERTION, log, words, row.position, row.id)
        else:
            words = "its columns are not those that its leaf covers"
            yield Fault(FaultKind.ALTERED_COLUMN, log, words, row.position, row.id)


def _runs(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Positions in order, as [first, last] runs."""
    first = last = -2
    for position in positions:
        if position != last + 1:
            if last >= 0:
                yield first, last
            first = position
        last = position
    if last >= 0:
        yield first, last


def covered(first: int, last: int, gone: Sequence[tuple[int, int]]) -> bool:
    """Whether ranges cover every position from first to last."""
    at = first
    for begin, end in sorted(gone):
        if begin <= at <= end:
            at = end + 1
        if at > last:
            return True
    return False

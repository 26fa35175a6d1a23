"""One log's memory on the sidecar's own disk: its batches as they were sealed, and the last tree head it signed.

The database is where others read the log; what it holds is never asked what the log is. A head is signed only where it
extends the last one here, and it is here, durable, before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from audit.batch import Batch, Cursor, decode_batch, encode_batch
from audit.batches import BatchFiles
from audit.merkle import Frontier
from audit.seal import Random
from audit.spool import write_whole
from audit.tlog import Checkpoint, Signer
from sidecar.core.model import Secret

__all__ = ["ForkError", "LogBook", "LogState", "log_signer", "origin_of"]


_LATER: Final = "later.json"


class ForkError(Exception):
    """What is shown or kept is not an extension of what was signed; nothing is signed until a person has looked."""


class LogState(msgspec.Struct, frozen=True):
    """``log``: which log, for ever; ``size`` and ``hashes``: the frontier that was signed last."""

    log: str
    size: int = 0
    hashes: bytes = b""
    next_size: int = 0  # the frontier after the last batch that was kept
    next_hashes: bytes = b""
    journal: str = ""
    needed: int = 0
    done: int = -1
    turn: int = 0  # of the states that were saved, so that the later of two is known


def origin_of(jurisdiction: str, log: str) -> str:
    """The checkpoint's first line, and the name of the log's key."""
    return f"warden/{jurisdiction}/{log}"


def log_signer(root: Secret, origin: str) -> Signer:
    """A log's Ed25519 key follows from the jurisdiction's root key and the log's origin: who has one has the other."""
    seed = HKDF(SHA256(), 32, None, b"warden log key v1\x00" + origin.encode()).derive(root.reveal())
    return Signer(origin, seed)


class LogBook:
    """For one process at a time (the shipper's lock sees to that)."""

    def __init__(self, directory: Path, sidecar: str, jurisdiction: str, root: Secret, random: Random) -> None:
        """Opens ``directory``, or begins a new log there. Raises OSError and ForkError."""
        self._directory = directory
        self._sidecar, self._jurisdiction, self._root, self._random = sidecar, jurisdiction, root, random
        self.keep_from: int | None = None  # batches from this position on are needed still (audit.uploading)
        self._open()

    def _open(self) -> None:
        try:
            self._files = BatchFiles(self._directory / "batches")
        except ValueError as fault:
            raise ForkError(str(fault)) from fault
        self._state = self._load() or LogState(f"{self._sidecar}.{self._random(8).hex()}")
        self.signer = log_signer(self._root, origin_of(self._jurisdiction, self._state.log))
        self._save(self._state)
        self._catch_up()

    @property
    def log(self) -> str:
        return self._state.log

    @property
    def directory(self) -> Path:
        """What is kept there goes aside with the log."""
        return self._directory

    @property
    def signed(self) -> Frontier:
        """The tree whose head was signed last."""
        return Frontier.unpack(self._state.size, self._state.hashes)

    @property
    def next(self) -> Frontier:
        """The tree after the last batch that was kept."""
        return Frontier.unpack(self._state.next_size, self._state.next_hashes)

    @property
    def next_size(self) -> int:
        """The size of ``next``: asked for each row."""
        return self._state.next_size

    @property
    def cursor(self) -> tuple[str, Cursor]:
        """(journal, cursor) after the last batch; ("", …) before the first."""
        return self._state.journal, Cursor(self._state.needed, self._state.done)

    def keep(self, batch: Batch) -> None:
        """Durable when this returns. Replaces a kept batch only where nobody has been shown its head."""
        if batch.log != self.log or batch.first < self._state.size:
            raise ForkError(f"position {batch.first} of {batch.log} was signed as something else")
        if batch.first > self._state.next_size:
            raise ForkError(f"position {batch.first} of {batch.log} does not follow {self._state.next_size}")
        self._files.forget(self._files.at_or_after(batch.first + 1))
        self._files.write(batch.first, encode_batch(batch))
        self._follow(batch)

    def drop_unsigned(self, size: int) -> None:
        """Forget what was sealed at or after ``size`` and never signed: another shipper has stored it."""
        if size < self._state.size:
            raise ForkError(f"the first {self._state.size} of {self.log} were signed")
        gone = self._files.at_or_after(size)
        if not gone:
            return
        oldest = self.batch(gone[0])
        self._files.forget(gone)
        self._save(
            msgspec.structs.replace(
                self._state, next_size=oldest.first, next_hashes=oldest.before_hashes,
                needed=oldest.before.needed, done=oldest.before.done, journal=oldest.journal,
            )
        )  # fmt: skip

    def moved(self, journal: str, cursor: Cursor) -> None:
        """The journal was read on without a record that completes: only the cursor moved."""
        state = self._state
        if (state.journal, state.needed, state.done) != (journal, cursor.needed, cursor.done):
            moved = msgspec.structs.replace(state, journal=journal, needed=cursor.needed, done=cursor.done)
            self._save(moved, durable=False)  # read again in vain at worst

    def sign(self, tree: Frontier) -> str:
        """The signed head of ``tree``, which is the last one here or one between it and the last signed."""
        state = self._state
        if tree.size < state.size or (tree.size == state.size and tree.pack() != state.hashes):
            raise ForkError(f"a head of {tree.size} leaves does not extend the one signed of {state.size}")
        if tree != self._at(tree.size):
            raise ForkError(f"the head of {tree.size} leaves is not of this log")
        if tree.size > state.size:
            self._save(msgspec.structs.replace(state, size=tree.size, hashes=tree.pack()))
        return self.signer.sign(Checkpoint(self.signer.verifier.name, tree.size, tree.root).text)

    def since(self, size: int) -> Iterator[Batch]:
        """The kept batches from position ``size`` on. Raises LookupError where they are no longer kept."""
        firsts = self._files.at_or_after(size)
        if size < self._state.next_size and firsts[:1] != [size]:
            raise LookupError(f"the batches from position {size} of {self.log} are no longer kept")
        return (self.batch(first) for first in firsts)

    def from_position(self, size: int) -> Iterator[Batch]:
        """The kept batches that begin there or later, whatever is no longer kept."""
        return (self.batch(first) for first in self._files.at_or_after(size))

    def begin_anew(self) -> None:
        """Put this log aside, as it is, and begin another. Raises OSError."""
        for n in range(1000):
            aside = self._directory.with_name(f"{self._directory.name}.ended-{n}")
            if not aside.exists():
                self._directory.rename(aside)
                break
        else:
            raise OSError(f"{self._directory}: too many logs were put aside")
        self._open()

    def tree_at(self, size: int) -> Frontier | None:
        """The tree of the first ``size`` leaves, where a batch that is kept begins or ends there."""
        return self._at(size)

    def splits(self, size: int) -> bool:
        """Whether ``size`` lies within a batch that is kept: one transaction stored it, so no database stops there."""
        before = [first for first in self._files.at_or_after(0) if first < size]
        return bool(before) and self.batch(before[-1]).end > size

    def batch(self, first: int) -> Batch:
        try:
            return decode_batch(self._files.read(first))
        except (msgspec.DecodeError, ValueError) as fault:
            raise ForkError(f"{self._files.name(first)} is damaged: {fault}") from fault

    def prune(self, *, before_s: float, most_bytes: int = 2**63, short: int = 0) -> None:
        """Forget batches that were signed: from before ``before_s`` (s since the UNIX epoch), or beyond ``most_bytes``.

        ``short``: bytes that the disk lacks; the oldest go for them too. The rest are packed together, unless the disk
        is short: a pack is there beside its batches for a moment. Raises OSError.
        """
        upto = self._state.size if self.keep_from is None else min(self._state.size, self.keep_from)
        self._files.prune(before_s=before_s, most_bytes=most_bytes, upto=upto, short=short)
        if not short:
            self._files.pack(self._state.size)

    def _at(self, size: int) -> Frontier | None:
        state = self._state
        if size == state.next_size:
            return self.next
        if size == state.size:
            return self.signed
        return self.batch(size).frontier if size in self._files else None

    def _catch_up(self) -> None:
        """A crash may lie between a batch and the state that tells of it."""
        for first in self._files.at_or_after(self._state.next_size):
            if first != self._state.next_size:
                raise ForkError(f"{self._files.name(first)} does not follow position {self._state.next_size}")
            try:
                batch = decode_batch(self._files.read(first))
            except (msgspec.DecodeError, ValueError):
                self._files.forget([first])  # never whole, so never sent
                return
            self._follow(batch)

    def _follow(self, batch: Batch) -> None:
        tree = batch.grown
        if batch.first != self._state.next_size and batch.first < self._state.size:
            raise ForkError(f"position {batch.first} of {batch.log} was signed")
        self._save(
            msgspec.structs.replace(
                self._state,
                next_size=tree.size,
                next_hashes=tree.pack(),
                journal=batch.journal,
                needed=batch.after.needed,
                done=batch.after.done,
            ),
            durable=False,
        )  # fmt: skip — found again from the batch

    def _load(self) -> LogState | None:
        """The later of the two: what outlives power, and what was to be found again but for power."""
        state = self._durable()
        try:
            later = msgspec.json.decode((self._directory / _LATER).read_bytes(), type=LogState)
        except (OSError, msgspec.DecodeError, ValueError):
            return state
        same = state is not None and (later.log, later.size, later.hashes) == (state.log, state.size, state.hashes)
        return later if same and state is not None and later.turn > state.turn else state

    def _durable(self) -> LogState | None:
        try:
            return msgspec.json.decode((self._directory / "log.json").read_bytes(), type=LogState)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, ValueError) as fault:
            raise ForkError(f"{self._directory / 'log.json'} is damaged: {fault}") from fault

    def _save(self, state: LogState, *, durable: bool = True) -> None:
        """What need not be durable has a file of its own: power may leave nothing of it, nor of what it replaced."""
        self._state = msgspec.structs.replace(state, turn=self._state.turn + 1)
        name = "log.json" if durable else _LATER
        write_whole(self._directory / name, msgspec.json.encode(self._state), durable=durable)

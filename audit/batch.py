"""A sealed batch: one transaction's rows as they were made, with the tree before and after; kept on our own disk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from audit.columns import CALL_COLUMNS
from audit.merkle import Frontier
from audit.packing import pack_any
from audit.rows import CallRow, EventRow, leaf_of, used_of
from audit.vault import KeyRow

__all__ = ["Batch", "Cursor", "Row", "StoredBundle", "decode_batch", "encode_batch", "make_batch"]

Row = CallRow | EventRow


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where one journal stands: read again from ``needed``; all that ended at or before ``done`` is stored."""

    needed: int
    done: int


class StoredBundle(msgspec.Struct, frozen=True, array_like=True):
    """A policy bundle's content, stored with the event that names it; ``at_ns`` since the UNIX epoch."""

    digest: str
    content: bytes
    at_ns: int


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """What one transaction stores. ``rows`` have positions ``first``, ``first`` + 1, …; ``leaves`` are their hashes."""

    log: str
    sidecar: str
    journal: str
    jurisdiction: str
    first: int
    before_hashes: bytes  # of the frontier of ``first`` leaves
    before: Cursor
    after: Cursor
    rows: list[Row]
    leaves: bytes
    keys: list[KeyRow] = []
    bundles: list[StoredBundle] = []
    made_ns: int = 0

    @property
    def end(self) -> int:
        """The position after its last row."""
        return self.first + len(self.rows)

    @property
    def frontier(self) -> Frontier:
        """The tree before this batch."""
        return Frontier.unpack(self.first, self.before_hashes)

    @property
    def grown(self) -> Frontier:
        """The tree after it."""
        return _grown(self.first, self.before_hashes, self.leaves)


@lru_cache(maxsize=4)  # asked for where it is kept, claimed and stored; a batch has thousands of leaves
def _grown(first: int, hashes: bytes, leaves: bytes) -> Frontier:
    return Frontier.unpack(first, hashes).extended(leaves[at : at + 32] for at in range(0, len(leaves), 32))


class _OldRow(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call as batches held it before they were packed: its columns' values, times as datetimes."""

    position: int
    sequence: int
    started: datetime
    call_id: str
    values: list[Any]
    nbytes: int
    terms: list[int] = []

    def packed(self) -> CallRow:
        values: list[Any] = [_micros(value) if isinstance(value, datetime) else value for value in self.values]
        started = _micros(self.started)
        tenant, key = values[CALL_COLUMNS.index("tenant")], values[CALL_COLUMNS.index("data_key")]
        row, _ = pack_any(values)
        return CallRow(
            self.position, self.sequence, started, self.call_id, tenant, key, row, used_of(values, started), self.terms
        )


class _Kept(msgspec.Struct, array_like=True):
    """A batch as it may be on the disk."""

    log: str
    sidecar: str
    journal: str
    jurisdiction: str
    first: int
    before_hashes: bytes
    before: Cursor
    after: Cursor
    rows: list[CallRow | _OldRow | EventRow]
    leaves: bytes
    keys: list[KeyRow] = []
    bundles: list[StoredBundle] = []
    made_ns: int = 0


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Kept)


def make_batch(
    place: Batch, rows: Sequence[Row], leaves: Sequence[bytes] = (), *, keys: Sequence[KeyRow],
    bundles: Sequence[StoredBundle],
) -> Batch:  # fmt: skip
    """``place`` with what it holds; ``leaves``: of its rows, where they are known."""
    known = b"".join(leaves or map(leaf_of, rows))
    return msgspec.structs.replace(place, rows=list(rows), leaves=known, keys=list(keys), bundles=list(bundles))


def encode_batch(batch: Batch) -> bytes:
    return _ENCODER.encode(batch)


def decode_batch(data: bytes) -> Batch:
    """Raises msgspec's DecodeError, and ValueError where leaves and rows do not agree."""
    kept = _DECODER.decode(data)
    if len(kept.leaves) != 32 * len(kept.rows):
        raise ValueError(f"{len(kept.rows)} rows have {len(kept.leaves)} bytes of leaves")
    rows = [row.packed() if isinstance(row, _OldRow) else row for row in kept.rows]
    return Batch(**{**msgspec.structs.asdict(kept), "rows": rows})

"""Reads what records name in the object store: whether it is there, and is what the log says; each fault apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from audit.content import ContentError
from audit.evidence import Fault, FaultKind
from audit.objects import ObjectStore
from audit.payload import ObjectRef, column_of, refs_of, unpacked
from audit.tables import audit_calls, data_keys
from audit.vault import commitment, open_column

__all__ = ["ObjectState", "Objects", "check_objects", "opened", "state_of"]

LATE: Final = timedelta(hours=1)  # after its record an object may still wait on the sidecar's disk
_AT_ONCE: Final = 32  # read together, in as many threads as:
_THREADS: Final = 8
_SWAPPED: Final = 100  # for which it is asked whose they are


class ObjectState(StrEnum):
    """What became of an object that a record names."""

    THERE = "there"
    LATE = "late"  # not there yet, and young
    MISSING = "missing"
    ALTERED = "altered"


@dataclass(slots=True)
class Objects:
    """What was found; ``erased``: their keys are destroyed, so they open no more and were not asked for."""

    checked: int = 0
    late: int = 0
    erased: int = 0
    faults: list[Fault] = field(default_factory=list)


def state_of(data: bytes | None, ref: ObjectRef, shipped: datetime, now: datetime) -> ObjectState:
    """Of the bytes that were read in its place."""
    if data is None:
        return ObjectState.LATE if now - shipped <= LATE else ObjectState.MISSING
    same = len(data) == ref.nbytes and hashlib.sha256(data).digest() == ref.sha256
    return ObjectState.THERE if same else ObjectState.ALTERED


def opened(data: bytes, ref: ObjectRef, payloads: Mapping[str, Any], key: bytes) -> Sequence[bytes | None]:
    """Each tensor's bytes in the order of the row's list, held to the digests there; ``key`` is the record's.

    Raises ContentError.
    """
    try:
        salt, bodies = unpacked(open_column(key, column_of(ref.side), data))
    except msgspec.DecodeError as fault:
        raise ContentError(f"sealed, but no tensors: {fault}") from fault
    told = payloads[ref.side]["tensors"]
    for each, body in zip(told, bodies, strict=False):
        if body is not None and commitment(salt, hashlib.sha256(body).digest()).hex() != each[5]:
            raise ContentError(f"tensor {each[1]!r} is not the one that was committed to")
    if len(told) != len(bodies):
        raise ContentError(f"{len(bodies)} tensors where the record names {len(told)}")
    return bodies


@dataclass(frozen=True, slots=True)
class _Named:
    log: str
    position: int
    call_id: str
    shipped: datetime
    ref: ObjectRef


def check_objects(connection: sa.Connection, store: ObjectStore, now: datetime) -> Objects:
    """Every object that a record names, whole; in the caller's snapshot. Raises OSError where the store can't say."""
    found, wrong = Objects(), list[tuple[_Named, bytes]]()
    with ThreadPoolExecutor(_THREADS, "objects") as pool:
        for batch in _batches(_named(connection, found)):
            for each, data in zip(batch, pool.map(lambda one: store.get(one.ref.name), batch), strict=True):
                found.checked += 1
                match state_of(data, each.ref, each.shipped, now):
                    case ObjectState.THERE:
                        continue
                    case ObjectState.LATE:
                        found.late += 1
                    case ObjectState.MISSING:
                        found.faults.append(_fault(FaultKind.OBJECT_MISSING, each, "is not in the object store"))
                    case ObjectState.ALTERED:
                        assert data is not None
                        wrong.append((each, hashlib.sha256(data).digest()))
    for n, (each, digest) in enumerate(wrong):
        other = _whose(connection, digest) if n < _SWAPPED else None
        if other is not None:
            words = f"holds what the record of call {other} names"
            found.faults.append(_fault(FaultKind.OBJECT_SWAPPED, each, words))
        else:
            found.faults.append(_fault(FaultKind.OBJECT_ALTERED, each, "is not what its record names"))
    return found


def _named(connection: sa.Connection, found: Objects) -> Iterator[_Named]:
    c, k = audit_calls.c, data_keys.c
    query = (
        sa.select(c.log, c.position, c.call_id, c.shipped_at, c.payloads, k.wrapped.is_(None).label("erased"))
        .outerjoin(data_keys, k.id == c.data_key)
        .where(sa.text("payloads <> '{}'::jsonb"))
        .order_by(c.log, c.position)
    )
    for row in connection.execute(query.execution_options(stream_results=True)):
        try:
            refs = refs_of(row.payloads)
        except ValueError as fault:
            words = f"names no objects as a shipper does: {fault}"
            found.faults.append(Fault(FaultKind.ALTERED_COLUMN, row.log, words, row.position, row.call_id))
            continue
        if row.erased:
            found.erased += len(refs)
            continue
        yield from (_Named(row.log, row.position, row.call_id, row.shipped_at, ref) for ref in refs)


def _batches(named: Iterator[_Named]) -> Iterator[list[_Named]]:
    waiting: list[_Named] = []
    for each in named:
        waiting.append(each)
        if len(waiting) == _AT_ONCE:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _whose(connection: sa.Connection, digest: bytes) -> str | None:
    """The call whose record names an object of that digest."""
    c = audit_calls.c
    told = sa.cast(c.payloads, sa.Text).contains(digest.hex())
    query = sa.select(c.call_id).where(sa.text("payloads <> '{}'::jsonb"), told).limit(1)
    return connection.scalar(query)


def _fault(kind: FaultKind, each: _Named, words: str) -> Fault:
    return Fault(kind, each.log, f"{each.ref.side}: {each.ref.name} {words}", each.position, each.call_id)

"""Deletes from the object store what no key opens any more: what erasures and retention have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONPATH

from audit.objects import ObjectStore
from audit.payload import PREFIX, folder_of
from audit.tables import audit_calls, data_keys

__all__ = ["Swept", "delete_under", "named_objects", "sweep"]

STRAY: Final = timedelta(days=7)  # a key that the database does not know may be a restored one's, and come again
_AT_ONCE: Final = 1000


@dataclass(slots=True)
class Swept:
    """Objects that were deleted, and the folders (data keys) that they were in."""

    objects: int = 0
    keys: int = 0


def sweep(connection: sa.Connection, store: ObjectStore, today: date) -> Swept:
    """All objects under destroyed data keys, and under such as the database does not know, of days long past.

    Looks at each day's folders, not at each object. A bucket with versions keeps what it is told to delete as older
    versions: sealed, under keys that are gone. Raises OSError.
    """
    done = Swept()
    for name in store.folders(PREFIX):
        try:
            day = date.fromisoformat(name)
        except ValueError:
            continue  # not ours
        for keys in _chunks(store.folders(f"{PREFIX}/{name}")):
            for key in sorted(_gone(connection, keys, stray=today - day > STRAY)):
                done.objects += delete_under(store, day, key)
                done.keys += 1
    return done


def named_objects(connection: sa.Connection, ids: Sequence[str]) -> int:
    """How many objects the records under these data keys name."""
    c = audit_calls.c
    each = sa.func.jsonb_path_query_array(c.payloads, sa.cast("$.*.object", JSONPATH))
    query = sa.select(sa.func.coalesce(sa.func.sum(sa.func.jsonb_array_length(each)), 0))
    return int(connection.scalar(query.where(c.data_key.in_(ids), sa.text("payloads <> '{}'::jsonb"))) or 0)


def delete_under(store: ObjectStore, day: date, key: str) -> int:
    """The objects sealed under one data key; how many there were. Raises OSError."""
    names = [each.name for each in store.list(folder_of(day, key))]
    for name in names:
        store.delete(name)
    return len(names)


def _gone(connection: sa.Connection, keys: Sequence[str], *, stray: bool) -> set[str]:
    c = data_keys.c
    known = {row.id: row.wrapped for row in connection.execute(sa.select(c.id, c.wrapped).where(c.id.in_(keys)))}
    return {key for key in keys if (known[key] is None if key in known else stray)}


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    yield from (keys[at : at + _AT_ONCE] for at in range(0, len(keys), _AT_ONCE))

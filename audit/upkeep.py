"""What must be done in the database day by day: partitions made ahead, and retention run; every login may look."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as pg_insert

from audit import store
from audit.tables import database_facts

__all__ = ["Upkeep", "look", "note_retained"]

_RETAINED: Final = "retained_at"  # of database_facts: only the tables' owner writes there


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Both in seconds since the UNIX epoch."""

    room_until: float  # from then on there is no partition; now, where there is none today
    retained_at: float  # when retention last ran to its end; where it never did, the first day that there is


def look(connection: sa.Connection, now: datetime) -> Upkeep:
    """Raises the database's errors."""
    have = [{_day_of(name) for name in store.partitions(connection, table)} for table in store.PARTITIONED]
    whole, day = set.intersection(*have), now.astimezone(UTC).date()
    room = now
    while day in whole:
        day += timedelta(days=1)
        room = _midnight(day)
    told = connection.scalar(sa.select(database_facts.c.value).where(database_facts.c.key == _RETAINED))
    since = datetime.fromisoformat(told) if told else min([*map(_midnight, have[0]), now])
    return Upkeep(room.timestamp(), since.timestamp())


def note_retained(connection: sa.Connection, at: datetime) -> None:
    """That retention ran to its end; by the tables' owner."""
    fact = pg_insert(database_facts).values(key=_RETAINED, value=at.isoformat())
    connection.execute(fact.on_conflict_do_update(index_elements=["key"], set_={"value": fact.excluded.value}))


def _day_of(name: str) -> date:
    return date.fromisoformat(name[-8:])


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)

"""How commands that look at the past read a time: an age, or a day or a time with its zone, by offset or by name."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from sidecar.cli.common import Exit, fail
from sidecar.core.model import Instant

__all__ = ["TIME_HELP", "moment"]

TIME_HELP: Final = (
    "A day or a time with its zone (2026-11-30T09:00+01:00, 2026-11-30Z, '2026-11-30 Europe/Berlin') or an age"
    " (90s, 15m, 24h, 7d)."
)
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY: Final = re.compile(r"(\d{4}-\d\d-\d\d)(Z|[+-]\d\d(?::?\d\d)?)?")
_NAMED: Final = re.compile(r"(.*\S)\s+([A-Za-z][\w+/-]*)")


def moment(option: str, value: str | None, at: Instant) -> datetime | None:
    """What ``option`` says; exit 2 where it is no time. A day is its first moment, in the zone that is named."""
    if value is None:
        return None
    written = value.strip()
    try:
        ago = _AGO.fullmatch(written)
        if ago is not None:
            return datetime.fromtimestamp(at.wall, UTC) - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        named = _NAMED.fullmatch(written)
        if named is not None:
            return _in_zone(option, value, named[1], named[2])
        found = _read(written)
        if found.tzinfo is None:
            examples = f"{written}Z, {written}+01:00, or '{written} Europe/Berlin'"
            fail(Exit.USAGE, f"{option} {value!r} needs its zone: {examples}")
        return found.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter: off the calendar's end
        examples = "2026-11-30T09:00+01:00, 2026-11-30Z, '2026-11-30 Europe/Berlin', or an age such as 24h"
        fail(Exit.USAGE, f"{option} {value!r} is no time: write {examples}")


def _read(written: str) -> datetime:
    day = _DAY.fullmatch(written)
    return datetime.fromisoformat(f"{day[1]}T00:00{day[2] or ''}" if day is not None else written)


def _in_zone(option: str, value: str, written: str, name: str) -> datetime:
    """A wall clock's time in a zone of the IANA database; one that this clock shows twice, or never, is refused."""
    found = _read(written)
    if found.tzinfo is not None:
        fail(Exit.USAGE, f"{option} {value!r} names two zones")
    try:
        zone = ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found; no plain name; a directory of names
        fail(
            Exit.USAGE, f"{option} {value!r}: this machine knows no time zone {name}; there is Europe/Berlin, or +01:00"
        )
    first, second = (found.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset() and _DAY.fullmatch(written) is None:
        either = " or ".join(each.isoformat()[len(found.isoformat()) :] for each in (first, second))
        fail(Exit.USAGE, f"{option} {value!r}: the clocks change there; write it with its offset, {either}")
    return first.astimezone(UTC)

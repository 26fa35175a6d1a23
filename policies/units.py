"""Sizes, durations, rates and moments as people write them: ``8GiB``, ``15m``, ``50/s``, ``2026-12-01T09:00Z``."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

__all__ = [
    "Duration",
    "Moment",
    "Part",
    "Rate",
    "Size",
    "parse_duration",
    "parse_moment",
    "parse_part",
    "parse_rate",
    "parse_size",
]

# At most 15 digits, so that a number is exact in a float, and no text is long enough to overflow one.
_NUMBER: Final = r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*"
_SIZE: Final = re.compile(rf"{_NUMBER}(B|KiB|MiB|GiB|TiB)?\s*")
_SIZE_UNITS: Final = {None: 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MOST_BYTES: Final = 2**53  # so that all that is added up stays exact, also where it is a float
MOST_SECONDS: Final = 36_500 * 86_400.0  # in ns it is still 64 bits
_DURATION: Final = re.compile(rf"{_NUMBER}(ms|s|m|h|d)\s*")
_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9])?)\s*%\s*")
_RATE: Final = re.compile(rf"{_NUMBER}/\s*(s|m|h)\s*")
_RATE_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})")


def parse_size(value: Any) -> int:
    """``8GiB`` → bytes; a bare number is bytes. Raises ``ValueError``."""
    written = isinstance(value, int | str) and not isinstance(value, bool)
    match = _SIZE.fullmatch(str(value)) if written else None
    if match is None:
        raise ValueError("is not a size; write a number with B, KiB, MiB, GiB or TiB")
    size = int(float(match[1]) * _SIZE_UNITS[match[2]])
    if size > MOST_BYTES:
        raise ValueError("is more than 8192TiB")
    return size


def parse_duration(value: Any) -> float:
    """``15m`` → seconds. Raises ``ValueError``."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("is not a duration; write a number with ms, s, m, h or d")
    duration = float(match[1]) * _DURATION_UNITS[match[2]]
    if duration > MOST_SECONDS:
        raise ValueError("is more than 36500d")
    return duration


def parse_rate(value: Any) -> float:
    """``50/s`` → a second; also ``/m`` and ``/h``. Raises ``ValueError``."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("is not a rate; write a number a unit of time, such as 50/s, 600/m or 100/h")
    return float(match[1]) / _RATE_UNITS[match[2]]


def parse_moment(value: Any) -> float:
    """``2026-12-01T09:00+01:00`` → seconds since the UNIX epoch; a day is its first moment, UTC. Raises ``ValueError``.

    A time without its zone would mean another moment at each pod.
    """
    told = "is not a moment; write a day (2026-12-01, from 00:00 UTC) or a time with its zone (2026-12-01T09:00+01:00)"
    if not isinstance(value, str):
        raise ValueError(told)  # noqa: TRY004 — pydantic tells ValueErrors
    try:
        if _DAY.fullmatch(value):
            day = date.fromisoformat(value)
            return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
        if _MOMENT.fullmatch(value):
            return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError) as fault:
        words = "its zone is a day or more away" if "timedelta" in str(fault) else str(fault)
        raise ValueError(f"is not a moment: {words}") from None
    raise ValueError(told)


def _written(pattern: re.Pattern[str]) -> Any:
    """What an editor's JSON Schema says of such a text."""
    return Annotated[str, Field(pattern=f"^(?:{pattern.pattern})$")]


def parse_part(value: Any) -> int:
    """``25%`` → thousandths; at most one decimal place. Raises ``ValueError``."""
    match = _PART.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("is not a part; write a percentage such as 25%")
    return round(float(match[1]) * 10)


# What is read (bytes; seconds; a second; seconds since the epoch), and what an editor is told may be written.
Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=int | _written(_SIZE)), Field(gt=0)]
Duration = Annotated[float, BeforeValidator(parse_duration, json_schema_input_type=_written(_DURATION)), Field(gt=0)]
Rate = Annotated[float, BeforeValidator(parse_rate, json_schema_input_type=_written(_RATE)), Field(gt=0)]
Moment = Annotated[float, BeforeValidator(parse_moment, json_schema_input_type=_written(_DAY) | _written(_MOMENT))]
# Thousandths.
Part = Annotated[int, BeforeValidator(parse_part, json_schema_input_type=_written(_PART)), Field(ge=0, le=1000)]

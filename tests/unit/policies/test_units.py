"""Sizes, durations and rates: what is read and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from policies.units import parse_duration, parse_moment, parse_rate, parse_size


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_size, 7, 7),
        (parse_size, "7", 7),
        (parse_size, "7 B", 7),
        (parse_size, "1.5KiB", 1536),
        (parse_size, " 64MiB ", 64 * 2**20),
        (parse_size, "8GiB", 8 * 2**30),
        (parse_size, "2TiB", 2 * 2**40),
        (parse_size, "999999999999999", 999_999_999_999_999),
        (parse_duration, "250ms", 0.25),
        (parse_duration, "15m", 900.0),
        (parse_duration, "400d", 400 * 86400.0),
        (parse_duration, "1.5h", 5400.0),
        (parse_rate, "50/s", 50.0),
        (parse_rate, "600/m", 10.0),
        (parse_rate, "36 / h", 0.01),
        (parse_moment, "1970-01-02", 86400.0),
        (parse_moment, "2026-12-01T09:00Z", 1796115600.0),
        (parse_moment, "2026-12-01T09:00:30+01:00", 1796112030.0),
    ],
)
def test_reads(parse: Callable[[object], float], text: object, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_size, text) for text in (True, 1.5, None, "", "-1", "8GB", "1e3", "9" * 400, "8 GiB x", "٣MiB")),
        *((parse_duration, text) for text in (5, None, "", "-1s", "5", "5 w", "1s\n2s", "9" * 400 + "s")),
        *(
            (parse_moment, text)
            for text in (5, None, "", "2026-12", "2026-12-01T09:00", "2026-12-01 09:00Z", "tomorrow")
        ),
        *((parse_moment, text) for text in ("2026-02-30", "2026-12-01T25:00Z", "2026-12-01T09:00+99:00")),
        *((parse_rate, text) for text in (50, None, "", "50", "50/d", "/s", "-1/s", "50/s/s")),
    ],
)
def test_refuses(parse: Callable[[object], float], text: object) -> None:
    with pytest.raises(ValueError, match=r"^is not a "):
        parse(text)

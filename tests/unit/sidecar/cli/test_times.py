"""What may be typed for a time of the past, and that what is suggested in place of a wrong one is taken."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from sidecar.cli.common import Exit
from sidecar.cli.times import TIME_HELP, moment
from sidecar.core.model import Instant

AT = Instant(1_800_000_000 * 10**9, 0)
NOW = datetime.fromtimestamp(1_800_000_000, UTC)
WALLS = st.integers(31_536_000, 4_102_444_800).map(lambda s: datetime.fromtimestamp(s, UTC).replace(tzinfo=None))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-30T09:00+01:00", datetime(2026, 11, 30, 8, tzinfo=UTC)),
        ("2026-11-30T09:00:01.5Z", datetime(2026, 11, 30, 9, 0, 1, 500_000, tzinfo=UTC)),
        ("2026-11-30Z", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-30+01:00", datetime(2026, 11, 29, 23, tzinfo=UTC)),
        ("2026-11-30 UTC", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-30 Europe/Berlin", datetime(2026, 11, 29, 23, tzinfo=UTC)),
        ("2026-07-01 Europe/Berlin", datetime(2026, 6, 30, 22, tzinfo=UTC)),  # summer time
        ("2026-11-30T09:00 America/New_York", datetime(2026, 11, 30, 14, tzinfo=UTC)),
        ("2024-04-26 Africa/Cairo", datetime(2024, 4, 25, 22, tzinfo=UTC)),  # a day that begins at one o'clock
    ],
)
def test_a_time_is_read(written: str, meant: datetime) -> None:
    assert moment("--since", written, AT) == meant


def test_nothing_is_nothing() -> None:
    assert moment("--until", None, AT) is None


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("2026-11-30", "needs its zone"),
        ("2026-11-30T09:00", "needs its zone"),
        ("yesterday", "is no time"),
        ("2026-13-01Z", "is no time"),
        ("9999-12-31T23:59-12:00", "is no time"),
        ("1e9d", "is no time"),
        ("999999999d", "is no time"),
        ("last week", "is no time"),
        ("2026-11-30 Europe/Brelin", "knows no time zone Europe/Brelin"),
        ("2026-11-30 Europe", "knows no time zone Europe"),
        ("2026-11-30T09:00+01:00 Europe/Berlin", "names two zones"),
        ("2026-10-25T02:30 Europe/Berlin", "+02:00 or +01:00"),  # twice
        ("2026-03-29T02:30 Europe/Berlin", "+01:00 or +02:00"),  # never
    ],
)
def test_what_is_no_time_says_why(written: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        moment("--since", written, AT)
    told = capsys.readouterr().err
    assert left.value.exit_code == Exit.USAGE
    assert why in told
    assert f"--since {written!r}" in told


@pytest.mark.parametrize("wrong", ["2026-11-30", "2026-11-30T09:00", "yesterday"])
def test_what_a_fault_suggests_is_taken(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        moment("--since", wrong, AT)
    told = capsys.readouterr().err.partition(": ")[2].partition(": ")[2].replace(" or ", " ").strip()
    suggested = re.findall(r"'([^']+)'|([^,\s]*\d[^,\s]*)", told)
    assert len(suggested) >= 3
    for quoted, plain in suggested:
        assert moment("--since", quoted or plain, AT) is not None


def test_what_the_help_shows_is_taken() -> None:
    shown = re.findall(r"'([^']+)'|([\d][^,\s)]*)", TIME_HELP)
    assert len(shown) == 7
    for quoted, plain in shown:
        assert moment("--since", quoted or plain, AT) is not None


@given(WALLS, st.sampled_from(["UTC", "Asia/Kolkata", "Asia/Tokyo"]))
def test_a_wall_clock_that_never_changes_reads_as_its_offset(wall: datetime, zone: str) -> None:
    """Invariant: where a zone's clock does not change, its name means what its offset does."""
    offset = {"UTC": "+00:00", "Asia/Kolkata": "+05:30", "Asia/Tokyo": "+09:00"}[zone]
    assert moment("--since", f"{wall.isoformat()} {zone}", AT) == moment("--since", f"{wall.isoformat()}{offset}", AT)

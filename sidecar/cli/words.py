"""How the commands of keys and tokens read what an operator typed: times, durations, names of methods and roles."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Final

from policies.units import parse_duration
from sidecar.cli.common import Exit, fail
from sidecar.triton.methods import METHODS, ROLES

ROLES_HELP: Final = f"Roles, between commas: {', '.join(ROLES)}."
_LONGEST_S: Final = 36_500 * 86_400


def utc_now() -> datetime:
    return datetime.now(UTC)


def duration(option: str, value: str) -> timedelta:
    """A time span such as 90d, of at most 100 years; anything else ends the command with exit 2."""
    try:
        seconds = parse_duration(value)
    except ValueError as fault:
        fail(Exit.USAGE, f"{option}: {fault}")
    if seconds > _LONGEST_S:
        fail(Exit.USAGE, f"{option}: {value} is more than 100 years")
    return timedelta(seconds=seconds)


def moment(option: str, value: str, at: datetime) -> datetime:
    """A time with its offset, or a duration after ``at``."""
    if "T" not in value:
        return at + duration(option, value)
    try:
        found = datetime.fromisoformat(value)
        in_utc = found.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter: off the calendar's end once its offset is taken away
        fail(
            Exit.USAGE, f"{option}: {value!r} is neither a time such as 2027-01-01T00:00:00Z nor a duration such as 2h"
        )
    if found.tzinfo is None:
        fail(Exit.USAGE, f"{option}: {value}: which time zone? End it with Z, or with an offset such as +01:00")
    return in_utc


def names(option: str, value: str) -> tuple[str, ...]:
    """Printable names between commas."""
    given = tuple(name.strip() for name in value.split(","))
    if not all(name and name.isprintable() for name in given):
        fail(Exit.USAGE, f"{option} must be names between commas")
    return given


def known_methods(value: str) -> tuple[str, ...]:
    """Methods of the method table."""
    given = names("--methods", value)
    known = {method.name for method in METHODS.values()}
    strange = [name for name in given if name not in known]
    if strange:
        fail(Exit.USAGE, f"--methods: no method {strange[0]}; there are {', '.join(sorted(known))}")
    return given


def known_roles(value: str) -> tuple[str, ...]:
    """Roles of the method table; any other name is a slip, and lets its holder call nothing."""
    given = names("--roles", value)
    unknown = [name for name in given if name not in ROLES]
    if unknown:
        fail(Exit.USAGE, f"--roles: no role {', '.join(map(repr, unknown))}; there are {', '.join(ROLES)}")
    return given


def networks(value: str) -> tuple[str, ...]:
    """CIDR blocks between commas, as Python writes them."""
    try:
        return tuple(str(ip_network(name)) for name in names("--cidr", value))
    except ValueError as fault:
        fail(Exit.USAGE, f"--cidr: {fault}")

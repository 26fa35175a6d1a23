"""Which version of a model answers a call that asked for the latest: a canary's share, picked without memory."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, assert_never

from msgspec import Struct

__all__ = ["NO_ROUTE", "WHOLE", "Canary", "Route", "RouteKind", "Sticky", "route"]

WHOLE: Final = 10_000  # shares are counted in hundredths of a percent


class Sticky(StrEnum):
    """What keeps its version while the share stays as it is: a principal, or nothing beyond one request."""

    PRINCIPAL = "principal"
    REQUEST = "request"


class Canary(Struct, frozen=True):
    """A share (of ``WHOLE``) of a model's calls goes to ``version``, the others to ``stable``.

    ``tenants``: globs of those who take part (None: all); the others' calls all go to ``stable``.
    """

    version: str
    stable: str
    share: int
    sticky: Sticky = Sticky.PRINCIPAL
    tenants: tuple[str, ...] | None = None


class RouteKind(StrEnum):
    """Who chose the version."""

    CLIENT = "client"  # named one of a model that has a canary
    CANARY = "canary"
    STABLE = "stable"


class Route(Struct, frozen=True):
    """The version a call is sent to and ``why``, for its record. ``version`` "": what the client asked for stands."""

    version: str = ""
    kind: RouteKind | None = None  # None: its model has no canary
    why: str = ""


NO_ROUTE: Final = Route()


def route(
    model: str, canary: Canary | None, asked: str, *, tenant: str, principal: str, call_id: str, sequence: bool
) -> Route:
    """``asked``: the version that the client named ("": none). The same arguments give the same version everywhere.

    A call that belongs to a sequence is never a canary's: the sequence's state is in one version, and a share that is
    moved between two of its requests must not lose it.
    """
    if canary is None:
        return NO_ROUTE
    if asked:
        return Route("", RouteKind.CLIENT, "the client asked for it")
    percent = f"{canary.share / 100:g}% of canary {canary.version}"
    if sequence:
        return Route(canary.stable, RouteKind.STABLE, f"a sequence stays out of {percent}")
    if canary.tenants is not None and not any(fnmatchcase(tenant, pattern) for pattern in canary.tenants):
        return Route(canary.stable, RouteKind.STABLE, f"the tenant stays out of {percent}")
    match canary.sticky:
        case Sticky.PRINCIPAL:
            who = f"{tenant}\0{principal}"
        case Sticky.REQUEST:
            who = call_id
        case unreachable:
            assert_never(unreachable)
    why = f"{percent} by {canary.sticky}"
    if _place(model, canary.version, who) < canary.share:
        return Route(canary.version, RouteKind.CANARY, f"in {why}")
    return Route(canary.stable, RouteKind.STABLE, f"not in {why}")


def _place(model: str, version: str, who: str) -> int:
    """Where ``who`` stands in 0 … ``WHOLE`` - 1. Those in a share stay in it while it grows.

    Keyed by model and version, so that it isn't always the same few who get what is new.
    """
    key = hashlib.blake2b(f"{model}\0{version}".encode(), digest_size=16).digest()
    found = hashlib.blake2b(who.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
    return int.from_bytes(found) * WHOLE >> 64

"""What a policy remembers of its answers: by no more than they depend on, for no longer than they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, assert_never

from policies.bundle import Bundle
from policies.moments import Interval
from sidecar.core.model import Call, Denial, Principal, Verdict
from sidecar.core.scope import address_of

__all__ = ["MAX_VERDICTS", "Key", "Memory", "address", "further"]

# At most 4096 × (a model's name of 256 + a declared data class of 64 + a principal's name of 256 characters): 4 MB.
MAX_VERDICTS: Final = 4096
Key = tuple[object, ...]
_OfPrincipal = Literal["name", "issuer", "kind", "roles"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Answers that hold for one interval, in which no date begins or ends and no time that policies look at changes."""

    interval: Interval
    at: float  # within it
    verdicts: dict[Key, Verdict | Denial] = field(default_factory=dict)
    seen: dict[Key, bool] = field(default_factory=dict)


def further(bundle: Bundle) -> tuple[Callable[[Principal, Call], object], ...]:
    """What else answers of this bundle are remembered by: no more than its policies and documents look at."""
    mentions = bundle.access.mentions
    names: tuple[_OfPrincipal, ...] = ("name", "issuer", "kind", "roles")
    found: list[Callable[[Principal, Call], object]] = [_principals(name) for name in names if name in mentions]
    if "source" in mentions:
        found.append(lambda _, call: address(call.peer))
    keyed = frozenset((tenant.name, key) for tenant in bundle.tenants.values() for key in tenant.keys or ())
    if keyed:
        found.append(lambda who, _: who.kind == "api_key" and (who.tenant, who.name) in keyed and who.name)
    return tuple(found)


def _principals(name: _OfPrincipal) -> Callable[[Principal, Call], object]:
    match name:
        case "name":
            return lambda who, _: who.name
        case "issuer":
            return lambda who, _: who.issuer
        case "kind":
            return lambda who, _: who.kind
        case "roles":
            return lambda who, _: who.roles
        case _:
            assert_never(name)


@lru_cache(maxsize=4096)
def address(peer: str) -> str:
    found = address_of(peer)
    return "" if found is None else str(found)

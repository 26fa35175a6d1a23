"""What a bundle's access policies compare with: the values between which their answers may change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, Final

import cedarpy

from policies.bundle import Bundle
from policies.names import Pattern, like, literal
from policies.statements import literals, nodes

__all__ = ["Looked", "looked_at", "tree_of"]

_OUTSIDE: Final = "192.0.2.1"  # TEST-NET-1 (RFC 5737): in no network of anybody's
_KINDS: Final = ("2001:db8::1", "127.0.0.1", "::1", "224.0.0.1", "ff02::1")  # that Cedar has words for
_ASKS_FOR_KINDS: Final = re.compile(r"\.is(Ipv4|Ipv6|Loopback|Multicast)\(")
_IP: Final = re.compile(r'\bip\("([0-9a-fA-F.:]+(?:/[0-9]+)?)"\)')
_TIMES: Final[Mapping[str, range]] = {"hour": range(24), "minute": range(60), "weekday": range(1, 8)}
_ORDERS: Final = ("==", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Looked:
    """Of both bundles' policies: patterns of texts by attribute, entities by type, and what else they name."""

    mentions: frozenset[str]
    texts: Mapping[str, frozenset[Pattern]]  # by attribute: data_class, issuer, name
    entities: frozenset[tuple[str, str]]
    addresses: tuple[str, ...]
    times: Mapping[str, tuple[int, ...]]  # hour, minute, weekday: those that must be asked about; () for any will do

    def named(self, kind: str) -> list[str]:
        """The ids of the entities of one type."""
        return sorted(id_ for type_, id_ in self.entities if type_ == kind)


@lru_cache(maxsize=4096)
def tree_of(text: str) -> Mapping[str, Any]:
    """A policy as Cedar's JSON, of a text that was checked before."""
    (policy,) = json.loads(cedarpy.policies_to_json_str(text))["staticPolicies"].values()
    return dict(policy)


def looked_at(bundles: Iterable[Bundle]) -> Looked:
    bundles = tuple(bundles)
    written = [statement.text for bundle in bundles for statement in bundle.access.statements.values()]
    trees = [tree_of(text) for text in dict.fromkeys(written)]
    mentions = frozenset(name for bundle in bundles for name in bundle.access.mentions)
    return Looked(
        mentions=mentions,
        texts={name: frozenset(_texts(trees, name)) for name in ("data_class", "issuer", "name")},
        entities=frozenset(entity for tree in trees for entity in literals(tree)),
        addresses=tuple(_addresses(written)) if "source" in mentions else (),
        times={name: _values(trees, name) if name in mentions else () for name in _TIMES},
    )


def _texts(trees: Iterable[Mapping[str, Any]], attribute: str) -> Iterator[Pattern]:
    """Every text in a policy that looks at the attribute: what it compares that with is among them."""
    for tree in trees:
        found = list(nodes(tree.get("conditions", [])))
        if not any(node.get("attr") == attribute for node in found):
            continue
        for node in found:
            value, pattern = node.get("Value"), node.get("pattern")
            if isinstance(value, str):
                yield literal(value)
            if isinstance(pattern, list):
                yield like(pattern)


def _addresses(written: Iterable[str]) -> Iterator[str]:
    """Of each network the first address and the one behind its last: of any that nest, each is told from the others."""
    written = list(written)
    yield from ("", _OUTSIDE)
    if any(_ASKS_FOR_KINDS.search(text) for text in written):
        yield from _KINDS
    for found in sorted({found for text in written for found in _IP.findall(text)}):
        network = ip_network(found, strict=False)
        yield str(network.network_address)
        behind = int(network.broadcast_address) + 1
        if behind < 1 << network.max_prefixlen:
            yield str(type(ip_address(network.network_address))(behind))


def _values(trees: Iterable[Mapping[str, Any]], name: str) -> tuple[int, ...]:
    """The values that must be asked about; all of them where some policy does more than compare with a number."""
    whole = _TIMES[name]
    bounds: set[int] = {whole[0]}
    for tree in trees:
        compared = 0
        found = list(nodes(tree.get("conditions", [])))
        for node in found:
            for order in _ORDERS:
                sides = node.get(order)
                if isinstance(sides, dict) and "left" in sides:
                    bound = _bound(sides, name)
                    compared += bound is not None
                    bounds |= set() if bound is None else {bound - 1, bound, bound + 1}
        if sum(_is(node, name) for node in found) != compared:
            return tuple(whole)
    return tuple(value for value in whole if value in bounds)


def _bound(sides: Mapping[str, Any], name: str) -> int | None:
    """The number that the attribute is compared with."""
    for one, other in ((sides["left"], sides["right"]), (sides["right"], sides["left"])):
        value = other.get("Value") if isinstance(other, dict) else None
        if isinstance(one, dict) and _is(one, name) and isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _is(node: Mapping[str, Any], name: str) -> bool:
    """Whether it is ``context.name``."""
    found = node.get(".")
    return isinstance(found, dict) and found.get("attr") == name and found.get("left") == {"Var": "context"}

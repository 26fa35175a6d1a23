"""What a credential itself narrows: the methods it may call, and the addresses it may be used from."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from sidecar.core.model import Call, Denial, Principal
from sidecar.core.reasons import Reason

if TYPE_CHECKING:
    from ipaddress import IPv4Address


def outside(who: Principal, call: Call) -> Denial | None:
    """Why ``call`` is outside of what ``who``'s credential allows; None where it is within."""
    if who.methods is not None and call.method.name not in who.methods:
        return Denial(Reason.METHOD_NOT_ALLOWED, f"the credential is not for {call.method.name}", rule="key.methods")
    if who.networks is not None:
        address = address_of(call.peer)
        if address is None or not any(address in network for network in who.networks):
            return Denial(
                Reason.POLICY_FORBIDS,
                "the credential may not be used from this address",
                rule="key.networks",
                internal=f"peer {call.peer!r}",
            )
    return None


def address_of(peer: str) -> IPv4Address | IPv6Address | None:
    """The address in ``host:port`` (IPv6 in brackets, or bare as Envoy writes it); None where there is none.

    An IPv4 address that came through an IPv6 socket is the IPv4 address.
    """
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address

"""A credential's own scope: methods and networks, and how a peer's address is read."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from sidecar.core.model import Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.core.scope import address_of, outside
from tests.support.core import a_call as call


def who(**scope: object) -> Principal:
    networks = scope.get("networks")
    if isinstance(networks, tuple):
        scope["networks"] = tuple(ip_network(each) for each in networks)
    return Principal("acme", "laptop", "api_key", **scope)  # type: ignore[arg-type] — by name


def reason(found: Denial | None) -> Reason | None:
    return None if found is None else found.reason


def test_methods() -> None:
    made = call()
    assert outside(who(), made) is None
    assert outside(who(methods=(made.method.name, "ServerLive")), made) is None
    assert reason(outside(who(methods=("ServerLive",)), made)) is Reason.METHOD_NOT_ALLOWED
    assert reason(outside(who(methods=()), made)) is Reason.METHOD_NOT_ALLOWED


@pytest.mark.parametrize(
    ("peer", "within"),
    [
        ("10.1.2.3:5000", True),
        ("10.255.255.255:1", True),
        ("11.0.0.1:5000", False),
        ("[2001:db8::7]:443", True),
        ("2001:db8::7:443", True),  # as Envoy writes it: the port is what stands behind the last colon
        ("[2001:db9::7]:443", False),
        ("[::ffff:10.1.2.3]:443", True),
        ("[fe80::1%eth0]:443", False),
        ("", False),
        ("unix:", False),
        ("localhost:80", False),
    ],
)
def test_networks(peer: str, within: bool) -> None:
    found = outside(who(networks=("10.0.0.0/8", "2001:db8::/32")), call(peer=peer))
    assert reason(found) is (None if within else Reason.POLICY_FORBIDS)
    assert found is None or found.rule == "key.networks"
    assert found is None or (peer not in found.public or not peer)


def test_an_address_is_read_without_its_port() -> None:
    assert address_of("127.0.0.1:52144") == ip_address("127.0.0.1")
    assert address_of("[::1]:52144") == ip_address("::1")

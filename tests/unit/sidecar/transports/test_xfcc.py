"""What Envoy writes of a client's certificate, and nothing else, is read."""

from __future__ import annotations

import pytest

from sidecar.transports.xfcc import uris


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("Hash=ab12;URI=spiffe://acme.example/pod", ("spiffe://acme.example/pod",)),
        ("Hash=ab12;URI=spiffe://a/1;URI=spiffe://a/2", ("spiffe://a/1", "spiffe://a/2")),
        ('By="";Hash=ab;Subject="CN=x,O=\\"y\\"";URI=spiffe://a/1', ("spiffe://a/1",)),
        ('Hash=ab;URI="spiffe://a/b,c;URI=spiffe://evil/x"', ("spiffe://a/b,c;URI=spiffe://evil/x",)),
        ('URI="spiffe://a/\\"q\\""', ('spiffe://a/"q"',)),
        ("Hash=ab12;URI=", ()),
        ("Hash=ab12", ()),
        ("", ()),
        ("spiffe://a/1", ()),
        ("URI=spiffe://a/1,URI=spiffe://b/2", ()),  # two elements: not what our Envoy writes
        ('Hash=ab;URI="spiffe://a', ()),
        (";;", ()),
    ],
)
def test_the_uris_of_one_element(value: str, found: tuple[str, ...]) -> None:
    assert uris(value) == found

"""What Envoy writes of a client's certificate, and nothing else, is read."""

from __future__ import annotations

import pytest

from sidecar.transports.xfcc import uris

HASH = "Hash=" + "ab12" * 16


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (f"{HASH};URI=spiffe://acme.example/pod", ("spiffe://acme.example/pod",)),
        (f"{HASH};URI=spiffe://a/1;URI=spiffe://a/2", ("spiffe://a/1", "spiffe://a/2")),
        (f"By=spiffe://server/1;By=https://x/y;{HASH};URI=spiffe://a/1", ("spiffe://a/1",)),
        (f"By=;{HASH};URI=spiffe://a/1?b=c", ("spiffe://a/1?b=c",)),
        (f"{HASH};URI=", ()),
        (HASH, ()),
        ("", ()),
        ("spiffe://a/1", ()),
        # A URI is written as the certificate has it, unquoted: what is left of one must not be another.
        (f"{HASH};URI=spiffe://a/1;By=x", ()),
        (f"{HASH};URI=spiffe://a/1;Hash={'c' * 64}", ()),
        (f"{HASH};URI=spiffe://a/1;Foo=", ()),
        (f"{HASH};URI=spiffe://a/1,{HASH};URI=spiffe://b/2", ()),
        (f'{HASH};URI="spiffe://a/1"', ()),
        (f"{HASH};URI=spiffe://a/1;", ()),
        (f"{HASH};Subject=x;URI=spiffe://a/1", ()),
        ("Hash=ab;URI=spiffe://a/1", ()),
        ("URI=spiffe://a/1", ()),
        (f"{HASH};uri=spiffe://a/1", ()),
        (";;", ()),
    ],
)
def test_the_uris_of_one_element(value: str, found: tuple[str, ...]) -> None:
    assert uris(value) == found


def test_a_long_one_is_read_in_one_pass() -> None:
    assert uris(HASH + ';URI="\\' * 20_000) == ()
    assert len(uris(HASH + ";URI=a" * 5_000)) == 5_000

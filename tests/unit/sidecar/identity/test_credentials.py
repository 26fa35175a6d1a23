"""Exactly one credential, or the reason why not."""

from __future__ import annotations

import pytest

from sidecar.core.model import Credential, Denial
from sidecar.core.reasons import Reason
from sidecar.identity.credentials import MAX_CREDENTIAL, extract

MISSING, AMBIGUOUS = Reason.CREDENTIAL_MISSING, Reason.CREDENTIAL_AMBIGUOUS
KEY = "wdn_live_000000000000_" + "a" * 49


@pytest.mark.parametrize(
    ("headers", "kind", "value"),
    [
        ([("authorization", "Bearer a.b.c")], "jwt", b"a.b.c"),
        ([(b"Authorization", b"bearer a.b.c")], "jwt", b"a.b.c"),
        ([("authorization", "  BEARER   a.b.c\t")], "jwt", b"a.b.c"),
        ([("authorization", f"Bearer {KEY}")], "api_key", KEY.encode()),
        ([("x-api-key", KEY)], "api_key", KEY.encode()),
        ([("X-API-Key", "hello")], "api_key", b"hello"),
        ([("user-agent", "x"), ("x-api-key", KEY), ("te", "trailers")], "api_key", KEY.encode()),
        ([("authorization", "Bearer naïve")], "jwt", "naïve".encode()),
    ],
)
def test_finds_the_one_credential(headers: list[tuple[str, str]], kind: str, value: bytes) -> None:
    found = extract(headers)
    assert isinstance(found, Credential)
    assert (found.kind, found.secret.reveal()) == (kind, value)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], MISSING),
        ([("user-agent", "x")], MISSING),
        ([("authorization", "")], MISSING),
        ([("authorization", "Bearer")], MISSING),
        ([("authorization", "Bearer   ")], MISSING),
        ([("authorization", "Basic YTpi")], MISSING),
        ([("authorization", "DPoP a.b.c")], MISSING),
        ([("authorization", "a.b.c")], MISSING),
        ([("authorization", "Bearera.b.c")], MISSING),
        ([("authorization", "Bearer\ta.b.c")], MISSING),
        ([("x-api-key", " ")], MISSING),
        ([("authorization", "Bearer a.b.c"), ("authorization", "Bearer a.b.c")], AMBIGUOUS),
        ([("authorization", "Bearer a.b.c"), ("Authorization", "Basic YTpi")], AMBIGUOUS),
        ([("authorization", "Bearer a.b.c"), ("x-api-key", KEY)], AMBIGUOUS),
        ([("x-api-key", KEY), ("authorization", "Basic YTpi")], AMBIGUOUS),
        ([("x-api-key", KEY), ("x-api-key", "")], AMBIGUOUS),
        ([("authorization", "Bearer a.b.c, Bearer d.e.f")], AMBIGUOUS),
        ([("x-api-key", f"{KEY},{KEY}")], AMBIGUOUS),
        ([("authorization-bin", "QmVhcmVy")], AMBIGUOUS),
        ([("authorization", "Bearer a.b.c"), ("authorization-bin", "QmVhcmVy")], AMBIGUOUS),
        ([("X-Api-Key-Bin", b"QmVhcmVy")], AMBIGUOUS),
        ([("authorization", "Bearer " + "a" * (MAX_CREDENTIAL + 1))], Reason.TOKEN_MALFORMED),
        ([("x-api-key", "wdn_" + "a" * MAX_CREDENTIAL)], Reason.KEY_UNKNOWN),
    ],
)
def test_refuses_none_two_and_unclear_ones(headers: list[tuple[str, str]], reason: Reason) -> None:
    found = extract(headers)
    assert isinstance(found, Denial)
    assert found.reason is reason


@pytest.mark.parametrize("token", ["eyJh.eyJp.sig", "eyJh.eyJp." + "a" * MAX_CREDENTIAL])
def test_a_token_sent_as_a_key_is_told_where_it_belongs(token: str) -> None:
    found = extract([("x-api-key", token)])
    assert isinstance(found, Denial)
    assert (found.reason, found.detail) == (Reason.KEY_UNKNOWN, "this is a token: send it as authorization: Bearer")
    assert isinstance(extract([("x-api-key", "eyJh.eyJp")]), Credential)  # another shape is a key like any other
    assert isinstance(extract([("x-api-key", "a.b.c")]), Credential)


def test_takes_the_longest_credential_there_may_be() -> None:
    found = extract([("authorization", "Bearer " + "a" * MAX_CREDENTIAL)])
    assert isinstance(found, Credential)


def test_a_refusal_repeats_nothing_of_the_credential() -> None:
    for headers in ([("authorization", "Basic c2VjcmV0")], [("x-api-key", "c2VjcmV0,c2VjcmV0")]):
        found = extract(headers)
        assert isinstance(found, Denial)
        assert "c2VjcmV0" not in repr(found)


def test_a_certificate_counts_where_no_header_does() -> None:
    found = extract([("user-agent", "x")], ("spiffe://a/b",))
    assert isinstance(found, Credential)
    assert (found.kind, found.secret.reveal()) == ("certificate", b"spiffe://a/b")


def test_a_header_counts_before_a_certificate_even_a_bad_one() -> None:
    found = extract([("x-api-key", KEY)], ("spiffe://a/b",))
    assert isinstance(found, Credential)
    assert found.kind == "api_key"
    for headers, reason in (([("x-api-key", "")], MISSING), ([("x-api-key", KEY)] * 2, AMBIGUOUS)):
        refused = extract(headers, ("spiffe://a/b",))
        assert isinstance(refused, Denial)
        assert refused.reason is reason


def test_a_certificate_of_several_uris_is_ambiguous() -> None:
    refused = extract([], ("spiffe://a/b", "spiffe://a/c"))
    assert isinstance(refused, Denial)
    assert refused.reason is AMBIGUOUS


def test_a_bound_listener_speaks_for_who_sends_nothing_and_refuses_who_sends_anything() -> None:
    found = extract([("user-agent", "x")], listener="127.0.0.1:8015")
    assert isinstance(found, Credential)
    assert (found.kind, found.secret.reveal()) == ("listener", b"127.0.0.1:8015")
    for headers in (
        [("x-api-key", KEY)],
        [("authorization", "Bearer a.b.c")],
        [("authorization", "")],
        [("x-api-key-bin", "QQ==")],
        [("x-api-key", KEY), ("authorization", "Bearer a.b.c")],
    ):
        refused = extract(headers, listener="127.0.0.1:8015")
        assert isinstance(refused, Denial)
        assert refused.reason is AMBIGUOUS

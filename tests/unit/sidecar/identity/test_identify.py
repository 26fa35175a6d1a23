"""The door dispatches by kind, and drags nothing heavy behind it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sidecar.core.model import Denial, Principal, Secret
from sidecar.core.reasons import Reason
from sidecar.identity import keys
from sidecar.identity.denials import Age
from sidecar.identity.identify import CertificateRule, Identifier
from sidecar.identity.jwt import TokenVerifier
from sidecar.identity.keys import KeyRing, KeySnapshot
from sidecar.identity.keytable import KeyTable
from tests.support.identity import NOW, claims, credential, generate, issuer, jwk, jwks, key_row, seeded, sign, source

PEPPER = Secret(b"p" * 32)
KEY = keys.generate("live", seeded(1))
SIGNER = generate("EdDSA")


def identifier(*, ring: bool = True) -> Identifier:
    made = KeyRing(PEPPER, "live", max_age=60)
    made.install(KeySnapshot(KeyTable([key_row(KEY.id, keys.mac(PEPPER, KEY.secret))]), Age(NOW)))
    tokens = TokenVerifier([(issuer(), source(jwks(jwk(SIGNER, "k")), ("EdDSA",)))])
    return Identifier(tokens, made if ring else None)


def test_both_kinds() -> None:
    by_key = identifier().identify(credential("api_key", KEY.text().encode()), NOW)
    token = sign(SIGNER, "EdDSA", {"alg": "EdDSA", "kid": "k"}, claims())
    by_token = identifier().identify(credential("jwt", token), NOW)
    assert isinstance(by_key, Principal)
    assert isinstance(by_token, Principal)
    assert (by_key.kind, by_token.kind) == ("api_key", "jwt")


def test_without_a_ring_no_key_is_known() -> None:
    found = identifier(ring=False).identify(credential("api_key", KEY.text().encode()), NOW)
    assert isinstance(found, Denial)
    assert found.reason is Reason.KEY_UNKNOWN


def test_a_third_kind_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        identifier().identify(credential("ticket", b"x"), NOW)


def test_the_request_path_imports_neither_sqlalchemy_nor_grpc() -> None:
    code = (
        "import sys, sidecar.identity.identify, sidecar.identity.refresh, sidecar.identity.credentials\n"
        "print([name for name in ('sqlalchemy', 'grpc', 'asyncpg') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


def test_a_certificate_is_the_first_rule_that_fits() -> None:
    rules = (
        CertificateRule("spiffe://x/ns/acme/*", "acme", ("tenant", "operator")),
        CertificateRule("spiffe://x/*", "birch"),
    )
    door = Identifier(TokenVerifier([]), None, rules)
    found = door.identify(credential("certificate", b"spiffe://x/ns/acme/sa/a"), NOW)
    assert found == Principal("acme", "spiffe://x/ns/acme/sa/a", "certificate", frozenset({"tenant", "operator"}))
    other = door.identify(credential("certificate", b"spiffe://x/ns/acme"), NOW)
    assert isinstance(other, Principal)
    assert other.tenant == "birch"
    for uri in (b"spiffe://y/ns/acme/sa/a", b"SPIFFE://x/ns/acme/sa/a", b"", b"\xff"):
        nobody = door.identify(credential("certificate", uri), NOW)
        assert isinstance(nobody, Denial)
        assert nobody.reason is Reason.CREDENTIAL_MISSING
        assert not uri or uri.decode("latin-1") not in nobody.public


def test_a_bound_listener_is_its_principal_and_no_other_is_known() -> None:
    who = Principal("acme", "perf", "listener", frozenset({"tenant"}))
    door = Identifier(TokenVerifier([]), None, listeners={"127.0.0.1:8015": who})
    assert door.identify(credential("listener", b"127.0.0.1:8015"), NOW) is who
    with pytest.raises(KeyError):
        door.identify(credential("listener", b"127.0.0.1:8016"), NOW)


@pytest.mark.parametrize(
    "path",
    ["/ns/acme/../birch/sa/a", "/ns/acme/./a", "/ns/acme/..", "/ns/acme/", "/ns/acme//a", "/ns/acme/%2e%2e/birch",
     "/ns/acme/a;URI=spiffe://x/ns/birch/a", "/ns/acme/a?x", "/ns/acme/a#x", "/ns/acme/a\n", "/ns/acme/ä",
     "/ns/acme/" + "a" * 2100, "/ns/acme/a,b", "/ns/acme/a b"],
)  # fmt: skip
def test_what_is_no_spiffe_id_fits_no_rule(path: str) -> None:
    """SPIFFE-ID §2. A path with dots or escapes could be one tenant's to us and another's to who reads it later."""
    tokens = TokenVerifier([])
    door = Identifier(tokens, None, [CertificateRule("spiffe://x/ns/acme/*", "acme")])
    assert isinstance(door.identify(credential("certificate", b"spiffe://x/ns/acme/a-b_c.d/...e"), NOW), Principal)
    found = door.identify(credential("certificate", f"spiffe://x{path}".encode()), NOW)
    assert isinstance(found, Denial)
    assert found.reason is Reason.CREDENTIAL_MISSING
    for domain in ("X", "x:1", "user@x", ""):
        assert isinstance(
            door.identify(credential("certificate", f"spiffe://{domain}/ns/acme/a".encode()), NOW), Denial
        )

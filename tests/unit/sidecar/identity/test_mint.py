"""What is minted is what the verifier accepts; keys are written for their owner only."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Literal

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sidecar.core.model import Principal
from sidecar.identity import compact, mint
from sidecar.identity.jwt import TokenVerifier
from sidecar.identity.mint import Assertion, SigningKey
from tests.support.identity import AUDIENCE, ISSUER, NOW, generate, issuer, source

SAID = Assertion(ISSUER, AUDIENCE, "acme", "alice", 900, "cli:olga", ("tenant",), scope="chat")


def new(kind: Literal["EdDSA", "ES256"] = "EdDSA") -> SigningKey:
    key = mint.load_key(mint.generate_key(kind))
    assert isinstance(key, SigningKey)
    return key


@pytest.mark.parametrize("kind", ["EdDSA", "ES256"])
def test_a_minted_token_verifies_against_the_published_keys(kind: Literal["EdDSA", "ES256"]) -> None:
    key = new(kind)
    token, expires = mint.mint(key, SAID, token_id="01-id", at=NOW + 0.9)
    keys = source(mint.public_jwks(key), (kind,))
    for required in (None, "at+jwt"):
        verifier = TokenVerifier([(issuer(algorithms=(kind,), type=required), keys)])
        found = verifier.identify(token.encode(), NOW)
        assert isinstance(found, Principal)
        assert (found.tenant, found.name, found.expires_at) == ("acme", "alice", expires)
        assert found.actor == "cli:olga"  # goes into each call's record
    assert expires == NOW + 900


@pytest.mark.parametrize("kind", ["EdDSA", "ES256"])
def test_a_new_keys_kid_is_never_taken_for_an_option(kind: Literal["EdDSA", "ES256"]) -> None:
    assert all(new(kind).kid[0].isalnum() for _ in range(200))


def test_a_token_says_who_minted_it() -> None:
    token, _ = mint.mint(new(), SAID, token_id="01-id", at=NOW)
    read = compact.parse(token.encode())
    assert isinstance(read, compact.Compact)
    assert read.payload["act"] == {"sub": "cli:olga"}
    assert read.payload["jti"] == "01-id"
    assert read.payload["scope"] == "chat"


def test_the_kid_is_the_rfc_8037_thumbprint() -> None:
    """RFC 8037, appendix A.3."""
    public = json.dumps({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"})
    assert mint._public(public, "EdDSA")["kid"] == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_the_published_set_holds_nothing_private() -> None:
    keys = json.loads(mint.public_jwks(new(), new("ES256")))["keys"]
    assert all("d" not in key for key in keys)
    assert [key["alg"] for key in keys] == ["EdDSA", "ES256"]


def test_other_keys_are_refused_in_words() -> None:
    def pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
        how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)

    assert mint.load_key(b"no") == "not an unencrypted private key in PEM"
    assert mint.load_key(pem(generate("ES256"), b"pw")) == "not an unencrypted private key in PEM"
    assert mint.load_key(pem(generate("ES384"))) == "neither Ed25519 nor P-256"


def test_a_private_key_is_its_owners_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    mint.write_private(path, b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        mint.write_private(path, b"other")
    assert path.read_bytes() == b"secret"


def test_repr_shows_nothing_private() -> None:
    assert "object at" not in repr(new())


def test_a_public_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    mint.write_public(path, b"one")
    mint.write_public(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]

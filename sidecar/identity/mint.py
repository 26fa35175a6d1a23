"""Signs tokens for ``warden token mint`` and publishes the key that verifies them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm

Private = Ed25519PrivateKey | ec.EllipticCurvePrivateKey
# RFC 7638 §3.2: the members a thumbprint is made of.
_THUMBPRINT: Final = {"OKP": ("crv", "kty", "x"), "EC": ("crv", "kty", "x", "y")}


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key with its algorithm, its public JWK, and its RFC 7638 thumbprint as kid."""

    private: Private
    algorithm: Literal["EdDSA", "ES256"]
    public: Mapping[str, str]

    @property
    def kid(self) -> str:
        return self.public["kid"]

    def __repr__(self) -> str:
        return f"SigningKey({self.algorithm}, kid={self.kid})"


@dataclass(frozen=True, slots=True)
class Assertion:
    """What a token says. ``lifetime`` in seconds; ``operator`` is who minted it (the ``act`` claim, RFC 8693 §4.1)."""

    issuer: str
    audience: str
    tenant: str
    subject: str
    lifetime: int
    operator: str
    roles: tuple[str, ...] = ("tenant",)
    scope: str | None = None


def generate_key(kind: Literal["EdDSA", "ES256"] = "EdDSA") -> bytes:
    """A new private key, PKCS #8 in PEM. Its kid begins with a letter or a digit: people type it into commands."""
    while True:  # one key of 32 is left: base64url begins with "-" or "_" that often
        private: Private = Ed25519PrivateKey.generate() if kind == "EdDSA" else ec.generate_private_key(ec.SECP256R1())
        if _jwk(private)["kid"][0].isalnum():
            return private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )


def load_key(pem: bytes) -> SigningKey | str:
    """An Ed25519 or P-256 private key from PEM, or in words why not."""
    try:
        private = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        return "not an unencrypted private key in PEM"
    if isinstance(private, Ed25519PrivateKey):
        return SigningKey(private, "EdDSA", _jwk(private))
    if isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
        return SigningKey(private, "ES256", _jwk(private))
    return "neither Ed25519 nor P-256"


def _jwk(private: Private) -> Mapping[str, str]:
    if isinstance(private, Ed25519PrivateKey):
        return _public(OKPAlgorithm.to_jwk(private.public_key()), "EdDSA")
    return _public(ECAlgorithm.to_jwk(private.public_key()), "ES256")


def _public(jwk: str, algorithm: str) -> Mapping[str, str]:
    members: dict[str, str] = json.loads(jwk)
    named = {name: members[name] for name in _THUMBPRINT[members["kty"]]}
    digest = hashlib.sha256(json.dumps(named, separators=(",", ":"), sort_keys=True).encode()).digest()
    return named | {"kid": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), "alg": algorithm, "use": "sig"}


def mint(key: SigningKey, said: Assertion, *, token_id: str, at: float) -> tuple[str, int]:
    """The signed token, and when it expires (s since the epoch). ``token_id`` becomes ``jti``."""
    issued = int(at)
    expires = issued + said.lifetime
    claims: dict[str, Any] = {
        "iss": said.issuer,
        "aud": said.audience,
        "sub": said.subject,
        "tenant": said.tenant,
        "roles": list(said.roles),
        "iat": issued,
        "exp": expires,
        "jti": token_id,
        "act": {"sub": said.operator},
    }
    if said.scope is not None:
        claims["scope"] = said.scope
    headers = {"kid": key.kid, "typ": "at+jwt"}
    return jwt.encode(claims, key.private, algorithm=key.algorithm, headers=headers), expires


def public_jwks(*keys: SigningKey) -> bytes:
    """The JWK set that verifies these keys' tokens."""
    return _set([dict(key.public) for key in keys])


def _set(members: Sequence[Mapping[str, str]]) -> bytes:
    return json.dumps({"keys": members}, indent=2).encode() + b"\n"


def published(data: bytes) -> list[dict[str, str]] | str:
    """The public keys in a JWK set that we wrote, or in words why it is none."""
    try:
        members = json.loads(data)["keys"]
        kids = [member["kid"] for member in members]
    except (ValueError, KeyError, TypeError):
        return "not a JWK set of ours"
    return members if len(set(kids)) == len(kids) else "a kid is given twice"


def with_key(members: Sequence[Mapping[str, str]], key: SigningKey) -> bytes:
    """The set with this key too, last: the old ones go on verifying what they signed."""
    others = [dict(member) for member in members if member["kid"] != key.kid]
    return _set([*others, dict(key.public)])


def without_key(members: Sequence[Mapping[str, str]], kid: str) -> bytes:
    """The set without this key: what it signed verifies nowhere any more."""
    return _set([dict(member) for member in members if member["kid"] != kid])


def write_private(path: Path, data: bytes) -> None:
    """Write a secret for its owner only (0600). ``FileExistsError`` where there is one: keys aren't overwritten."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def write_public(path: Path, data: bytes) -> None:
    """Write a file whole: a reader sees the old content or the new, never half."""
    partial = path.with_name(path.name + ".new")
    partial.write_bytes(data)
    partial.replace(path)

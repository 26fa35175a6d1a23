"""Fakes and forgers for identity: a fake ``ports.Identity``, signing keys, raw tokens, a key set held in memory."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm, get_default_algorithms

from sidecar.core.model import Credential, Denial, Principal, Secret
from sidecar.core.reasons import Reason
from sidecar.identity.fetch import Unchanged
from sidecar.identity.jwks import JwksSource
from sidecar.identity.jwt import Issuer
from sidecar.identity.keyrow import KeyRow

NOW = 1_800_000_000.0
ISSUER = "https://issuer.example"
AUDIENCE = "warden"


class FakeIdentity:
    """``ports.Identity`` by table: the credential's bytes → who, or why not."""

    def __init__(self, known: Mapping[bytes, Principal | Denial]) -> None:
        self.known = dict(known)

    def identify(self, credential: Credential, at: float) -> Principal | Denial:
        return self.known.get(credential.secret.reveal(), Denial(Reason.KEY_UNKNOWN))


class FakeFetch:
    """``Fetch`` from memory: set ``answer``; counts the fetches."""

    def __init__(self, answer: bytes | str) -> None:
        self.answer = answer
        self.fetches = 0
        self._last: bytes | None = None

    def __call__(self) -> bytes | Unchanged | str:
        self.fetches += 1
        if isinstance(self.answer, bytes) and self.answer == self._last:
            return Unchanged()
        self._last = self.answer if isinstance(self.answer, bytes) else self._last
        return self.answer

    def forget(self) -> None:
        self._last = None


def seeded(seed: int) -> Callable[[int], bytes]:
    """Randomness that is the same every time."""
    return random.Random(seed).randbytes


def b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def generate(kind: str) -> Any:
    match kind:
        case "EdDSA":
            return Ed25519PrivateKey.generate()
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case "RS256" | "PS256":
            return rsa.generate_private_key(65537, 2048)
        case _:
            raise ValueError(kind)


def jwk(private: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    """The public JWK of a private key."""
    public = private.public_key()
    if isinstance(private, Ed25519PrivateKey):
        members = json.loads(OKPAlgorithm.to_jwk(public))
    elif isinstance(private, ec.EllipticCurvePrivateKey):
        members = json.loads(ECAlgorithm.to_jwk(public))
    else:
        members = json.loads(RSAAlgorithm.to_jwk(public))
    members.pop("key_ops", None)
    return members | ({} if kid is None else {"kid": kid}) | more


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """A good token's claims; a change to None drops the claim."""
    good: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "tenant": "acme",
        "iat": int(NOW) - 10,
        "exp": int(NOW) + 600,
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def sign(private: Any, algorithm: str, header: bytes | dict[str, Any], payload: bytes | dict[str, Any]) -> bytes:
    """A token of exactly these parts: what is given as bytes is not made into JSON first."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    signed = b".".join(map(b64, parts))
    return signed + b"." + b64(get_default_algorithms()[algorithm].sign(signed, private))


def source(answer: bytes, algorithms: tuple[str, ...], at: float = NOW) -> JwksSource:
    """A source that has been refreshed once."""
    made = JwksSource(FakeFetch(answer), algorithms)
    assert made.refresh(at), made.condition
    return made


def issuer(**changes: Any) -> Issuer:
    good: dict[str, Any] = {
        "issuer": ISSUER,
        "audience": (AUDIENCE,),
        "algorithms": ("EdDSA",),
        "tenants": ("acme", "birch-*"),
    }
    return Issuer(**(good | changes))


def key_row(key_id: str, secret_mac: bytes, **changes: Any) -> KeyRow:
    good: dict[str, Any] = {"tenant": "acme", "name": "laptop", "environment": "live"}
    return KeyRow(id=key_id, secret_mac=secret_mac, **(good | changes))


def credential(kind: Any, value: bytes) -> Credential:
    return Credential(kind, Secret(value))

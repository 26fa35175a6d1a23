"""The attack suite as a running sidecar meets it: three issuers to trust, and every attack as headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar.cli.demo.stack import AUDIENCE as DEMO_AUDIENCE
from sidecar.cli.demo.stack import ISSUER as DEMO_ISSUER
from sidecar.core.reasons import Reason
from tests.support.attacks import Forger, attacks, header, header_attacks, key, key_attacks, key_set, signed
from tests.support.identity import AUDIENCE, ISSUER, jwk, jwks, sign

OTHER_ISSUER = "https://other.example"
EVERY = ("EdDSA", "ES256", "ES384", "RS256", "PS256")
Headers = Sequence[tuple[str | bytes, bytes]]
# HTTP strips blanks around a header's value (RFC 9110 §5.5), so this one arrives as the good token that it was.
STRIPPED = frozenset({"blank"})
# Bytes or sizes that HTTP itself does not allow in a header: the wire resets or answers before we see anything.
UNSENDABLE = frozenset({"line break", "NUL behind"})
HUGE = frozenset({"20 MB", "kid of 1 MB"})  # stand here as 80 KB, which is past `bounds.metadata_bytes` already


def issuers(directory: Path) -> list[dict[str, Any]]:
    """Three to trust: one of every algorithm, one with a single key, the demo's. ``directory`` takes their key sets."""
    (directory / "jwks.json").write_bytes(key_set())
    (directory / "other.json").write_bytes(jwks(jwk(key("EdDSA", 2), "EdDSA")))
    return [
        {"issuer": ISSUER, "audience": [AUDIENCE], "jwks": str(directory / "jwks.json"), "algorithms": list(EVERY),
         "tenants": ["acme", "birch-*"]},
        {"issuer": OTHER_ISSUER, "audience": [AUDIENCE, "second"], "jwks": str(directory / "other.json"),
         "algorithms": ["EdDSA"], "tenants": ["acme"], "roles": ["tenant", "operator"], "tenant_claim": "org.tenant"},
        {"issuer": DEMO_ISSUER, "audience": [DEMO_AUDIENCE], "jwks": "keys/jwks.json", "algorithms": ["EdDSA"],
         "tenants": ["*"], "roles": ["tenant", "operator"]},
    ]  # fmt: skip


def bearer(token: bytes) -> Headers:
    return [("authorization", b"Bearer " + token)]


def suite(api_key: bytes, at: float) -> Mapping[str, tuple[Headers, Reason]]:
    """Every attack that HTTP can carry, as the headers it is sent in; ``api_key`` works."""
    forger = Forger(at)
    made: dict[str, tuple[Headers, Reason]] = {}
    for kind, (make, reason) in attacks(forger.at).items():
        if kind not in STRIPPED | UNSENDABLE | HUGE:
            token = make()  # one with a comma looks like two headers joined, before it looks like a token
            made[f"token: {kind}"] = (bearer(token), Reason.CREDENTIAL_AMBIGUOUS if b"," in token else reason)
    for kind, (make, reason) in key_attacks(api_key).items():
        made[f"key: {kind}"] = ([("x-api-key", make())], reason)
        if make().startswith(b"wdn_") and len(make()) < 8192:
            made[f"bearer key: {kind}"] = (bearer(make()), reason)
    for kind, (headers, reason) in header_attacks(api_key, forger.good()).items():
        made[f"headers: {kind}"] = (headers, reason)
    made |= {f"issuer: {kind}": (bearer(token), reason) for kind, (token, reason) in foreign(forger).items()}
    return made


def foreign(f: Forger) -> Mapping[str, tuple[bytes, Reason]]:
    """What one of three trusted issuers may not say in place of another."""
    second, org = key("EdDSA", 2), {"org": {"tenant": "acme"}}
    other = f.claims(iss=OTHER_ISSUER, tenant=None, **org)

    def by_other(**changes: object) -> bytes:
        return sign(second, "EdDSA", header(), other | changes)

    return {
        "ours signed by the other": (sign(second, "EdDSA", header(), f.claims()), Reason.TOKEN_SIGNATURE),
        "the other's signed by ours": (signed(header(), other), Reason.TOKEN_SIGNATURE),
        "a tenant that is another issuer's": (by_other(org={"tenant": "birch-1"}), Reason.TOKEN_ISSUER),
        "a role that is nobody's": (by_other(roles=["admin"]), Reason.TOKEN_ISSUER),
        "an audience of the demo's": (by_other(aud=DEMO_AUDIENCE), Reason.TOKEN_AUDIENCE),
        "the tenant at another's path": (by_other(org=None, tenant="acme"), Reason.TOKEN_MALFORMED),
        "a role of another issuer's": (f.good(roles=["operator"]), Reason.TOKEN_ISSUER),
        "the demo's tenant": (f.good(tenant="cobalt"), Reason.TOKEN_ISSUER),
    }

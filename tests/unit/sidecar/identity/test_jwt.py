"""Good tokens become principals; forged, mangled and foreign ones are refused with the right reason."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa, utils
from cryptography.hazmat.primitives.hashes import SHA256

from sidecar.core.model import Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.identity.compact import MAX_TOKEN
from sidecar.identity.jwks import JwksSource
from sidecar.identity.jwt import MAX_TEXT, Issuer, TokenVerifier
from sidecar.runtime.settings import IssuerSection
from tests.support.identity import (
    AUDIENCE,
    ISSUER,
    NOW,
    FakeFetch,
    b64,
    claims,
    generate,
    issuer,
    jwk,
    jwks,
    sign,
    source,
)

MALFORMED, SIGNATURE = Reason.TOKEN_MALFORMED, Reason.TOKEN_SIGNATURE
ALL = ("EdDSA", "ES256", "ES384", "RS256", "PS256")
KINDS = ("EdDSA", "ES256", "ES384", "RS256")


@cache
def key(kind: str, number: int = 0) -> Any:
    return generate(kind)


def header(kind: str = "EdDSA", **changes: Any) -> dict[str, Any]:
    made = {"alg": kind, "kid": kind, "typ": "JWT"} | changes
    return {name: value for name, value in made.items() if value is not None}


def good(kind: str = "EdDSA", **changes: Any) -> bytes:
    return sign(key(kind), kind, header(kind), claims(**changes))


@cache
def key_set() -> bytes:
    return jwks(*(jwk(key(kind), kind) for kind in KINDS))


def verifier(**changes: Any) -> TokenVerifier:
    changes.setdefault("algorithms", ALL)
    return TokenVerifier([(issuer(**changes), source(key_set(), changes["algorithms"]))])


def reason(token: bytes, at: float = NOW, **changes: Any) -> Reason | None:
    found = verifier(**changes).identify(token, at)
    return found.reason if isinstance(found, Denial) else None


# --- good ones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_token_is_its_principal(kind: str) -> None:
    found = verifier().identify(good(kind), NOW)
    assert found == Principal(
        tenant="acme", name="alice", kind="jwt", issuer=ISSUER, expires_at=NOW + 600, roles=frozenset({"tenant"})
    )


def test_claims_are_found_by_path_and_by_name() -> None:
    nested = {
        "org": {"tenant": "birch-7"},
        "https://x.example/roles": "tenant operator",
        "act_for": "bob",
    }
    found = verifier(
        tenant_claim="org.tenant",
        roles_claim="https://x.example/roles",
        roles=("tenant", "operator"),
        subject_claim="act_for",
        conversation_claim="thread",
    ).identify(good(tenant=None, **nested), NOW)
    assert isinstance(found, Principal)
    assert (found.tenant, found.subject, found.conversation) == ("birch-7", "bob", "")
    assert found.roles == {"tenant", "operator"}


@pytest.mark.parametrize("aud", [AUDIENCE, ["x", AUDIENCE], [AUDIENCE]])
def test_any_audience_may_fit(aud: Any) -> None:
    assert reason(good(aud=aud)) is None


@pytest.mark.parametrize("typ", [None, "JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_types_of_access_tokens(typ: str | None) -> None:
    token = sign(key("EdDSA"), "EdDSA", header(typ=typ), claims())
    assert reason(token) is None


def test_a_token_without_kid_uses_the_only_key() -> None:
    token = sign(key("EdDSA"), "EdDSA", header(kid=None), claims())
    only = TokenVerifier([(issuer(), source(jwks(jwk(key("EdDSA"), None)), ("EdDSA",)))])
    assert isinstance(only.identify(token, NOW), Principal)
    assert reason(token) is SIGNATURE  # four keys: which one is not guessed


# --- forged and mangled ones --------------------------------------------------------------------------------------


def split(token: bytes) -> list[bytes]:
    return token.split(b".")


def raw(head: Any, body: Any, signature: bytes) -> bytes:
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (head, body)]
    return b".".join([*map(b64, parts), b64(signature)])


def hmac_signed(secret: bytes, alg: str = "HS256") -> bytes:
    signing = b".".join([b64(json.dumps(header("RS256", alg=alg)).encode()), b64(json.dumps(claims()).encode())])
    return signing + b"." + b64(hmac.digest(secret, signing, "sha256"))


def public_bytes(encoding: Any) -> bytes:
    data: bytes = key("RS256").public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    return data


def es256_with(change: Callable[[bytes], bytes]) -> bytes:
    head, body, signature = split(good("ES256"))
    return b".".join([head, body, b64(change(base64.urlsafe_b64decode(signature + b"==")))])


def der(signature: bytes) -> bytes:
    return utils.encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))


def signed(head: Any, body: Any) -> bytes:
    return sign(key("EdDSA"), "EdDSA", head, body)


def duplicate(text: str, *, spelled: str) -> bytes:
    return text[:-1].encode() + b', "' + spelled.encode() + b'": "mallory"}'


def wrong_curve() -> bytes:
    signing = b".".join([b64(json.dumps(header("ES256")).encode()), b64(json.dumps(claims()).encode())])
    private = ec.generate_private_key(ec.SECP256K1())
    r, s = utils.decode_dss_signature(private.sign(signing, ec.ECDSA(SHA256())))
    return signing + b"." + b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))


def embedded_jwk() -> bytes:
    mallory = key("EdDSA", 1)
    return sign(mallory, "EdDSA", header(jwk=jwk(mallory, "EdDSA")), claims())


HEADER_JSON, CLAIMS_JSON = json.dumps(header()), json.dumps(claims())
ZERO, ONE = bytes(32), bytes(31) + b"\1"

ATTACKS: dict[str, tuple[Callable[[], bytes], Reason]] = {
    # algorithms and keys
    "alg none": (lambda: raw(header(alg="none"), claims(), b"x"), SIGNATURE),
    "alg None": (lambda: raw(header(alg="None"), claims(), b"x"), SIGNATURE),
    "alg NONE": (lambda: raw(header(alg="NONE"), claims(), b"x"), SIGNATURE),
    "alg nOnE with a good signature": (lambda: signed(header(alg="nOnE"), claims()), SIGNATURE),
    "alg none, no signature": (lambda: raw(header(alg="none"), claims(), b""), MALFORMED),
    "alg empty": (lambda: signed(header(alg=""), claims()), SIGNATURE),
    "alg with a blank": (lambda: signed(header(alg="EdDSA "), claims()), SIGNATURE),
    "alg in lower case": (lambda: signed(header(alg="eddsa"), claims()), SIGNATURE),
    "alg missing": (lambda: signed(header(alg=None), claims()), MALFORMED),
    "alg a list": (lambda: signed(header(alg=["EdDSA"]), claims()), MALFORMED),
    "HS256 with the PEM as secret": (lambda: hmac_signed(public_bytes(serialization.Encoding.PEM)), SIGNATURE),
    "HS256 with the DER as secret": (lambda: hmac_signed(public_bytes(serialization.Encoding.DER)), SIGNATURE),
    "HS256 with the JWK as secret": (
        lambda: hmac_signed(json.dumps(jwk(key("RS256"), "RS256")).encode()),
        SIGNATURE,
    ),
    "HS256 with an empty secret": (lambda: hmac_signed(b""), SIGNATURE),
    "HMAC under the name RS256": (lambda: hmac_signed(public_bytes(serialization.Encoding.PEM), "RS256"), SIGNATURE),
    "another key of the same kid": (lambda: sign(key("EdDSA", 1), "EdDSA", header(), claims()), SIGNATURE),
    "another key's kid": (lambda: signed(header(kid="ES256"), claims()), SIGNATURE),
    "RSA key asked for PS256": (lambda: sign(key("RS256"), "PS256", header("PS256", kid="RS256"), claims()), SIGNATURE),
    "alg of another key type": (lambda: signed(header("ES256", kid="EdDSA"), claims()), SIGNATURE),
    "ES256K": (lambda: raw(header(alg="ES256K"), claims(), b"x" * 64), SIGNATURE),
    "ES256 on another curve": (wrong_curve, SIGNATURE),
    "ES256 with r = 0": (lambda: es256_with(lambda s: ZERO + s[32:]), SIGNATURE),
    "ES256 with s = 0": (lambda: es256_with(lambda s: s[:32] + ZERO), SIGNATURE),
    "ES256 with r = s = 0": (lambda: es256_with(lambda _: bytes(64)), SIGNATURE),
    "ES256 with r = s = 1": (lambda: es256_with(lambda _: ONE + ONE), SIGNATURE),
    "ES256 in DER": (lambda: es256_with(der), SIGNATURE),
    "ES256 one byte short": (lambda: es256_with(lambda s: s[:-1]), SIGNATURE),
    "ES256 one byte long": (lambda: es256_with(lambda s: s + b"\0"), SIGNATURE),
    "weak RSA": (
        lambda: sign(rsa.generate_private_key(65537, 1024), "RS256", header("RS256"), claims()),
        SIGNATURE,
    ),
    # keys and key addresses of the sender's
    "embedded jwk": (embedded_jwk, MALFORMED),
    "jku": (lambda: signed(header(jku="https://evil.example/jwks"), claims()), MALFORMED),
    "x5u": (lambda: signed(header(x5u="http://127.0.0.1/"), claims()), MALFORMED),
    "x5c": (lambda: signed(header(x5c=["MIIB"]), claims()), MALFORMED),
    "kid unknown": (lambda: signed(header(kid="nope"), claims()), SIGNATURE),
    "kid in another case": (lambda: signed(header(kid="eddsa"), claims()), SIGNATURE),
    "kid a path": (lambda: signed(header(kid="../../../../dev/null"), claims()), SIGNATURE),
    "kid SQL": (lambda: signed(header(kid="x' UNION SELECT 'k"), claims()), SIGNATURE),
    "kid with NUL": (lambda: signed(header(kid="EdDSA\0"), claims()), SIGNATURE),
    "kid a list": (lambda: signed(header(kid=["EdDSA"]), claims()), MALFORMED),
    "kid a number": (lambda: signed(header(kid=1), claims()), MALFORMED),
    "kid of 1 MB": (lambda: signed(header(kid="k" * 2**20), claims()), MALFORMED),
    # extensions and other serialisations
    "crit": (lambda: signed(header(crit=["exp"]), claims()), MALFORMED),
    "crit empty": (lambda: signed(header(crit=[]), claims()), MALFORMED),
    "b64 false": (lambda: signed(header(b64=False, crit=["b64"]), claims()), MALFORMED),
    "b64 true": (lambda: signed(header(b64=True), claims()), MALFORMED),
    "zip": (lambda: signed(header(zip="DEF"), gzip.compress(bytes(4000))), MALFORMED),
    "nested": (lambda: signed(header(cty="JWT"), good()), MALFORMED),
    "encrypted, five parts": (lambda: b".".join([b64(b'{"alg":"RSA-OAEP","enc":"A128GCM"}')] + [b"YQ"] * 4), MALFORMED),
    "encrypted header, three parts": (lambda: signed(header(enc="A128GCM"), claims()), MALFORMED),
    "PBES2": (lambda: signed(header(alg="PBES2-HS256+A128KW", p2c=2**31 - 1), claims()), SIGNATURE),
    "JSON serialisation": (lambda: json.dumps({"payload": "e30", "signatures": []}).encode(), MALFORMED),
    # shape
    "one part": (lambda: b"abc", MALFORMED),
    "two parts": (lambda: good().rpartition(b".")[0], MALFORMED),
    "four parts": (lambda: good() + b".YQ", MALFORMED),
    "empty header": (lambda: b"." + good().partition(b".")[2], MALFORMED),
    "empty payload": (lambda: signed(header(), b""), MALFORMED),
    "empty signature": (lambda: good().rpartition(b".")[0] + b".", MALFORMED),
    "padding": (lambda: good() + b"==", MALFORMED),
    "standard alphabet": (lambda: signed(header(), claims(sub="??>>~~")).replace(b"_", b"/", 1), MALFORMED),
    "line break": (lambda: good()[:40] + b"\n" + good()[40:], MALFORMED),
    "blank": (lambda: good() + b" ", MALFORMED),
    "NUL behind": (lambda: good() + b"\0", MALFORMED),
    "non-ASCII": (lambda: good().replace(b"e", "е".encode(), 1), MALFORMED),
    "stray bits in the last character": (lambda: stray(good()), MALFORMED),
    "impossible length": (lambda: good().rpartition(b".")[0] + b".YWJjZ", MALFORMED),
    "20 MB": (lambda: b"a" * 20_000_000, MALFORMED),
    "just too long": (lambda: signed(header(), claims(pad="x" * MAX_TOKEN)), MALFORMED),
    # JSON
    "claim twice": (lambda: signed(header(), duplicate(CLAIMS_JSON, spelled="sub")), MALFORMED),
    "claim twice, escaped": (lambda: signed(header(), duplicate(CLAIMS_JSON, spelled=r"\u0073ub")), MALFORMED),
    "nested name twice": (lambda: signed(header(), CLAIMS_JSON[:-1].encode() + b', "x": {"a": 1, "a": 2}}'), MALFORMED),
    "header twice": (lambda: signed(duplicate(HEADER_JSON, spelled="kid"), claims()), MALFORMED),
    "NaN": (lambda: signed(header(), claims(exp=float("nan"))), MALFORMED),
    "Infinity": (lambda: signed(header(), claims(exp=float("inf"))), MALFORMED),
    "1e999": (lambda: signed(header(), CLAIMS_JSON[:-1].encode() + b', "x": 1e999}'), MALFORMED),
    "5000 digits": (lambda: signed(header(), CLAIMS_JSON[:-1].encode() + b', "x": ' + b"9" * 5000 + b"}"), MALFORMED),
    "depth 17": (lambda: signed(header(), claims(x=json.loads("[" * 16 + "]" * 16))), MALFORMED),
    "depth 3000": (lambda: signed(header(), b"[" * 3000), MALFORMED),
    "payload a list": (lambda: signed(header(), b"[]"), MALFORMED),
    "payload a text": (lambda: signed(header(), b'"x"'), MALFORMED),
    "trailing JSON": (lambda: signed(header(), CLAIMS_JSON.encode() + b"{}"), MALFORMED),
    "UTF-16": (lambda: signed(header(), CLAIMS_JSON.encode("utf-16")), MALFORMED),
    "UTF-16 without BOM": (lambda: signed(header(), CLAIMS_JSON.encode("utf-16-le")), MALFORMED),
    "BOM": (lambda: signed(header(), b"\xef\xbb\xbf" + CLAIMS_JSON.encode()), MALFORMED),
    "overlong UTF-8": (lambda: signed(header(), CLAIMS_JSON.encode().replace(b"alice", b"\xc0\xaf")), MALFORMED),
    "lone surrogate": (lambda: signed(header(), CLAIMS_JSON.replace("alice", r"\ud800").encode()), MALFORMED),
    "lone surrogate in a claim nobody reads": (lambda: signed(header(), claims(x="\ud800")), MALFORMED),
    "lone surrogate in a name": (lambda: signed(header(), claims(**{"\udfff": 1})), MALFORMED),
    "lone surrogate in the kid": (lambda: signed(header(kid="EdDSA\ud800"), claims()), MALFORMED),
    # types
    "logout token": (lambda: signed(header(typ="logout+jwt"), claims()), MALFORMED),
    "dpop proof": (lambda: signed(header(typ="dpop+jwt"), claims()), MALFORMED),
    "typ a number": (lambda: signed(header(typ=1), claims()), MALFORMED),
    # times
    "expired": (lambda: good(iat=NOW - 700, exp=NOW - 60), Reason.TOKEN_EXPIRED),
    "exp just now, no leeway left": (lambda: good(exp=NOW - 30), Reason.TOKEN_EXPIRED),
    "exp negative": (lambda: good(exp=-1), Reason.TOKEN_EXPIRED),
    "exp text": (lambda: good(exp="1900000000"), MALFORMED),
    "exp bool": (lambda: good(exp=True), MALFORMED),
    "exp a list": (lambda: good(exp=[NOW + 60]), MALFORMED),
    "exp huge": (lambda: good(exp=10**15), MALFORMED),
    "exp 1e300": (lambda: good(exp=1e300), MALFORMED),
    "exp missing": (lambda: good(exp=None), MALFORMED),
    "exp null": (lambda: signed(header(), claims() | {"exp": None}), MALFORMED),
    "iat missing": (lambda: good(iat=None), MALFORMED),
    "iat bool": (lambda: good(iat=False), MALFORMED),
    "iat in the future": (lambda: good(iat=NOW + 31, exp=NOW + 60), Reason.TOKEN_NOT_YET_VALID),
    "iat in the future, nbf not": (
        lambda: good(iat=NOW + 31, nbf=NOW - 10, exp=NOW + 60),
        Reason.TOKEN_NOT_YET_VALID,
    ),
    "nbf in the future": (lambda: good(nbf=NOW + 31), Reason.TOKEN_NOT_YET_VALID),
    "nbf text": (lambda: good(nbf="0"), MALFORMED),
    "nbf null": (lambda: signed(header(), claims() | {"nbf": None}), MALFORMED),
    "lives too long": (lambda: good(iat=NOW, exp=NOW + 3601), Reason.TOKEN_ISSUER),
    # audience
    "aud missing": (lambda: good(aud=None), MALFORMED),
    "aud empty": (lambda: good(aud=[]), MALFORMED),
    "aud a number": (lambda: good(aud=1), MALFORMED),
    "aud nested": (lambda: good(aud=[[AUDIENCE]]), MALFORMED),
    "aud an object": (lambda: good(aud={"warden": 1}), MALFORMED),
    "aud another": (lambda: good(aud="other"), Reason.TOKEN_AUDIENCE),
    "aud a prefix": (lambda: good(aud="ward"), Reason.TOKEN_AUDIENCE),
    "aud longer": (lambda: good(aud="warden2"), Reason.TOKEN_AUDIENCE),
    "aud in another case": (lambda: good(aud="Warden"), Reason.TOKEN_AUDIENCE),
    "aud with a slash": (lambda: good(aud="warden/"), Reason.TOKEN_AUDIENCE),
    # issuer
    "iss missing": (lambda: good(iss=None), MALFORMED),
    "iss a list": (lambda: good(iss=[ISSUER]), MALFORMED),
    "iss another": (lambda: good(iss="https://evil.example"), Reason.TOKEN_ISSUER),
    "iss with a slash": (lambda: good(iss=ISSUER + "/"), Reason.TOKEN_ISSUER),
    "iss a substring": (lambda: good(iss=ISSUER[:-1]), Reason.TOKEN_ISSUER),
    "iss a homograph": (lambda: good(iss=ISSUER.replace("i", "і", 1)), Reason.TOKEN_ISSUER),
    "iss in another case": (lambda: good(iss=ISSUER.upper()), Reason.TOKEN_ISSUER),
    # who
    "sub missing": (lambda: good(sub=None), MALFORMED),
    "sub empty": (lambda: good(sub=""), MALFORMED),
    "sub a number": (lambda: good(sub=7), MALFORMED),
    "sub with NUL": (lambda: good(sub="alice\0root"), MALFORMED),
    "sub with a line break": (lambda: good(sub="alice\nroot"), MALFORMED),
    "sub with C1": (lambda: good(sub="alice\x85root"), MALFORMED),
    "sub with a line separator": (lambda: good(sub="alice\u2028root"), MALFORMED),
    "sub too long": (lambda: good(sub="a" * (MAX_TEXT + 1)), MALFORMED),
    "tenant missing": (lambda: good(tenant=None), MALFORMED),
    "tenant a list": (lambda: good(tenant=["acme"]), MALFORMED),
    "tenant empty": (lambda: good(tenant=""), MALFORMED),
    "another tenant": (lambda: good(tenant="cobalt"), Reason.TOKEN_ISSUER),
    "tenant in another case": (lambda: good(tenant="ACME"), Reason.TOKEN_ISSUER),
    "tenant by half a glob": (lambda: good(tenant="birch"), Reason.TOKEN_ISSUER),
    "tenant with a line break": (lambda: good(tenant="birch-\n"), MALFORMED),
    "tenant a glob": (lambda: good(tenant="*"), Reason.TOKEN_ISSUER),
    "roles it may not give": (lambda: good(roles=["tenant", "admin"]), Reason.TOKEN_ISSUER),
    "roles as text": (lambda: good(roles="admin"), Reason.TOKEN_ISSUER),
    "roles an object": (lambda: good(roles={"tenant": True}), MALFORMED),
    "roles nested": (lambda: good(roles=[["tenant"]]), MALFORMED),
    "roles without end": (lambda: good(roles=["tenant"] * 33), MALFORMED),
}


def stray(token: bytes) -> bytes:
    """The same bytes spelled another way: an EdDSA signature's last character carries two bits that mean nothing."""
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(token[-1:])
    return token[:-1] + alphabet[last ^ 1 : (last ^ 1) + 1]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(attack: str) -> None:
    make, expected = ATTACKS[attack]
    assert reason(make()) is expected


def test_a_stray_bit_really_is_the_same_signature() -> None:
    """So that the attack above tests canonicality and not a broken signature."""
    one, other = (base64.urlsafe_b64decode(token.rpartition(b".")[2] + b"==") for token in (good(), stray(good())))
    assert one == other


def test_a_required_type_is_required() -> None:
    token = signed(header(typ="at+jwt"), claims())
    assert reason(token, type="at+jwt") is None
    assert reason(good(), type="at+jwt") is MALFORMED
    assert reason(signed(header(typ=None), claims()), type="at+jwt") is MALFORMED


def test_one_issuers_key_never_verifies_anothers_token() -> None:
    other = "https://other.example"
    both = TokenVerifier(
        [
            (issuer(), source(jwks(jwk(key("EdDSA"), "k")), ("EdDSA",))),
            (issuer(issuer=other, tenants=("*",)), source(jwks(jwk(key("EdDSA", 1), "k")), ("EdDSA",))),
        ]
    )
    by_ours = sign(key("EdDSA"), "EdDSA", header(kid="k"), claims(iss=other))
    found = both.identify(by_ours, NOW)
    assert isinstance(found, Denial)
    assert found.reason is SIGNATURE
    assert isinstance(both.identify(sign(key("EdDSA", 1), "EdDSA", header(kid="k"), claims(iss=other)), NOW), Principal)


def test_an_algorithm_that_the_issuer_is_not_configured_for_is_refused() -> None:
    assert reason(good("ES256"), algorithms=("EdDSA",)) is SIGNATURE


def test_an_algorithm_is_refused_before_any_key_is_tried() -> None:
    found = verifier().identify(ATTACKS["HS256 with the PEM as secret"][0](), NOW)
    assert isinstance(found, Denial)
    assert found.detail == "its algorithm is not accepted"


def test_an_issuer_configured_twice_is_a_broken_configuration() -> None:
    with pytest.raises(ValueError, match="twice"):
        TokenVerifier([(issuer(), source(key_set(), ALL))] * 2)


def test_no_refusal_repeats_the_token() -> None:
    for name, (make, _) in ATTACKS.items():
        token = make()
        found = verifier().identify(token, NOW)
        assert isinstance(found, Denial), name
        signature = token.rpartition(b".")[2]
        assert len(signature) < 20 or signature.decode("latin-1") not in repr(found), name
        assert len(repr(found)) < 2 * MAX_TOKEN, name


# --- the memory ---------------------------------------------------------------------------------------------------


def test_a_verified_token_is_remembered_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = verifier()
    token = good()
    first = tokens.identify(token, NOW)
    monkeypatch.setattr(tokens, "_verify", lambda *_: pytest.fail("verified again"))
    assert tokens.identify(token, NOW + 599.9) is first


def test_memory_ends_at_exp_and_leeway_is_judged_anew() -> None:
    tokens = verifier()
    token = good()
    tokens.identify(token, NOW)
    assert isinstance(tokens.identify(token, NOW + 600), Principal)  # within the leeway
    assert len(tokens) == 0
    found = tokens.identify(token, NOW + 630)
    assert isinstance(found, Denial)
    assert found.reason is Reason.TOKEN_EXPIRED


def test_memory_is_by_the_whole_token() -> None:
    tokens = verifier()
    token = good()
    tokens.identify(token, NOW)
    found = tokens.identify(stray(token), NOW)
    assert isinstance(found, Denial)
    assert found.reason is MALFORMED


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    tokens = TokenVerifier([(issuer(algorithms=ALL), source(key_set(), ALL))], remembered=2)
    many = [good(sub=f"user-{number}") for number in range(5)]
    for token in many:
        assert isinstance(tokens.identify(token, NOW), Principal)
        assert len(tokens) <= 2
    assert set(tokens._remembered) == {hashlib.sha256(token).digest() for token in many[-2:]}


def test_refused_tokens_are_not_remembered() -> None:
    tokens = verifier()
    tokens.identify(good(aud="other"), NOW)
    assert len(tokens) == 0


def test_a_key_that_is_withdrawn_takes_its_remembered_tokens_along() -> None:
    fetch = FakeFetch(jwks(jwk(key("EdDSA"), "EdDSA")))
    keys = JwksSource(fetch, ("EdDSA",))
    keys.refresh(NOW)
    tokens = TokenVerifier([(issuer(), keys)])
    token = good()
    assert isinstance(tokens.identify(token, NOW), Principal)
    keys.refresh(NOW)  # unchanged: still remembered
    assert len(tokens) == 1
    fetch.answer = jwks(jwk(key("EdDSA", 1), "new"))
    keys.refresh(NOW)
    found = tokens.identify(token, NOW)
    assert isinstance(found, Denial)
    assert found.reason is SIGNATURE
    assert len(tokens) == 0


# --- keys that cannot be had --------------------------------------------------------------------------------------


def test_an_unknown_kid_asks_for_a_refresh_and_is_refused_now() -> None:
    keys = source(key_set(), ALL)
    tokens = TokenVerifier([(issuer(algorithms=ALL), keys)])
    for number in range(100):
        tokens.identify(signed(header(kid=f"flood-{number}"), claims()), NOW)
    assert keys.wanted.is_set()
    assert isinstance(keys.fetch, FakeFetch)
    assert keys.fetch.fetches == 1  # none of them on the request's path


def test_keys_never_had_or_too_stale_are_unavailable_not_a_bad_signature() -> None:
    never = JwksSource(FakeFetch("down"), ("EdDSA",))
    tokens = TokenVerifier([(issuer(), never)])
    found = tokens.identify(good(), NOW)
    assert isinstance(found, Denial)
    assert (found.reason, found.retry_after) == (Reason.KEYS_UNAVAILABLE, 1.0)
    assert never.wanted.is_set()
    stale = JwksSource(FakeFetch(key_set()), ALL, max_stale=60)
    stale.refresh(NOW)
    tokens = TokenVerifier([(issuer(algorithms=ALL), stale)])
    assert isinstance(tokens.identify(good(), NOW + 60), Principal)
    found = tokens.identify(good(), NOW + 61)
    assert isinstance(found, Denial)
    assert found.reason is Reason.KEYS_UNAVAILABLE


def test_an_issuer_is_configured_by_the_settings_own_names() -> None:
    """The composition root makes an Issuer of a section by these names; a field in one alone would be lost."""
    made = {each.name for each in fields(Issuer)}
    assert made == set(IssuerSection.model_fields) - {"jwks"}
    section = IssuerSection.model_validate(
        {"issuer": ISSUER, "audience": ["a"], "jwks": "x", "algorithms": ["EdDSA"], "tenants": ["*"]}
    )
    by_default = Issuer(ISSUER, ("a",), ("EdDSA",), ("*",))
    assert Issuer(**section.model_dump(exclude={"jwks"})) == by_default

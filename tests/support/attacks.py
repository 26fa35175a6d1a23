"""Forged, mangled and hostile credentials, made in code by kind, each with the one reason it is refused for."""

from __future__ import annotations

import base64
import gzip
import hmac
import json
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa, utils
from cryptography.hazmat.primitives.hashes import SHA256

from sidecar.core.reasons import Reason
from sidecar.identity import keys
from sidecar.identity.compact import MAX_TOKEN
from sidecar.identity.jwt import MAX_TEXT
from tests.support import identity
from tests.support.identity import AUDIENCE, ISSUER, b64, generate, jwk, jwks, sign

MALFORMED, SIGNATURE = Reason.TOKEN_MALFORMED, Reason.TOKEN_SIGNATURE
KINDS = ("EdDSA", "ES256", "ES384", "RS256")
ZERO, ONE = bytes(32), bytes(31) + b"\1"
Attack = tuple[Callable[[], bytes], Reason]


@cache
def key(kind: str, number: int = 0) -> Any:
    return generate(kind)


@cache
def key_set() -> bytes:
    """The public keys of ``KINDS``, each named by its kind."""
    return jwks(*(jwk(key(kind), kind) for kind in KINDS))


def header(kind: str = "EdDSA", **changes: Any) -> dict[str, Any]:
    made = {"alg": kind, "kid": kind, "typ": "JWT"} | changes
    return {name: value for name, value in made.items() if value is not None}


def split(token: bytes) -> list[bytes]:
    return token.split(b".")


def raw(head: Any, body: Any, signature: bytes) -> bytes:
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (head, body)]
    return b".".join([*map(b64, parts), b64(signature)])


def public_bytes(encoding: Any) -> bytes:
    data: bytes = key("RS256").public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    return data


def der(signature: bytes) -> bytes:
    return utils.encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))


def signed(head: Any, body: Any) -> bytes:
    return sign(key("EdDSA"), "EdDSA", head, body)


def duplicate(text: str, *, spelled: str) -> bytes:
    return text[:-1].encode() + b', "' + spelled.encode() + b'": "mallory"}'


def stray(token: bytes) -> bytes:
    """The same bytes spelled another way: an EdDSA signature's last character carries two bits that mean nothing."""
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(token[-1:])
    return token[:-1] + alphabet[last ^ 1 : (last ^ 1) + 1]


HEADER_JSON = json.dumps(header())


class Forger:
    """Makes tokens of ``ISSUER`` as of ``at``, good ones and others."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.claims_json = json.dumps(self.claims())

    def claims(self, **changes: Any) -> dict[str, Any]:
        """A good token's claims; a change to None drops the claim."""
        return identity.claims(**{"iat": int(self.at) - 10, "exp": int(self.at) + 600} | changes)

    def good(self, kind: str = "EdDSA", **changes: Any) -> bytes:
        return sign(key(kind), kind, header(kind), self.claims(**changes))

    def hmac_signed(self, secret: bytes, alg: str = "HS256") -> bytes:
        signing = b".".join([b64(json.dumps(header("RS256", alg=alg)).encode()), b64(self.claims_json.encode())])
        return signing + b"." + b64(hmac.digest(secret, signing, "sha256"))

    def es256_with(self, change: Callable[[bytes], bytes]) -> bytes:
        head, body, signature = split(self.good("ES256"))
        return b".".join([head, body, b64(change(base64.urlsafe_b64decode(signature + b"==")))])

    def wrong_curve(self) -> bytes:
        signing = b".".join([b64(json.dumps(header("ES256")).encode()), b64(self.claims_json.encode())])
        private = ec.generate_private_key(ec.SECP256K1())
        r, s = utils.decode_dss_signature(private.sign(signing, ec.ECDSA(SHA256())))
        return signing + b"." + b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))

    def with_more(self, members: bytes) -> bytes:
        """Good claims as JSON, and ``members`` as they are."""
        return self.claims_json[:-1].encode() + b", " + members + b"}"

    def embedded_jwk(self) -> bytes:
        mallory = key("EdDSA", 1)
        return sign(mallory, "EdDSA", header(jwk=jwk(mallory, "EdDSA")), self.claims())


def attacks(at: float) -> Mapping[str, Attack]:
    """Every forged token of the suite: kind → how it is made, why it is refused."""
    f = Forger(at)
    return {
        # algorithms and keys
        "alg none": (lambda: raw(header(alg="none"), f.claims(), b"x"), SIGNATURE),
        "alg None": (lambda: raw(header(alg="None"), f.claims(), b"x"), SIGNATURE),
        "alg NONE": (lambda: raw(header(alg="NONE"), f.claims(), b"x"), SIGNATURE),
        "alg nOnE with a good signature": (lambda: signed(header(alg="nOnE"), f.claims()), SIGNATURE),
        "alg none, no signature": (lambda: raw(header(alg="none"), f.claims(), b""), MALFORMED),
        "alg empty": (lambda: signed(header(alg=""), f.claims()), SIGNATURE),
        "alg with a blank": (lambda: signed(header(alg="EdDSA "), f.claims()), SIGNATURE),
        "alg in lower case": (lambda: signed(header(alg="eddsa"), f.claims()), SIGNATURE),
        "alg missing": (lambda: signed(header(alg=None), f.claims()), MALFORMED),
        "alg a list": (lambda: signed(header(alg=["EdDSA"]), f.claims()), MALFORMED),
        "HS256 with the PEM as secret": (lambda: f.hmac_signed(public_bytes(serialization.Encoding.PEM)), SIGNATURE),
        "HS256 with the DER as secret": (lambda: f.hmac_signed(public_bytes(serialization.Encoding.DER)), SIGNATURE),
        "HS256 with the JWK as secret": (
            lambda: f.hmac_signed(json.dumps(jwk(key("RS256"), "RS256")).encode()),
            SIGNATURE,
        ),
        "HS256 with an empty secret": (lambda: f.hmac_signed(b""), SIGNATURE),
        "HMAC under the name RS256": (
            lambda: f.hmac_signed(public_bytes(serialization.Encoding.PEM), "RS256"),
            SIGNATURE,
        ),
        "another key of the same kid": (lambda: sign(key("EdDSA", 1), "EdDSA", header(), f.claims()), SIGNATURE),
        "another key's kid": (lambda: signed(header(kid="ES256"), f.claims()), SIGNATURE),
        "RSA key asked for PS256": (
            lambda: sign(key("RS256"), "PS256", header("PS256", kid="RS256"), f.claims()),
            SIGNATURE,
        ),
        "alg of another key type": (lambda: signed(header("ES256", kid="EdDSA"), f.claims()), SIGNATURE),
        "ES256K": (lambda: raw(header(alg="ES256K"), f.claims(), b"x" * 64), SIGNATURE),
        "ES256 on another curve": (f.wrong_curve, SIGNATURE),
        "ES256 with r = 0": (lambda: f.es256_with(lambda s: ZERO + s[32:]), SIGNATURE),
        "ES256 with s = 0": (lambda: f.es256_with(lambda s: s[:32] + ZERO), SIGNATURE),
        "ES256 with r = s = 0": (lambda: f.es256_with(lambda _: bytes(64)), SIGNATURE),
        "ES256 with r = s = 1": (lambda: f.es256_with(lambda _: ONE + ONE), SIGNATURE),
        "ES256 in DER": (lambda: f.es256_with(der), SIGNATURE),
        "ES256 one byte short": (lambda: f.es256_with(lambda s: s[:-1]), SIGNATURE),
        "ES256 one byte long": (lambda: f.es256_with(lambda s: s + b"\0"), SIGNATURE),
        "weak RSA": (
            lambda: sign(rsa.generate_private_key(65537, 1024), "RS256", header("RS256"), f.claims()),
            SIGNATURE,
        ),
        # keys and key addresses of the sender's
        "embedded jwk": (f.embedded_jwk, MALFORMED),
        "jku": (lambda: signed(header(jku="https://evil.example/jwks"), f.claims()), MALFORMED),
        "x5u": (lambda: signed(header(x5u="http://127.0.0.1/"), f.claims()), MALFORMED),
        "x5c": (lambda: signed(header(x5c=["MIIB"]), f.claims()), MALFORMED),
        "kid unknown": (lambda: signed(header(kid="nope"), f.claims()), SIGNATURE),
        "kid in another case": (lambda: signed(header(kid="eddsa"), f.claims()), SIGNATURE),
        "kid a path": (lambda: signed(header(kid="../../../../dev/null"), f.claims()), SIGNATURE),
        "kid SQL": (lambda: signed(header(kid="x' UNION SELECT 'k"), f.claims()), SIGNATURE),
        "kid with NUL": (lambda: signed(header(kid="EdDSA\0"), f.claims()), SIGNATURE),
        "kid a list": (lambda: signed(header(kid=["EdDSA"]), f.claims()), MALFORMED),
        "kid a number": (lambda: signed(header(kid=1), f.claims()), MALFORMED),
        "kid of 1 MB": (lambda: signed(header(kid="k" * 2**20), f.claims()), MALFORMED),
        # extensions and other serialisations
        "crit": (lambda: signed(header(crit=["exp"]), f.claims()), MALFORMED),
        "crit empty": (lambda: signed(header(crit=[]), f.claims()), MALFORMED),
        "b64 false": (lambda: signed(header(b64=False, crit=["b64"]), f.claims()), MALFORMED),
        "b64 true": (lambda: signed(header(b64=True), f.claims()), MALFORMED),
        "zip": (lambda: signed(header(zip="DEF"), gzip.compress(bytes(4000))), MALFORMED),
        "nested": (lambda: signed(header(cty="JWT"), f.good()), MALFORMED),
        "encrypted, five parts": (
            lambda: b".".join([b64(b'{"alg":"RSA-OAEP","enc":"A128GCM"}')] + [b"YQ"] * 4),
            MALFORMED,
        ),
        "encrypted header, three parts": (lambda: signed(header(enc="A128GCM"), f.claims()), MALFORMED),
        "PBES2": (lambda: signed(header(alg="PBES2-HS256+A128KW", p2c=2**31 - 1), f.claims()), SIGNATURE),
        "JSON serialisation": (lambda: json.dumps({"payload": "e30", "signatures": []}).encode(), MALFORMED),
        # shape
        "one part": (lambda: b"abc", MALFORMED),
        "two parts": (lambda: f.good().rpartition(b".")[0], MALFORMED),
        "four parts": (lambda: f.good() + b".YQ", MALFORMED),
        "empty header": (lambda: b"." + f.good().partition(b".")[2], MALFORMED),
        "empty payload": (lambda: signed(header(), b""), MALFORMED),
        "empty signature": (lambda: f.good().rpartition(b".")[0] + b".", MALFORMED),
        "padding": (lambda: f.good() + b"==", MALFORMED),
        "standard alphabet": (lambda: signed(header(), f.claims(sub="??>>~~")).replace(b"_", b"/", 1), MALFORMED),
        "line break": (lambda: f.good()[:40] + b"\n" + f.good()[40:], MALFORMED),
        "blank": (lambda: f.good() + b" ", MALFORMED),
        "NUL behind": (lambda: f.good() + b"\0", MALFORMED),
        "non-ASCII": (lambda: f.good().replace(b"e", "е".encode(), 1), MALFORMED),
        "stray bits in the last character": (lambda: stray(f.good()), MALFORMED),
        "impossible length": (lambda: f.good().rpartition(b".")[0] + b".YWJjZ", MALFORMED),
        "20 MB": (lambda: b"a" * 20_000_000, MALFORMED),
        "just too long": (lambda: signed(header(), f.claims(pad="x" * MAX_TOKEN)), MALFORMED),
        # JSON
        "claim twice": (lambda: signed(header(), duplicate(f.claims_json, spelled="sub")), MALFORMED),
        "claim twice, escaped": (lambda: signed(header(), duplicate(f.claims_json, spelled=r"\u0073ub")), MALFORMED),
        "nested name twice": (
            lambda: signed(header(), f.claims_json[:-1].encode() + b', "x": {"a": 1, "a": 2}}'),
            MALFORMED,
        ),
        "header twice": (lambda: signed(duplicate(HEADER_JSON, spelled="kid"), f.claims()), MALFORMED),
        "NaN": (lambda: signed(header(), f.claims(exp=float("nan"))), MALFORMED),
        "Infinity": (lambda: signed(header(), f.claims(exp=float("inf"))), MALFORMED),
        "1e999": (lambda: signed(header(), f.claims_json[:-1].encode() + b', "x": 1e999}'), MALFORMED),
        "5000 digits": (
            lambda: signed(header(), f.claims_json[:-1].encode() + b', "x": ' + b"9" * 5000 + b"}"),
            MALFORMED,
        ),
        "depth 17": (lambda: signed(header(), f.claims(x=json.loads("[" * 16 + "]" * 16))), MALFORMED),
        "depth 3000": (lambda: signed(header(), b"[" * 3000), MALFORMED),
        "escaped quotes without end": (lambda: signed(header(), b'{"a":"' + b'\\"' * 2900), MALFORMED),
        "text without end, full of quotes and backslashes": (lambda: signed(header(), b'"\\' * 2900), MALFORMED),
        "quotes alone": (lambda: signed(header(), b'"' * 5800), MALFORMED),
        "backslashes alone": (lambda: signed(header(), b'{"a":"' + b"\\" * 5799), MALFORMED),
        "hundreds of claims": (lambda: signed(header(), dict.fromkeys(map(str, range(600)), 0)), MALFORMED),
        "payload a list": (lambda: signed(header(), b"[]"), MALFORMED),
        "payload a text": (lambda: signed(header(), b'"x"'), MALFORMED),
        "trailing JSON": (lambda: signed(header(), f.claims_json.encode() + b"{}"), MALFORMED),
        "UTF-16": (lambda: signed(header(), f.claims_json.encode("utf-16")), MALFORMED),
        "UTF-16 without BOM": (lambda: signed(header(), f.claims_json.encode("utf-16-le")), MALFORMED),
        "BOM": (lambda: signed(header(), b"\xef\xbb\xbf" + f.claims_json.encode()), MALFORMED),
        "overlong UTF-8": (lambda: signed(header(), f.claims_json.encode().replace(b"alice", b"\xc0\xaf")), MALFORMED),
        "lone surrogate": (lambda: signed(header(), f.claims_json.replace("alice", r"\ud800").encode()), MALFORMED),
        "lone surrogate in a claim nobody reads": (lambda: signed(header(), f.claims(x="\ud800")), MALFORMED),
        "lone surrogate in a name": (lambda: signed(header(), f.claims(**{"\udfff": 1})), MALFORMED),
        "lone surrogate in the kid": (lambda: signed(header(kid="EdDSA\ud800"), f.claims()), MALFORMED),
        # types
        "logout token": (lambda: signed(header(typ="logout+jwt"), f.claims()), MALFORMED),
        "dpop proof": (lambda: signed(header(typ="dpop+jwt"), f.claims()), MALFORMED),
        "typ a number": (lambda: signed(header(typ=1), f.claims()), MALFORMED),
        # times
        "expired": (lambda: f.good(iat=f.at - 700, exp=f.at - 60), Reason.TOKEN_EXPIRED),
        "exp just now, no leeway left": (lambda: f.good(exp=f.at - 30), Reason.TOKEN_EXPIRED),
        "exp negative": (lambda: f.good(exp=-1), Reason.TOKEN_EXPIRED),
        "exp text": (lambda: f.good(exp="1900000000"), MALFORMED),
        "exp bool": (lambda: f.good(exp=True), MALFORMED),
        "exp a list": (lambda: f.good(exp=[f.at + 60]), MALFORMED),
        "exp huge": (lambda: f.good(exp=10**15), MALFORMED),
        "exp 1e300": (lambda: f.good(exp=1e300), MALFORMED),
        "exp missing": (lambda: f.good(exp=None), MALFORMED),
        "exp null": (lambda: signed(header(), f.claims() | {"exp": None}), MALFORMED),
        "iat missing": (lambda: f.good(iat=None), MALFORMED),
        "iat bool": (lambda: f.good(iat=False), MALFORMED),
        "iat in the future": (lambda: f.good(iat=f.at + 31, exp=f.at + 60), Reason.TOKEN_NOT_YET_VALID),
        "iat in the future, nbf not": (
            lambda: f.good(iat=f.at + 31, nbf=f.at - 10, exp=f.at + 60),
            Reason.TOKEN_NOT_YET_VALID,
        ),
        "nbf in the future": (lambda: f.good(nbf=f.at + 31), Reason.TOKEN_NOT_YET_VALID),
        "nbf text": (lambda: f.good(nbf="0"), MALFORMED),
        "nbf null": (lambda: signed(header(), f.claims() | {"nbf": None}), MALFORMED),
        "lives too long": (lambda: f.good(iat=f.at, exp=f.at + 3601), Reason.TOKEN_ISSUER),
        # audience
        "aud missing": (lambda: f.good(aud=None), MALFORMED),
        "aud empty": (lambda: f.good(aud=[]), MALFORMED),
        "aud a number": (lambda: f.good(aud=1), MALFORMED),
        "aud nested": (lambda: f.good(aud=[[AUDIENCE]]), MALFORMED),
        "aud an object": (lambda: f.good(aud={"warden": 1}), MALFORMED),
        "aud another": (lambda: f.good(aud="other"), Reason.TOKEN_AUDIENCE),
        "aud a prefix": (lambda: f.good(aud="ward"), Reason.TOKEN_AUDIENCE),
        "aud longer": (lambda: f.good(aud="warden2"), Reason.TOKEN_AUDIENCE),
        "aud in another case": (lambda: f.good(aud="Warden"), Reason.TOKEN_AUDIENCE),
        "aud with a slash": (lambda: f.good(aud="warden/"), Reason.TOKEN_AUDIENCE),
        # issuer
        "iss missing": (lambda: f.good(iss=None), MALFORMED),
        "iss a list": (lambda: f.good(iss=[ISSUER]), MALFORMED),
        "iss another": (lambda: f.good(iss="https://evil.example"), Reason.TOKEN_ISSUER),
        "iss with a slash": (lambda: f.good(iss=ISSUER + "/"), Reason.TOKEN_ISSUER),
        "iss a substring": (lambda: f.good(iss=ISSUER[:-1]), Reason.TOKEN_ISSUER),
        "iss a homograph": (lambda: f.good(iss=ISSUER.replace("i", "і", 1)), Reason.TOKEN_ISSUER),
        "iss in another case": (lambda: f.good(iss=ISSUER.upper()), Reason.TOKEN_ISSUER),
        # who
        "sub missing": (lambda: f.good(sub=None), MALFORMED),
        "sub empty": (lambda: f.good(sub=""), MALFORMED),
        "sub a number": (lambda: f.good(sub=7), MALFORMED),
        "sub with NUL": (lambda: f.good(sub="alice\0root"), MALFORMED),
        "sub with a line break": (lambda: f.good(sub="alice\nroot"), MALFORMED),
        "sub with C1": (lambda: f.good(sub="alice\x85root"), MALFORMED),
        "sub with a line separator": (lambda: f.good(sub="alice\u2028root"), MALFORMED),
        "sub too long": (lambda: f.good(sub="a" * (MAX_TEXT + 1)), MALFORMED),
        "tenant missing": (lambda: f.good(tenant=None), MALFORMED),
        "tenant a list": (lambda: f.good(tenant=["acme"]), MALFORMED),
        "tenant empty": (lambda: f.good(tenant=""), MALFORMED),
        "another tenant": (lambda: f.good(tenant="cobalt"), Reason.TOKEN_ISSUER),
        "tenant in another case": (lambda: f.good(tenant="ACME"), Reason.TOKEN_ISSUER),
        "tenant by half a glob": (lambda: f.good(tenant="birch"), Reason.TOKEN_ISSUER),
        "tenant with a line break": (lambda: f.good(tenant="birch-\n"), MALFORMED),
        "tenant a glob": (lambda: f.good(tenant="*"), Reason.TOKEN_ISSUER),
        "roles it may not give": (lambda: f.good(roles=["tenant", "admin"]), Reason.TOKEN_ISSUER),
        "roles as text": (lambda: f.good(roles="admin"), Reason.TOKEN_ISSUER),
        "roles an object": (lambda: f.good(roles={"tenant": True}), MALFORMED),
        "roles nested": (lambda: f.good(roles=[["tenant"]]), MALFORMED),
        "roles without end": (lambda: f.good(roles=["tenant"] * 33), MALFORMED),
    }


# --- API keys -----------------------------------------------------------------------------------------------------


def _checked(head: bytes) -> bytes:
    """``head`` with the CRC-32 that fits, so that what is wrong with it is not the checksum."""
    return head + keys.base62(zlib.crc32(head), keys.CRC_LENGTH)


def key_attacks(good: bytes) -> Mapping[str, Attack]:
    """Every mangled API key of the suite, made of one that works."""
    head, middle, secret, other = good[:-6], good[:-49], good[-49:-6], b"0" * 43
    flipped = (b"A" if secret[:1] != b"A" else b"B") + secret[1:]
    environment, key_id = good.split(b"_")[1:3]
    made: dict[str, bytes] = {
        "cut off": good[:-1],
        "one character more": good + b"0",
        "wrong checksum": head + b"000000",
        "checksum of another": head + _checked(middle + flipped)[-6:],
        "no checksum": head,
        "first character of the secret": _checked(middle + flipped),
        "last character of the secret": _checked(head[:-1] + (b"A" if head[-1:] != b"A" else b"B")),
        "no secret": _checked(middle),
        "another secret": _checked(middle + other),
        "secret in another case": _checked(middle + secret.swapcase()),
        "secret twice": _checked(middle + secret + secret),
        "unknown id": _checked(b"wdn_%s_%s_%s" % (environment, b"0" * 12, secret)),
        "id in another case": _checked(b"wdn_%s_%s_%s" % (environment, key_id.swapcase(), secret)),
        "id SQL": _checked(b"wdn_%s_%s_%s" % (environment, b"' OR 1=1 --", secret)),
        "id a glob": _checked(b"wdn_%s_%s_%s" % (environment, b"*" * 12, secret)),
        "id empty": _checked(b"wdn_%s__%s" % (environment, secret)),
        "another environment": _checked(b"wdn_%s_%s_%s" % (b"other", key_id, secret)),
        "no environment": _checked(b"wdn_%s_%s" % (key_id, secret)),
        "environment in another case": _checked(b"wdn_%s_%s_%s" % (environment.upper(), key_id, secret)),
        "non-alphabet": _checked(b"wdn_%s_%s_%s" % (environment, key_id, b"-" * 43)),
        "prefix alone": b"wdn_",
        "8 KiB": b"wdn_" + b"0" * 8000,
        "9 KiB": b"wdn_" + b"0" * 9000,
    }
    return {kind: ((lambda key=key: key), Reason.KEY_UNKNOWN) for kind, key in made.items()}


def header_attacks(key: bytes, token: bytes) -> Mapping[str, tuple[tuple[tuple[str, bytes], ...], Reason]]:
    """Good credentials sent where they do not count, or more than once: kind → headers, reason."""
    ambiguous, missing = Reason.CREDENTIAL_AMBIGUOUS, Reason.CREDENTIAL_MISSING
    bearer, bearer_key = ("authorization", b"Bearer " + token), ("authorization", b"Bearer " + key)
    api_key = ("x-api-key", key)
    return {
        "token and key": ((bearer, api_key), ambiguous),
        "key in both headers": ((bearer_key, api_key), ambiguous),
        "token twice": ((bearer, bearer), ambiguous),
        "key twice": ((api_key, api_key), ambiguous),
        "token and a forged one": ((bearer, ("authorization", b"Bearer x.y.z")), ambiguous),
        "a forged one and the token": ((("authorization", b"Bearer x.y.z"), bearer), ambiguous),
        "key and an empty one": ((api_key, ("x-api-key", b"")), ambiguous),
        "an empty authorization and a key": ((("authorization", b""), api_key), ambiguous),
        "token joined with itself": ((("authorization", b"Bearer %s, Bearer %s" % (token, token)),), ambiguous),
        "token joined without blank": ((("authorization", b"Bearer %s,Bearer %s" % (token, token)),), ambiguous),
        "key joined with itself": ((("x-api-key", b"%s,%s" % (key, key)),), ambiguous),
        "key and a comma": ((("x-api-key", key + b","),), ambiguous),
        "basic and bearer joined": ((("authorization", b"Basic YTpi, Bearer " + token),), ambiguous),
        "authorization-bin": ((("authorization-bin", b64(b"Bearer " + token)),), ambiguous),
        "x-api-key-bin": ((("x-api-key-bin", b64(key)),), ambiguous),
        "authorization-bin beside a key": ((api_key, ("authorization-bin", b"YQ")), ambiguous),
        "x-api-key-bin beside a token": ((bearer, ("x-api-key-bin", b"YQ")), ambiguous),
        "nothing": ((), missing),
        "empty authorization": ((("authorization", b""),), missing),
        "empty key": ((("x-api-key", b""),), missing),
        "bearer without token": ((("authorization", b"Bearer"),), missing),
        "token without scheme": ((("authorization", token),), missing),
        "basic": ((("authorization", b"Basic " + base64.b64encode(b"acme:" + key)),), missing),
        "digest": ((("authorization", b"Digest username=acme"),), missing),
        "token for another scheme": ((("authorization", b"DPoP " + token),), missing),
        "proxy-authorization": ((("proxy-authorization", b"Bearer " + token),), missing),
        "cookie": ((("cookie", b"authorization=Bearer " + token),), missing),
        "x-api_key": ((("x-api_key", key),), missing),
        "token as API key": ((("x-api-key", token),), Reason.KEY_UNKNOWN),
        "bearer twice in one": ((("authorization", b"Bearer Bearer " + token),), MALFORMED),
        "token in quotes": ((("authorization", b'Bearer "' + token + b'"'),), MALFORMED),
        "token twice between blanks": ((("authorization", b"Bearer %s %s" % (token, token)),), MALFORMED),
        "token and parameters": ((("authorization", b"Bearer " + token + b"; realm=x"),), MALFORMED),
    }

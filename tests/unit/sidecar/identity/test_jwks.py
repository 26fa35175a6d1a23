"""JWK sets are read strictly, kept through outages, and fetched by their own threads only."""

from __future__ import annotations

import hashlib
import json
import threading
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm

from sidecar.identity.fetch import Unchanged
from sidecar.identity.jwks import (
    MAX_KEYS,
    MAX_SET,
    Condition,
    JwksRefresher,
    JwksSource,
    KeySet,
    named,
    parse_jwks,
    source_for,
)
from tests.support.identity import NOW, FakeFetch, generate, jwk, jwks

ALL = ("EdDSA", "ES256", "ES384", "RS256", "PS256")


@cache
def key(kind: str) -> Any:
    return generate(kind)


def parsed(data: bytes, algorithms: tuple[str, ...] = ALL) -> KeySet:
    found = parse_jwks(data, algorithms)
    assert isinstance(found, KeySet), found
    return found


def test_each_key_is_bound_to_one_algorithm() -> None:
    keys = parsed(jwks(*(jwk(key(kind), kind) for kind in ("EdDSA", "ES256", "ES384", "RS256"))))
    assert {kid: bound.algorithm_name for kid, bound in keys.by_kid.items()} == {
        "EdDSA": "EdDSA",
        "ES256": "ES256",
        "ES384": "ES384",
        "RS256": "RS256",
    }


def test_a_keys_own_algorithm_goes_before_the_issuers_order() -> None:
    assert parsed(jwks(jwk(key("RS256"), "k", alg="PS256"))).by_kid["k"].algorithm_name == "PS256"
    assert parsed(jwks(jwk(key("RS256"), "k")), ("PS256", "RS256")).by_kid["k"].algorithm_name == "PS256"


@pytest.mark.parametrize(
    "passed_over",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"alg": "RSA-OAEP"},
        {"alg": ["EdDSA"]},
        {"kty": "unknown"},
        {"crv": "Ed448"},
        {"crv": 1},
        {"kty": ["OKP"]},
    ],
)
def test_keys_for_other_purposes_are_passed_over(passed_over: dict[str, Any]) -> None:
    keys = parsed(jwks(jwk(key("ES256"), "good"), jwk(key("EdDSA"), "other", **passed_over)))
    assert set(keys.by_kid) == {"good"}


def private_jwk() -> dict[str, Any]:
    return json.loads(OKPAlgorithm.to_jwk(key("EdDSA"))) | {"kid": "private"}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "JSON"),
        (b"[]", "not a JWK set"),
        (b'{"keys": {}}', "not a JWK set"),
        (b'{"keys": ["x"]}', "not a JWK set"),
        (b'{"keys": []}', "no key fits"),
        (b'{"keys": [], "keys": []}', "twice"),
        (b'{"keys": []}' + b" " * MAX_SET, "longer"),
        (b"[" * 3000, "nested"),
        (jwks(*[{}] * (MAX_KEYS + 1)), "more than"),
        (jwks({"kty": "oct", "k": "c2VjcmV0", "kid": "h"}), "symmetric"),
        (jwks({"kty": "OKP", "k": "c2VjcmV0"}), "symmetric"),
        (jwks(private_jwk()), "private"),
        (jwks(jwk(key("EdDSA"), "k"), jwk(key("ES256"), "k")), "kid is given twice"),
        (jwks(jwk(key("EdDSA"), "k") | {"kid": 7}), "kid is not text"),
        (jwks(jwk(rsa.generate_private_key(65537, 1024), "weak")), "1024 bits"),
        (jwks(jwk(key("EdDSA"), "k") | {"x": "!!"}), "cannot be read"),
        (jwks(jwk(key("ES256"), "k") | {"y": jwk(key("ES256"), "k")["x"]}), "cannot be read"),
        (jwks(jwk(key("EdDSA"), "k"), jwk(key("RS256"), "r") | {"n": 5}), "cannot be read"),
    ],
)
def test_a_bad_set_is_refused_whole(data: bytes, fault: str) -> None:
    found = parse_jwks(data, ALL)
    assert isinstance(found, str)
    assert fault in found


def test_finding_by_kid_never_guesses_among_several() -> None:
    two = parsed(jwks(jwk(key("EdDSA"), "a"), jwk(key("ES256"), None)))
    assert two.find("a") is two.by_kid["a"]
    assert two.find("b") is None
    assert two.find(None) is None
    one = parsed(jwks(jwk(key("ES256"), None)))
    assert one.find(None) is one.unnamed[0]
    assert one.find("a") is None


def test_a_failed_fetch_never_evicts_good_keys() -> None:
    fetch = FakeFetch(jwks(jwk(key("EdDSA"), "a")))
    source = JwksSource(fetch, ALL)
    assert source.keys(NOW) is None
    assert source.refresh(NOW)
    had = source.keys(NOW)
    for answer in ("HTTP 500", b"not json", jwks({"kty": "oct", "k": "x"})):
        fetch.answer = answer
        assert not source.refresh(NOW + 10)
        assert source.keys(NOW + 10) is had
        assert source.condition.confirmed_at == NOW
        assert source.condition.fault
    fetch.answer = jwks(jwk(key("EdDSA"), "a"))
    assert source.refresh(NOW + 20)
    assert source.condition.fault == ""


def test_a_refused_set_is_not_confirmed_by_being_served_again() -> None:
    fetch = FakeFetch(b"not json")
    source = JwksSource(fetch, ALL)
    assert [source.refresh(NOW), source.refresh(NOW)] == [False, False]


class Gate:
    """A ``Fetch`` that tells of each fetch, and how many were going on at once."""

    def __init__(self) -> None:
        self.fetched = threading.Semaphore(0)
        self.fetches = 0

    def __call__(self) -> bytes | Unchanged | str:
        self.fetches += 1
        self.fetched.release()
        return jwks(jwk(key("EdDSA"), str(self.fetches)))

    def forget(self) -> None: ...


def test_the_refresher_fetches_at_start_and_when_asked_and_stops() -> None:
    gate = Gate()
    source = JwksSource(gate, ALL, period=3600.0, cooldown=0.0)
    refresher = JwksRefresher([source], lambda: NOW)
    refresher.start()
    try:
        assert gate.fetched.acquire(timeout=5)
        source.ask()
        assert gate.fetched.acquire(timeout=5)
    finally:
        refresher.stop()
    assert not any(thread.is_alive() for thread in refresher._threads)


def test_asking_within_the_cooldown_fetches_nothing() -> None:
    gate = Gate()
    source = JwksSource(gate, ALL, period=3600.0, cooldown=3600.0)
    refresher = JwksRefresher([source], lambda: NOW)
    refresher.start()
    try:
        assert gate.fetched.acquire(timeout=5)
        for _ in range(1000):
            source.ask()
        assert not gate.fetched.acquire(timeout=0.05)
    finally:
        refresher.stop()
    assert gate.fetches == 1


def test_a_fetch_that_crashes_does_not_end_the_refreshing() -> None:
    class Crashing(Gate):
        def __call__(self) -> bytes:
            if self.fetches == 0:
                self.fetches += 1
                self.fetched.release()
                raise ZeroDivisionError
            return super().__call__()

    gate = Crashing()
    source = JwksSource(gate, ALL, period=3600.0, cooldown=0.0)
    refresher = JwksRefresher([source], lambda: NOW)
    refresher.start()
    try:
        assert gate.fetched.acquire(timeout=5)
        assert gate.fetched.acquire(timeout=5)
    finally:
        refresher.stop()
    assert source.condition == Condition(NOW)


def test_a_refresher_that_never_started_stops() -> None:
    JwksRefresher([JwksSource(Gate(), ALL)], lambda: NOW).stop()


@pytest.mark.parametrize(
    ("location", "good"),
    [
        ("keys.json", True),
        ("/etc/warden/keys.json", True),
        ("https://issuer.example/jwks", True),
        ("http://127.0.0.1:8080/jwks", True),
        ("http://[::1]/jwks", True),
        ("http://localhost/jwks", True),
        ("http://issuer.example/jwks", False),
        ("http://127.0.0.1.evil.example/jwks", False),
        ("https://user:pw@issuer.example/jwks", False),
        ("file:///etc/passwd", False),
        ("ftp://issuer.example/jwks", False),
        ("https:///jwks", False),
    ],
)
def test_where_keys_may_come_from(location: str, good: bool) -> None:
    assert isinstance(source_for(location, ALL, lambda: 0.0), JwksSource if good else str)


def test_keys_are_told_by_kid_algorithm_and_what_they_are() -> None:
    """The digest is the public key's own: one put in another's place under its kid is told apart."""
    first, second = generate("EdDSA"), generate("EdDSA")
    one, other = (parse_jwks(jwks(jwk(key, "k" * 300)), ("EdDSA",)) for key in (first, second))
    assert isinstance(one, KeySet)
    assert isinstance(other, KeySet)
    der = first.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    mark = hashlib.sha256(der).hexdigest()[:16]
    assert named(one) == {"k" * 100: f"EdDSA {mark}"}
    assert named(other).keys() == named(one).keys()
    assert named(other) != named(one)
    assert named(KeySet({}, tuple(one.by_kid.values()))) == {mark: f"EdDSA {mark}"}

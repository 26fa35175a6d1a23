"""An issuer's keys over real HTTP, as a running sidecar fetches them: floods, outages, rotations, nonsense."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.core.reasons import Reason
from tests.support.attacks import Forger, header, key, key_set
from tests.support.identity import AUDIENCE, ISSUER, jwk, jwks, sign
from tests.support.issuer import JwksServer
from tests.support.sidecar import Answer, Bare, Launch, Sidecar, echo, ended
from tests.support.stack import eventually

pytestmark = pytest.mark.integration

FLOOD = 1_000  # tests/long has ten times as many, over two cooldowns
COOLDOWN_S = 30.0  # of a source by URL (facts/identity.md)
AT_ONCE = 100  # calls


@pytest.fixture
def issuer() -> Iterator[JwksServer]:
    server = JwksServer(key_set())
    yield server
    server.stop()


@pytest.fixture
def trusting(own: Launch, issuer: JwksServer) -> Sidecar:
    section = {"issuer": ISSUER, "audience": [AUDIENCE], "jwks": issuer.url, "algorithms": ["EdDSA", "ES256"],
               "tenants": ["acme"]}  # fmt: skip
    return own(overrides={"identity": {"issuers": [section]}})


def bearer(token: bytes) -> dict[str, str]:
    return {"authorization": f"Bearer {token.decode()}"}


def reason(answer: Answer) -> str:
    return "OK" if answer.code == "OK" else answer.told().reason


def random_kid(forger: Forger, number: int) -> bytes:
    return sign(key("EdDSA"), "EdDSA", header(kid=f"random-{number}"), forger.claims_json.encode())


def flood(bare: Bare, forger: Forger, number: int) -> Counter[str]:
    """So many tokens with as many kids, and among every hundred a good one of its own; how each was answered."""
    seen: Counter[str] = Counter()
    for start in range(0, number, AT_ONCE):
        wild = [bare.begin(echo(), bearer(random_kid(forger, start + n))) for n in range(AT_ONCE)]
        good = bare.begin(echo(), bearer(forger.good(sub=f"user-{start}")))  # first seen: verified, not remembered
        seen.update(reason(ended(each)) for each in wild)
        assert reason(ended(good)) == "OK"
    return seen


def few_fetches(issuer: JwksServer) -> str:
    """At most one a cooldown; in words."""
    gaps = [later - sooner for sooner, later in itertools.pairwise(issuer.asked)]
    assert all(gap >= COOLDOWN_S - 0.5 for gap in gaps)  # as seen from another process
    return f"{len(issuer.asked)} fetches" + (f", at least {min(gaps):.1f} s apart" if gaps else "")


def test_a_flood_of_random_kids_costs_the_issuer_nothing_within_a_cooldown(
    trusting: Sidecar, issuer: JwksServer
) -> None:
    """Over the wire and real HTTP; then without the issuer: good keys go on verifying."""
    forger = Forger(time.time())
    with trusting.bare() as bare:
        eventually(lambda: reason(bare.unary(echo(), bearer(forger.good()))) == "OK", what="the issuer's keys")
        assert flood(bare, forger, FLOOD) == {Reason.TOKEN_SIGNATURE: FLOOD}
        few_fetches(issuer)
        issuer.stop()
        try:
            assert reason(bare.unary(echo(), bearer(forger.good(sub="during the outage")))) == "OK"
            assert reason(bare.unary(echo(), bearer(forger.good("ES256")))) == "OK"
            assert reason(bare.unary(echo(), bearer(random_kid(forger, FLOOD)))) == Reason.TOKEN_SIGNATURE
            assert trusting.metric("warden_jwks_age_seconds") > 0
        finally:
            issuer.start()


def test_a_sidecar_that_never_had_the_keys_says_unavailable_until_it_has(own: Launch, issuer: JwksServer) -> None:
    """Never UNAUTHENTICATED: whether such a token is good cannot be told."""
    issuer.stop()
    section: dict[str, Any] = {"issuer": ISSUER, "audience": [AUDIENCE], "jwks": issuer.url, "algorithms": ["EdDSA"],
                               "tenants": ["acme"]}  # fmt: skip
    sidecar = own(overrides={"identity": {"issuers": [section]}})
    try:
        with sidecar.bare() as bare:
            answer = bare.unary(echo(), bearer(Forger(time.time()).good()))
            assert (answer.code, reason(answer)) == ("UNAVAILABLE", Reason.KEYS_UNAVAILABLE)
            assert answer.told().retry is not None
            assert "127.0.0.1" not in answer.text  # where the keys should have come from is the operator's to know
    finally:
        issuer.start()


def test_a_set_that_turns_bad_takes_no_good_key_along(own: Launch, issuer: JwksServer, tmp_path: Any) -> None:
    """By file, which is looked at every 2 s: a symmetric, private, doubled, huge or broken set changes nothing."""
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set())
    section = {"issuer": ISSUER, "audience": [AUDIENCE], "jwks": str(path), "algorithms": ["EdDSA"],
               "tenants": ["acme"]}  # fmt: skip
    sidecar = own(overrides={"identity": {"issuers": [section]}})
    forger, second = Forger(time.time()), key("EdDSA", 3)
    rotated = sign(second, "EdDSA", header(kid="second"), forger.claims())
    with sidecar.bare() as bare:
        eventually(lambda: reason(bare.unary(echo(), bearer(forger.good()))) == "OK", what="the issuer's keys")
        for number, bad in enumerate((jwks({"kty": "oct", "k": "c2VjcmV0", "kid": "EdDSA"}),
                                      jwks(jwk(second, "second"), jwk(second, "second")), b" " * 300_000)):  # fmt: skip
            path.write_bytes(bad)
            eventually(
                lambda: "refused" in trouble(sidecar) or "longer" in trouble(sidecar), what=f"bad set {number} told"
            )
            assert reason(bare.unary(echo(), bearer(forger.good(sub=f"after {number}")))) == "OK"
            assert reason(bare.unary(echo(), bearer(rotated))) == Reason.TOKEN_SIGNATURE
            path.write_bytes(key_set())
            eventually(lambda: not trouble(sidecar), what="the good set again")
        path.write_bytes(jwks(jwk(second, "second")))
        eventually(lambda: reason(bare.unary(echo(), bearer(rotated))) == "OK", what="the rotated key")
        # Gone with its kid, whoever remembered what it had verified.
        assert reason(bare.unary(echo(), bearer(forger.good()))) == Reason.TOKEN_SIGNATURE


def trouble(sidecar: Sidecar) -> str:
    """What /readyz says of the issuer's keys; "" while they are current."""
    detail = str(sidecar.stack.readyz()["checks"][f"jwks {ISSUER}"]["detail"])
    return "" if detail == "current" else detail

"""Ten thousand tokens with random kids cost the issuer one fetch a cooldown; an issuer that is down costs nothing."""

from __future__ import annotations

import time

from sidecar.core.model import Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.identity.fetch import Unchanged
from sidecar.identity.jwks import JwksRefresher, JwksSource
from sidecar.identity.jwt import TokenVerifier
from tests.support.attacks import Forger, header, key_set, signed
from tests.support.identity import NOW, FakeFetch, issuer
from tests.support.store import wait_until

FLOOD = 10_000


class TimedFetch(FakeFetch):
    """Notes when it was asked (s, monotonic)."""

    def __init__(self, answer: bytes | str) -> None:
        super().__init__(answer)
        self.at: list[float] = []

    def __call__(self) -> bytes | Unchanged | str:
        self.at.append(time.monotonic())
        return super().__call__()


def flood(tokens: TokenVerifier, forger: Forger, number: int) -> None:
    for n in range(number):
        found = tokens.identify(signed(header(kid=f"random-{n}"), forger.claims_json.encode()), NOW)
        assert isinstance(found, Denial)
        assert found.reason is Reason.TOKEN_SIGNATURE


def test_a_flood_of_random_kids_makes_one_fetch_a_cooldown() -> None:
    """With the real refresher's thread; its cooldown here 0.2 s, so that the flood lasts several."""
    fetch, cooldown = TimedFetch(key_set()), 0.2
    source = JwksSource(fetch, ("EdDSA",), period=3600, cooldown=cooldown)
    refresher = JwksRefresher([source], lambda: NOW)
    tokens, forger = TokenVerifier([(issuer(), source)]), Forger(NOW)
    refresher.start()
    try:
        wait_until(lambda: source.keys(NOW) is not None)
        flood(tokens, forger, FLOOD)
        assert isinstance(tokens.identify(forger.good(), NOW), Principal)
    finally:
        refresher.stop()
    gaps = [later - sooner for sooner, later in zip(fetch.at, fetch.at[1:], strict=False)]
    print(f"\n{FLOOD} random kids: {len(fetch.at)} fetches, at least {min(gaps, default=0):.2f} s apart")
    assert len(fetch.at) >= 2  # an unknown kid does ask: it may be a rotation
    assert all(gap >= cooldown for gap in gaps)


def test_an_issuer_that_is_down_for_an_hour_takes_no_good_key_along() -> None:
    fetch = FakeFetch(key_set())
    source = JwksSource(fetch, ("EdDSA",))
    assert source.refresh(NOW)
    tokens = TokenVerifier([(issuer(), source)])
    fetch.answer = "connection refused"
    for minute in range(61):
        at = NOW + 60 * minute
        assert minute == 0 or not source.refresh(at)
        assert isinstance(tokens.identify(Forger(at).good(), at), Principal)
        assert isinstance(tokens.identify(signed(header(kid="new"), Forger(at).claims()), at), Denial)
    assert source.condition.confirmed_at == NOW  # its age tells, as a metric
    assert source.condition.fault == "connection refused"


def test_a_rotation_is_found_by_the_first_token_of_the_new_key() -> None:
    fetch = FakeFetch(b'{"keys": []}')
    source = JwksSource(fetch, ("EdDSA",), period=3600, cooldown=0.01)
    refresher = JwksRefresher([source], lambda: NOW)
    tokens, forger = TokenVerifier([(issuer(), source)]), Forger(NOW)
    refresher.start()
    try:
        fetch.answer = key_set()
        wait_until(lambda: isinstance(tokens.identify(forger.good(), NOW), Principal))
    finally:
        refresher.stop()

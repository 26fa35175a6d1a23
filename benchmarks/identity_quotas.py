"""CPU of the parts of an admission that identity and quotas add: ``python -m benchmarks.identity_quotas``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from sidecar.core.model import Demand, Instant, Limits, RequestRate, Reservation, Secret, Usage
from sidecar.identity import compact, keys
from sidecar.identity.credentials import extract
from sidecar.identity.denials import Age
from sidecar.identity.identify import Identifier
from sidecar.identity.jwt import TokenVerifier
from sidecar.identity.keys import KeyRing, KeySnapshot
from sidecar.identity.keytable import KeyTable
from sidecar.quotas.local import LocalQuotas
from tests.support.attacks import attacks as suite
from tests.support.attacks import key_set
from tests.support.identity import NOW, claims, credential, generate, issuer, jwk, jwks, key_row, seeded, sign, source

ROUNDS = 5  # the best counts: the others met somebody else's load
KEYS = 100_000
PEPPER = Secret(b"p" * 32)


def measure(name: str, step: Callable[[], object], times: int) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(times):
            step()
        best = min(best, (time.process_time_ns() - began) / times / 1000)
    print(f"{name:44} {best:8.2f} µs")


def quotas() -> None:
    held, now = LocalQuotas(), 0
    limits = Limits(RequestRate(1e6, 10**6), 10**9, 10**4, 2**40, 2**40)
    demand, usage = Demand(500, 2**26, 2**20), Usage(input_tokens=100, output_tokens=200)

    def both() -> None:
        nonlocal now
        now += 100_000
        at = Instant(now, now)
        found = held.reserve("acme", "chat", limits, demand, at, enforce=True)
        assert isinstance(found, Reservation)
        held.settle(found, usage, at)

    full, at = Limits(concurrency=0), Instant(0, 0)
    measure("reserve + settle, all five limited", both, 50_000)
    measure("reserve refused", lambda: held.reserve("x", "chat", full, demand, at, enforce=True), 20_000)


def tokens(ring: KeyRing) -> None:
    for kind in ("EdDSA", "ES256", "RS256"):
        private = generate(kind)
        signed = source(jwks(jwk(private, "k")), (kind,))
        pair = [sign(private, kind, {"alg": kind, "kid": "k"}, claims(sub=name)) for name in ("alice", "carol")]
        given = [credential("jwt", token) for token in pair]
        roomy = Identifier(TokenVerifier([(issuer(algorithms=(kind,)), signed)]), ring)
        # With room for one, each of two tokens in turn is always new.
        tight = Identifier(TokenVerifier([(issuer(algorithms=(kind,)), signed)], remembered=1), ring)
        turn = itertools.cycle(given)
        size = len(pair[0])
        measure(
            f"identify, {kind} token of {size} B, first time", lambda i=tight, t=turn: i.identify(next(t), NOW), 2_000
        )
        measure(f"identify, {kind} token, remembered", lambda i=roomy, g=given[0]: i.identify(g, NOW), 50_000)
        measure(f"strict parse alone, {size} B", lambda t=pair[0]: compact.parse(t), 5_000)
    headers = [("user-agent", "x"), ("te", "trailers"), ("content-type", "application/grpc")]
    headers.append(("authorization", "Bearer " + pair[0].decode()))
    measure("extract from 4 headers", lambda: extract(headers), 50_000)


def attacks() -> None:
    """Each forged token of the attack suite, against a verifier of every algorithm (the bar: 5 ms each)."""
    algorithms = ("EdDSA", "ES256", "ES384", "RS256", "PS256")
    verifier = TokenVerifier([(issuer(algorithms=algorithms), source(key_set(), algorithms))])
    took: dict[str, float] = {}
    for kind, (make, _) in suite(NOW).items():
        token, best = make(), float("inf")
        for _ in range(ROUNDS):
            began = time.process_time_ns()
            verifier.identify(token, NOW)
            best = min(best, (time.process_time_ns() - began) / 1000)
        took[kind] = best
    slowest = max(took, key=lambda kind: took[kind])
    ordered = sorted(took.values())
    print(f"{f'refuse each of {len(took)} attacks, median':44} {ordered[len(ordered) // 2]:8.2f} µs")
    print(f"{f'refuse the slowest ({slowest})':44} {took[slowest]:8.2f} µs")


def api_keys(ring: KeyRing, known: bytes) -> None:
    identifier = Identifier(TokenVerifier([]), ring)
    unknown = keys.generate("live", seeded(-1)).text().encode()
    for name, text in (("known", known), ("unknown", unknown)):
        given = credential("api_key", text)
        measure(f"identify, API key {name}, of {KEYS:,}", lambda g=given: identifier.identify(g, NOW), 50_000)


def main() -> None:
    made = [keys.generate("live", seeded(number)) for number in range(KEYS)]
    rows = KeyTable(key_row(key.id, keys.mac(PEPPER, key.secret)) for key in made)
    ring = KeyRing(PEPPER, "live", max_age=3600)
    ring.install(KeySnapshot(rows, Age(NOW)))
    quotas()
    tokens(ring)
    api_keys(ring, made[-1].text().encode())
    attacks()


if __name__ == "__main__":
    main()

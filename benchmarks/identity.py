"""CPU of identifying a caller, first seen and remembered, by algorithm; of refusing each forged token; of API keys."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Final

from sidecar.core.model import Secret
from sidecar.identity import compact, keys
from sidecar.identity.credentials import extract
from sidecar.identity.denials import Age, DenyBook, DenyList
from sidecar.identity.identify import Identifier
from sidecar.identity.jwt import TokenVerifier
from sidecar.identity.keys import KeyRing, KeySnapshot
from sidecar.identity.keytable import KeyTable
from tests.support.attacks import attacks, key_set
from tests.support.identity import NOW, claims, credential, generate, issuer, jwk, jwks, key_row, seeded, sign, source
from tests.support.siege import EVERY

ROUNDS: Final = 5  # the best counts: the others met somebody else's load
KEYS: Final = 100_000
PEPPER: Final = Secret(b"p" * 32)


def measure(*, quick: bool) -> dict[str, Any]:
    """In CPU µs: ``steps`` by what is done, ``attacks`` over the whole suite of forged tokens."""
    scale = 5 if quick else 1
    ring, known = _ring()
    return {"steps_us": _tokens(ring, scale) | _api_keys(ring, known, scale), "attacks": _attacks()}


def _least(step: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(times):
            step()
        best = min(best, (time.process_time_ns() - began) / times / 1000)
    return round(best, 2)


def _tokens(ring: KeyRing, scale: int) -> dict[str, float]:
    found: dict[str, float] = {}
    book = DenyBook(max_age=3600)
    book.install(DenyList({(str(n), str(n)): NOW + 1e6 for n in range(1000)}), Age(NOW))
    for kind in EVERY:
        private = generate(kind)
        signed = source(jwks(jwk(private, "k")), (kind,))
        pair = [sign(private, kind, {"alg": kind, "kid": "k"}, claims(sub=name)) for name in ("alice", "carol")]
        given = [credential("jwt", token) for token in pair]
        roomy = Identifier(TokenVerifier([(issuer(algorithms=(kind,)), signed)], book), ring)
        # With room for one, each of two tokens in turn is always new.
        tight = Identifier(TokenVerifier([(issuer(algorithms=(kind,)), signed)], book, remembered=1), ring)
        turn = itertools.cycle(given)
        found[f"{kind} token, first seen"] = _least(lambda i=tight, t=turn: i.identify(next(t), NOW), 2_000 // scale)
        found[f"{kind} token, remembered"] = _least(lambda i=roomy, g=given[0]: i.identify(g, NOW), 50_000 // scale)
    found["strict parse of a token alone"] = _least(lambda t=pair[0]: compact.parse(t), 5_000 // scale)
    headers = [("user-agent", "x"), ("te", "trailers"), ("content-type", "application/grpc")]
    headers.append(("authorization", "Bearer " + pair[0].decode()))
    found["find the credential among 4 headers"] = _least(lambda: extract(headers), 50_000 // scale)
    return found


def _attacks() -> dict[str, Any]:
    """Each forged token, against a verifier of every algorithm."""
    made = {kind: make() for kind, (make, _) in attacks(NOW).items()}
    verifier = TokenVerifier([(issuer(algorithms=EVERY), source(key_set(), EVERY))])
    took = {kind: _least(lambda t=token: verifier.identify(t, NOW), 1) for kind, token in made.items()}
    slowest, ordered = max(took, key=lambda kind: took[kind]), sorted(took.values())
    return {
        "number": len(took), "median_us": ordered[len(ordered) // 2], "slowest": slowest, "slowest_us": took[slowest],
    }  # fmt: skip


def _ring() -> tuple[KeyRing, bytes]:
    """A ring of ``KEYS`` keys, and one of them."""
    made = [keys.generate("live", seeded(number)) for number in range(KEYS)]
    ring = KeyRing(PEPPER, "live", max_age=3600)
    rows = KeyTable(key_row(key.id, keys.mac(PEPPER, key.secret)) for key in made)
    ring.install(KeySnapshot(rows, Age(NOW)), away=False)
    return ring, made[-1].text().encode()


def _api_keys(ring: KeyRing, known: bytes, scale: int) -> dict[str, float]:
    identifier = Identifier(TokenVerifier([]), ring)
    unknown = keys.generate("live", seeded(-1)).text().encode()
    found = {}
    for name, text in (("known", known), ("unknown", unknown)):
        given = credential("api_key", text)
        found[f"API key, {name}, of {KEYS:,}"] = _least(lambda g=given: identifier.identify(g, NOW), 50_000 // scale)
    return found

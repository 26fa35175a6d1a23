"""Forged, mangled, hostile and doubled credentials against the running sidecar: refused alike on both wires."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from sidecar.core.reasons import Reason
from tests.support.attacks import KINDS, Forger, attacks, header, key
from tests.support.http2 import INFER, Raw, RawAnswer
from tests.support.identity import sign
from tests.support.postgres import Server
from tests.support.sidecar import Sidecar, echo, launch
from tests.support.siege import OTHER_ISSUER, UNSENDABLE, Headers, bearer, issuers, suite
from tests.support.stack import Triton

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def guarded(
    wire: str, bundle: Path, otlp: OtlpReceiver, triton: Triton, postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sidecar]:  # fmt: skip
    """A sidecar that trusts three issuers: one of every algorithm, one with a single key, the demo's."""
    directory = tmp_path_factory.mktemp(f"{wire}-guarded")
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    sidecar = launch(directory / "stack", wire, parts, bundle, overrides={"identity": {"issuers": issuers(directory)}})
    yield sidecar
    sidecar.close()


class Caller:
    """Calls on one connection, made anew where the last call broke it; keeps what each took (ms)."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._raw: Raw | None = None
        self.took: list[float] = []

    def __call__(self, headers: Headers, **options: Headers) -> str:
        answer = self.answer(headers, **options)
        return answer.reason

    def answer(self, headers: Headers, **options: Headers) -> RawAnswer:
        if self._raw is None:
            self._raw = Raw(self._address)
        began = time.perf_counter()
        answer = self._raw.call(echo(), headers, **options)  # type: ignore[arg-type] — trailers only
        self.took.append((time.perf_counter() - began) * 1e3)
        if answer.broken:
            self.close()
        return answer

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None


@pytest.fixture
def call(guarded: Sidecar) -> Iterator[Caller]:
    caller = Caller(guarded.grpc)
    yield caller
    caller.close()


def api_key(sidecar: Sidecar, tenant: str = "acme") -> bytes:
    return str(sidecar.stack.info["tenants"][tenant]["api_key"]).encode()


def test_every_attack_is_refused_with_its_reason(guarded: Sidecar, call: Caller) -> None:
    made = suite(api_key(guarded), time.time())
    assert len(made) >= 150
    wrong = {}
    for kind, (headers, reason) in made.items():
        if "in the future" in kind:  # by a second more than the leeway, which all those before it may take
            headers = bearer(attacks(time.time() + 20)[kind.removeprefix("token: ")][0]())  # noqa: PLW2901
        found = call(headers)
        if found != reason:
            wrong[kind] = (found, str(reason))
    assert not wrong
    quantiles = statistics.quantiles(call.took, n=100)
    print(
        f"\n{guarded.wire}: {len(made)} attacks refused; round trip p50 {quantiles[49]:.2f} ms, "
        f"p99 {quantiles[98]:.2f} ms, longest {max(call.took):.2f} ms"
    )


def test_no_attack_is_refused_for_anything_but_its_public_text(guarded: Sidecar, call: Caller) -> None:
    """Detail for operators (issuer, kid, tenant as asserted) is in the record, and not in what the caller is told."""
    mallory = Forger(time.time()).good(tenant="mallory-corp")
    answer = call.answer(bearer(mallory))
    assert answer.reason == Reason.TOKEN_ISSUER
    assert "mallory" not in repr(answer.headers)
    record = guarded.record(answer.headers["x-warden-call-id"])
    assert (record["outcome"], record["reason"]) == ("refused", Reason.TOKEN_ISSUER)
    assert not record["tenant"]


@pytest.mark.parametrize("kind", [*sorted(UNSENDABLE), "80 KB"])
def test_what_http_does_not_carry_never_gets_through(call: Caller, kind: str) -> None:
    token = b"a" * 80_000 if kind == "80 KB" else attacks(time.time())[kind][0]()
    answer = call.answer(bearer(token))
    assert answer.reason != "OK"
    assert "x-warden-call-id" not in answer.headers or answer.reason in set(Reason)  # by the wire itself, or by us


def test_a_hundred_good_credentials_are_accepted(guarded: Sidecar, call: Caller) -> None:
    forger = Forger(time.time())
    made: list[Headers] = [bearer(forger.good(kind, sub=f"user-{n}")) for kind in KINDS for n in range(15)]
    second = key("EdDSA", 2)
    org = {"org": {"tenant": "acme"}}
    for n in range(20):
        said = forger.claims(iss=OTHER_ISSUER, tenant=None, sub=f"o{n}", aud=["x", "second"], **org)
        made.append(bearer(sign(second, "EdDSA", header(typ=("at+jwt" if n % 2 else None)), said)))
    made += [bearer(guarded.token("acme", lifetime=60 + n).encode()) for n in range(10)]
    made += [[("x-api-key", api_key(guarded))], bearer(api_key(guarded))]
    made += [[("authorization", scheme + b" " + forger.good())] for scheme in (b"bearer", b"BEARER", b"bEaReR")]
    made += [[("authorization", b"Bearer " + b" " * n + forger.good())] for n in range(1, 6)]
    assert len(made) >= 100
    assert [call(headers) for headers in made] == ["OK"] * len(made)


def in_http2(name: bytes, value: bytes) -> list[tuple[str | bytes, bytes]]:
    return [(name, value)]


MIXED: Mapping[str, Callable[[bytes], Headers]] = {
    "mixed case": lambda token: in_http2(b"Authorization", b"Bearer " + token),
    "upper case": lambda token: in_http2(b"X-API-KEY", b"wdn_" + token),
    "mixed case beside lower": lambda token: [*in_http2(b"Authorization", b"Bearer x.y.z"), *bearer(token)],
}


@pytest.mark.parametrize("kind", MIXED)
def test_a_name_in_mixed_case_is_no_http2_and_never_a_second_reading(call: Caller, kind: str) -> None:
    """RFC 9113 §8.2: such a request is malformed. Neither wire may serve it, by whichever of its credentials."""
    assert call(MIXED[kind](Forger(time.time()).good())) != "OK"


def test_a_credential_in_trailers_does_not_count(guarded: Sidecar, call: Caller) -> None:
    """gRPC requests have no trailers, so neither wire's library shows them: not pyvoy, not grpc.aio.

    So they cannot be CREDENTIAL_AMBIGUOUS. They are nothing: no credential, in no record, not forwarded.
    """
    good, secret = Forger(time.time()).good(), b"wdn_demo_trailing-credential"
    key = ("x-api-key", api_key(guarded))
    for trailers in (bearer(good), [key], [("x-api-key-bin", b"YQ")], [key, *bearer(good)]):
        assert call((), trailers=trailers) == Reason.CREDENTIAL_MISSING
    for trailers in (bearer(b"x.y.z"), [("x-api-key", secret)], [("x-api-key", secret), ("x-warden-subject", b"eve")]):
        answer = call.answer(bearer(good), trailers=trailers)
        assert answer.reason == "OK"
        record = guarded.record(answer.headers["x-warden-call-id"])
        assert (record["tenant"], record["principal"], record["subject"]) == ("acme", "alice", None)
        assert secret.decode() not in json.dumps(record, default=str)
    assert secret not in guarded.stack.log.read_bytes()


def test_a_path_is_the_method_s_own_letter_for_letter(guarded: Sidecar) -> None:
    """No escapes, no query: neither another way to name a method, nor a place for a credential."""
    good = bearer(Forger(time.time()).good())
    spelt = (INFER.replace("ModelInfer", "Model%49nfer"), INFER.replace("/ModelInfer", "%2FModelInfer"), INFER + "?a=b")
    for path in spelt:
        raw = Raw(guarded.grpc)
        assert raw.call(echo(), good, path=path).reason == Reason.METHOD_UNKNOWN
        raw.close()
    for query in ("?x-api-key=" + api_key(guarded).decode(), "?authorization=Bearer%20x"):
        raw = Raw(guarded.grpc)
        assert raw.call(echo(), (), path=INFER + query).reason != "OK"
        raw.close()
    assert api_key(guarded) not in guarded.stack.log.read_bytes()

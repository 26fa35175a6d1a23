"""Keys and tokens withdrawn, scoped and rotated while sidecars run: within a second, everywhere, streams included."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes
from typing import Any

import pytest

from audit import store as audit_store
from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import ISSUER, Parts
from sidecar.core.model import Secret
from sidecar.core.reasons import Reason
from sidecar.identity import keys, store
from sidecar.identity.keys import read_pepper
from sidecar.triton.methods import KSERVE
from tests.support.postgres import Server, query
from tests.support.sidecar import Bare, Launch, Sidecar, echo, launch, slow
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration


class Office:
    """The library that `warden keys`, `warden token` and the console share, on a sidecar's own database."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.engine = audit_store.connect(sidecar.parts.postgres_dsn, application="warden-test", pool=2)
        pepper = read_pepper((sidecar.stack.directory / "keys" / "pepper.key").read_bytes())
        assert isinstance(pepper, Secret)
        self.office = store.Office(pepper, "demo", token_bytes, lambda *_: None, "test")

    def __call__(self, act: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with self.engine.begin() as connection:
            return act(connection, self.office, *given, **named)

    def issue(self, tenant: str = "acme", **scope: Any) -> tuple[str, dict[str, str]]:
        """A new key's id, and headers with it."""
        made = self(store.issue, store.NewKey(tenant, "test", **scope), now())
        assert isinstance(made, store.Issued)
        return made.info.id, headers(made.key.reveal().decode())

    def revoke(self, key_id: str) -> None:
        assert isinstance(self(store.revoke, key_id, now()), store.KeyInfo)


def now() -> datetime:
    return datetime.now(UTC)


def headers(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


@contextmanager
def working(sidecar: Sidecar) -> Iterator[Office]:
    """Its connections are closed however the test ends: one left to the collector fails some later test."""
    office = Office(sidecar)
    try:
        yield office
    finally:
        office.engine.dispose()


@pytest.fixture
def office(sidecar: Sidecar) -> Iterator[Office]:
    with working(sidecar) as office:
        yield office


Offices = Callable[[Sidecar], Office]


@pytest.fixture
def office_of() -> Iterator[Offices]:
    with ExitStack() as stack:
        yield lambda sidecar: stack.enter_context(working(sidecar))


def reason(bare: Bare, given: dict[str, str], **options: Any) -> str:
    answer = bare.unary(echo(), given, **options)
    return "OK" if answer.code == "OK" else answer.told().reason


def becomes(bare: Bare, given: dict[str, str], wanted: str) -> None:
    eventually(lambda: reason(bare, given) == wanted, what=wanted)


class TestScopes:
    def test_methods(self, office: Office, bare: Bare) -> None:
        _, given = office.issue(methods=("ModelReady",))
        becomes(bare, given, Reason.METHOD_NOT_ALLOWED)
        assert bare.unary(b"\n\x04echo", given, path=KSERVE + "ModelReady").code == "OK"

    def test_regions(self, office: Office, bare: Bare) -> None:
        _, given = office.issue(regions=("us-east-1",))
        becomes(bare, given, Reason.RESIDENCY_PROCESSING)
        _, given = office.issue(regions=("us-east-1", "eu-west-1"))
        becomes(bare, given, "OK")

    def test_networks_are_those_of_the_real_peer(self, office: Office, bare: Bare) -> None:
        _, elsewhere = office.issue(networks=("10.0.0.0/8",))
        becomes(bare, elsewhere, Reason.POLICY_FORBIDS)
        assert reason(bare, {**elsewhere, "x-forwarded-for": "10.0.0.1"}) == Reason.POLICY_FORBIDS
        _, here = office.issue(networks=("127.0.0.0/8",))
        becomes(bare, here, "OK")
        assert reason(bare, {**here, "x-forwarded-for": "10.0.0.1"}) == "OK"

    def test_not_before(self, office: Office, bare: Bare) -> None:
        _, given = office.issue(not_before=now() + timedelta(hours=1))
        becomes(bare, given, Reason.TOKEN_NOT_YET_VALID)

    def test_expire(self, office: Office, bare: Bare) -> None:
        key_id, given = office.issue()
        becomes(bare, given, "OK")
        office(store.expire, key_id, now(), now())
        becomes(bare, given, Reason.KEY_EXPIRED)


class TestStreams:
    def test_a_revoked_key_ends_its_running_stream_and_no_other(
        self, sidecar: Sidecar, office: Office, bare: Bare
    ) -> None:
        key_id, given = office.issue()
        _, other = office.issue()
        becomes(bare, given, "OK")
        becomes(bare, other, "OK")
        mine = bare.stream([slow(2000, 10, id="mine")], given)
        theirs = bare.stream([slow(150, 10, id="theirs")], other)
        mine.next()
        theirs.next()
        began = time.monotonic()
        office.revoke(key_id)
        answer = mine.answer()
        took = time.monotonic() - began
        print(f"\n{sidecar.wire}: a running stream ended {took * 1e3:.0f} ms after its key was revoked")
        assert answer.told().reason == Reason.KEY_REVOKED
        assert took < 15  # the stream itself takes 20
        record = sidecar.record(f"{answer.call_id}/1")
        assert (record["outcome"], record["reason"]) == ("failed", Reason.KEY_REVOKED)
        assert record["output"]  # what had been delivered until then
        assert theirs.answer().code == "OK"
        sidecar.settles()

    def test_an_idle_stream_ends_too(self, office: Office, bare: Bare) -> None:
        key_id, given = office.issue()
        becomes(bare, given, "OK")
        more = threading.Event()

        def messages() -> Iterator[bytes]:
            yield slow(1, id="first")
            more.wait(30)

        stream = bare.stream(messages(), given)
        stream.next()
        office.revoke(key_id)
        assert stream.answer().told().reason == Reason.KEY_REVOKED
        more.set()

    def test_a_revoked_token_ends_its_stream_and_its_unary_call(
        self, sidecar: Sidecar, office: Office, bare: Bare
    ) -> None:
        token = sidecar.token("acme")
        jti = _jti(token)
        stream = bare.stream([slow(2000, 10, id="x")], headers(token))
        stream.next()
        assert office(store.deny_token, ISSUER, jti, now())
        assert stream.answer().told().reason == Reason.TOKEN_REVOKED
        becomes(bare, headers(token), Reason.TOKEN_REVOKED)
        assert reason(bare, headers(sidecar.token("acme"))) == "OK"

    def test_all_of_a_tenants_tokens_until_now(self, sidecar: Sidecar, office: Office, bare: Bare) -> None:
        old = headers(sidecar.token("small-kv", ago=10))
        assert reason(bare, old) == "OK"
        assert office(store.deny_tenant, "small-kv", now() - timedelta(seconds=5), now())
        becomes(bare, old, Reason.TOKEN_REVOKED)
        assert reason(bare, headers(sidecar.token("small-kv"))) == "OK"


def _jti(token: str) -> str:
    payload = token.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(payload + "=="))["jti"])


def test_rotation_under_load_refuses_nobody_until_the_grace_ends(sidecar: Sidecar, office: Office) -> None:
    """A client on the old secret and one on the new call on; then only the new one may."""
    key_id, old = office.issue()
    seen: dict[str, list[tuple[float, str, float]]] = {"old": [], "new": []}  # sent, what it was told, answered
    over = threading.Event()

    def client(name: str, given: dict[str, str]) -> None:
        with sidecar.bare() as bare:
            while not over.is_set():
                sent = time.time()
                seen[name].append((sent, reason(bare, given), time.time()))

    with sidecar.bare() as bare, ThreadPoolExecutor(2) as pool:
        becomes(bare, old, "OK")
        pool.submit(client, "old", old)
        grace = timedelta(seconds=3)
        rotated = office(store.rotate, key_id, grace, now())
        assert isinstance(rotated, store.Issued)
        ends = rotated.info.rotated_until
        assert ends is not None
        new = headers(rotated.key.reveal().decode())
        try:
            becomes(bare, new, "OK")
            pool.submit(client, "new", new)
            eventually(lambda: seen["old"][-1][1] == Reason.KEY_UNKNOWN, what="the old secret's end", within_s=60)
        finally:
            over.set()
    early = [found for _, found, answered in seen["old"] if answered < ends.timestamp()]
    assert set(early) == {"OK"}
    assert {found for _, found, _ in seen["new"]} == {"OK"}
    late = {found for sent, found, _ in seen["old"] if sent >= ends.timestamp() + 0.05}
    assert late <= {Reason.KEY_UNKNOWN}
    print(f"\n{sidecar.wire}: {len(early)} calls on the old secret in its grace, {len(seen['new'])} on the new: all OK")


# --- three sidecars, one database ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(
    bundle: Path, otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Sidecar]]:
    """Two on the production wire and one on the portable one; they trust a snapshot for 8 s without the database."""
    directory = tmp_path_factory.mktemp("three")
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    started: list[Sidecar] = []
    try:
        for number, wire in enumerate(("envoy", "envoy", "grpc")):
            section: dict[str, Any] = {"max_age": "8s"}
            if started:
                section["pepper_file"] = str(started[0].stack.directory / "keys" / "pepper.key")
            identity = {"keys": section, "revocations_max_age": "12s"}
            overrides = {"sidecar": {"name": f"pod-{number}"}, "identity": identity}
            started.append(launch(directory / str(number), wire, parts, bundle, overrides=overrides))
        yield started
    finally:
        for sidecar in started:
            sidecar.close()


def test_revocation_reaches_three_sidecars_within_a_second(three: list[Sidecar], office_of: Offices) -> None:
    """Measured from the command to the first refused call, and to the end of a running stream."""
    office = office_of(three[0])
    key_id, given = office.issue()
    bares = [Bare(sidecar.grpc) for sidecar in three]
    for bare in bares:
        becomes(bare, given, "OK")
    streams = [bare.stream([slow(2000, 10, id=str(n))], given) for n, bare in enumerate(bares)]
    for stream in streams:
        stream.next()
    slowest = max(_seconds(bare, given) for bare in bares for _ in range(10))  # of an ordinary call, on this machine
    reached: dict[str, float] = {}

    def watch(what: str, look: Callable[[], bool]) -> None:
        while not look():
            pass
        reached[what] = time.monotonic() - began

    began = time.monotonic()
    office.revoke(key_id)
    with ThreadPoolExecutor(6) as pool:
        for number, (bare, stream) in enumerate(zip(bares, streams, strict=True)):
            pool.submit(watch, f"call {number}", lambda bare=bare: reason(bare, given) == Reason.KEY_REVOKED)
            pool.submit(
                watch, f"stream {number}", lambda stream=stream: stream.answer().told().reason == Reason.KEY_REVOKED
            )
    office.engine.dispose()
    for bare in bares:
        bare.channel.close()
    print("\nrevocation reached:", ", ".join(f"{what} {took * 1e3:.0f} ms" for what, took in sorted(reached.items())))
    assert len(reached) == 6
    assert max(reached.values()) <= 1.0 + 10 * slowest


def _seconds(bare: Bare, given: dict[str, str]) -> float:
    began = time.monotonic()
    assert reason(bare, given) == "OK"
    return time.monotonic() - began


def test_without_postgres_they_go_on_with_what_they_know_and_not_for_ever(
    three: list[Sidecar], postgres: Server, office_of: Offices
) -> None:
    """Known keys go on, unknown ones UNAVAILABLE, and nobody once the bound is reached."""
    sidecar = three[0]
    office = office_of(sidecar)
    _, known = office.issue()
    unknown = headers(str(_other_key(sidecar)))
    with sidecar.bare() as bare:
        becomes(bare, known, "OK")
        assert reason(bare, unknown) == Reason.KEY_UNKNOWN
        office.engine.dispose()
        with outage(postgres, sidecar.parts.postgres_dsn):
            eventually(lambda: reason(bare, unknown) == Reason.KEYS_UNAVAILABLE, what="the outage told")
            answer = bare.unary(echo(), unknown)
            assert (answer.code, answer.told().retry is not None) == ("UNAVAILABLE", True)
            assert reason(bare, known) == "OK"
            eventually(lambda: reason(bare, known) == Reason.KEYS_UNAVAILABLE, what="the bound of 8 s", within_s=30)
            # Tokens end by themselves; for how long their revocations are believed has a bound of its own.
            eventually(
                lambda: reason(bare, headers(sidecar.token("acme"))) == Reason.KEYS_UNAVAILABLE,
                what="the bound of 12 s",
                within_s=30,
            )
        becomes(bare, known, "OK")
        assert reason(bare, unknown) == Reason.KEY_UNKNOWN


def _other_key(sidecar: Sidecar) -> str:
    return keys.generate("demo", token_bytes).text()


class outage:  # noqa: N801 — used as a statement
    """This one database cuts every connection and takes no new one, while the session's server serves other tests."""

    def __init__(self, postgres: Server, dsn: str) -> None:
        self._postgres = postgres
        self._name = query(dsn, "SELECT current_database()")[0][0]

    def __enter__(self) -> None:
        query(self._postgres.dsn(), f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        query(self._postgres.dsn(), kill, self._name)

    def __exit__(self, *_: object) -> None:
        query(self._postgres.dsn(), f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")


def test_a_pod_starts_while_the_database_is_away(own: Launch, postgres: Server, office_of: Offices) -> None:
    sidecar = own()
    office = office_of(sidecar)
    _, known = office.issue()
    with sidecar.bare() as bare:
        becomes(bare, known, "OK")
    office.engine.dispose()
    snapshot = sidecar.stack.directory / "journal" / "identity.snapshot"
    before = snapshot.stat().st_mtime_ns if snapshot.exists() else 0
    eventually(lambda: snapshot.exists() and snapshot.stat().st_mtime_ns != before, what="a snapshot on disk")
    with outage(postgres, sidecar.parts.postgres_dsn):
        sidecar.stack.stop_warden()
        sidecar.stack.start_warden()
        with sidecar.bare() as bare:
            assert reason(bare, known) == "OK"
            assert reason(bare, headers(sidecar.token("acme"))) == "OK"
            assert reason(bare, headers(_other_key(sidecar))) == Reason.KEYS_UNAVAILABLE


def test_at_most_two_connections_a_pod(sidecar: Sidecar) -> None:
    """The keys' one and the shipper's one."""
    count = "SELECT application_name, count(*) FROM pg_stat_activity WHERE datname = current_database() GROUP BY 1"
    open_now = dict(query(sidecar.parts.postgres_dsn, count))
    assert open_now["warden-keys"] == 1
    assert sum(n for name, n in open_now.items() if name in {"warden-keys", "warden-ship"}) <= 2

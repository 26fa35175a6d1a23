"""A bundle replaced under load, on both wires: a record's digest explains its verdict; a broken one changes nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from audit.search import LIMIT
from policies.bundle import Bundle, load
from policies.explain import Asked, Explanation, explain
from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.bundle import write_bundle
from tests.support.postgres import Server
from tests.support.sidecar import Bare, Sidecar, echo, launch, slow
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

TURNS = 2
THREADS = 3
PACE = 0.01  # seconds between two calls of a thread: some thousand calls in all, and each is judged
# In the one bundle `two` may not call echo, in the other `acme` may not call slow.
RULES = (
    '@id("not-echo") forbid (principal in Tenant::"two", action, resource == Model::"echo");',
    '@id("not-slow") forbid (principal in Tenant::"acme", action, resource == Model::"slow");',
)
BROKEN = '@id("broken") forbid (principal in Tenant::"nobody-known", action, resource);'
ASKED = (("two", "echo"), ("acme", "slow"), ("acme", "echo"))


def put(path: Path, text: str) -> None:
    """As one change: no reader sees half of it."""
    written = path.with_name(f".{path.name}")
    written.write_text(text)
    written.replace(path)


class Callers:
    """Threads that ask the same few questions until they are stopped; ``told``: call id → what was asked."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar, self._done = sidecar, threading.Event()
        self.told: dict[str, tuple[str, str, bool]] = {}
        self._pool = ThreadPoolExecutor(THREADS)
        self._working = [self._pool.submit(self._work) for _ in range(THREADS)]

    def stop(self) -> None:
        self._done.set()
        for working in self._working:
            working.result()
        self._pool.shutdown()

    def moves(self, calls: int = 30) -> None:
        """Until so many more have been answered."""
        least = len(self.told) + calls
        eventually(lambda: len(self.told) >= least or self._done.is_set(), what="calls answered")

    def _work(self) -> None:
        headers = {tenant: self._sidecar.headers(tenant) for tenant, _ in ASKED}
        with self._sidecar.bare() as bare:
            for tenant, model in itertools.cycle(ASKED):
                if self._done.is_set():
                    return
                self._done.wait(PACE)
                call_id, answered = ask(bare, model, headers[tenant])
                self.told[call_id] = (tenant, model, answered)


def ask(bare: Bare, model: str, headers: dict[str, str]) -> tuple[str, bool]:
    """The call's id, and whether the model answered."""
    if model == "echo":
        answer = bare.unary(echo(), headers)
        assert answer.code in ("OK", "PERMISSION_DENIED"), answer
        return answer.call_id, answer.code == "OK"
    stream = bare.stream([slow(2)], headers)
    responses = list(stream)
    return f"{stream.answer().call_id}/1", not any(each.error_message for each in responses)


@pytest.fixture
def reloading(
    wire: str, otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path: Path
) -> Iterator[tuple[Sidecar, Path]]:
    bundle = write_bundle(tmp_path / "policy")
    put(bundle / "access" / "turn.cedar", RULES[0])
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    sidecar = launch(tmp_path / wire, wire, parts, bundle)
    yield sidecar, sidecar.stack.bundle
    sidecar.close()


def test_each_record_is_explained_by_the_bundle_that_it_names(reloading: tuple[Sidecar, Path]) -> None:
    sidecar, directory = reloading
    rule = directory / "access" / "turn.cedar"
    callers = Callers(sidecar)
    bundles = {bundle.digest: bundle for bundle in [loaded(directory)]}
    try:
        for turn in range(1, TURNS + 1):
            callers.moves()
            in_force = sidecar.ready()["bundle"]["detail"].partition(",")[0]
            assert in_force in bundles
            put(rule, BROKEN)
            told = eventually(lambda: refused(sidecar), what="a refused bundle", within_s=60)
            assert "access/turn.cedar:1:" in told
            assert told.startswith(in_force), "it changes nothing"
            callers.moves()
            put(rule, RULES[turn % 2])
            bundle = loaded(directory)
            bundles[bundle.digest] = bundle
            eventually(partial(decides, sidecar, bundle), what="the other bundle in force", within_s=60)
        callers.moves()
    finally:
        callers.stop()
    records = {record["call_id"]: record for record in shipped(sidecar, set(callers.told))}
    assert len(bundles) == 2
    assert {record["bundle"] for record in records.values()} == set(bundles)
    for call_id, (tenant, model, answered) in callers.told.items():
        record = records[call_id]
        asked = Asked(tenant, model, "eu-west-1", principal=record["principal"], method=record["method"])
        explained = explain(bundles[record["bundle"]], asked)
        assert isinstance(explained, Explanation)
        assert (record["reason"], record["rule"]) == (explained.reason, explained.verdict.rule), (tenant, model)
        assert answered == (explained.reason is None)
    assert {answered for _, _, answered in callers.told.values()} == {True, False}
    assert sidecar.metric("warden_bundle_loads_total", result="failure") == TURNS


def loaded(directory: Path) -> Bundle:
    found = load(directory)
    assert isinstance(found, Bundle), found
    return found


def decides(sidecar: Sidecar, bundle: Bundle) -> bool:
    told: str = sidecar.ready()["bundle"]["detail"]
    return told.startswith(f"{bundle.digest},")


def refused(sidecar: Sidecar) -> str:
    told: str = sidecar.ready()["bundle"]["detail"]
    return told if "what is there now is refused" in told else ""


def shipped(sidecar: Sidecar, calls: set[str]) -> list[dict[str, object]]:
    def all_of_them() -> list[dict[str, object]]:
        found = [
            each for tenant in ("two", "acme") for each in sidecar.search(tenant=tenant, reveal=False, limit=LIMIT)
        ]
        return found if calls <= {record["call_id"] for record in found} else []

    return eventually(all_of_them, what="every record", within_s=60)

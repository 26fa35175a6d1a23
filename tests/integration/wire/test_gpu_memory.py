"""What Triton's models really hold, seen from their side: live pools, slots over crashes and cancels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.crowd import DEAF, Crowd, crash_loop, engines, joining, saying, write_crowd_bundle
from tests.support.postgres import Server
from tests.support.sidecar import Bare, Sidecar, launch
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
CALL = 4 * 16 * 1024  # bytes: 2 tokens of prompt and 48 to come are four blocks of 16


@pytest.fixture(scope="module")
def triton_of_its_own(otlp: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with engines(tmp_path_factory.mktemp("engines"), otlp) as found:
        yield found


@contextmanager
def serving(
    directory: Path, wire: str, triton: Triton, otlp: OtlpReceiver, postgres: Server, bundle: Path
) -> Iterator[Sidecar]:
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    sidecar = launch(directory / "sidecar", wire, parts, bundle)
    try:
        yield sidecar
    finally:
        sidecar.close()


def everybody_leaves(triton: Triton) -> None:
    """What `deaf_crowd` is at work on ends, past the sidecar."""
    with Bare(triton.grpc) as direct:
        assert direct.stream([joining(0, 0, deaf=True)], {}).answer().code == "OK"
    eventually(lambda: triton.metric("crowd_now", model=DEAF) == 0, what="an idle model", within_s=30)


def nothing_is_held(sidecar: Sidecar, triton: Triton) -> None:
    """Neither at the models, nor, soon after, here."""
    for model in ("crowd", DEAF):
        eventually(lambda model=model: triton.metric("crowd_now", model=model) == 0, what="an idle model", within_s=30)  # type: ignore[misc]  # bound now
    sidecar.settles()
    eventually(lambda: sidecar.metric("warden_running_on_calls") == 0, what="nothing that runs on", within_s=30)
    assert sidecar.metric("warden_pool_used_ratio") == 0
    assert sidecar.metric("warden_waiting_calls") == 0
    assert sidecar.metric("warden_internal_errors_total") == 0


# --- live pools ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(
    triton_of_its_own: Triton, otlp: OtlpReceiver, postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp("live")
    pool = {"kv_memory": "live", "kv_fallback": 3 * CALL}
    model = {"pool": pool, "on_cancel": {"runs_on": "10m"}}
    bundle = write_crowd_bundle(directory / "bundle", model, {})
    with serving(directory, "envoy", triton_of_its_own, otlp, postgres, bundle) as found:
        yield found


def say(bare: Bare, headers: dict[str, str], **blocks: object) -> None:
    told: dict[str, Any] = {
        BLOCKS: [({"model": "crowd", "version": "1", "kv_cache_block_type": kind}, n) for kind, n in blocks.items()],
    }
    assert bare.unary(saying(told), headers).code == "OK"


def pool(sidecar: Sidecar) -> str:
    return str(sidecar.stack.readyz()["checks"].get("pool crowd", {}).get("detail"))


def fits(bare: Bare, headers: dict[str, str]) -> int:
    """How many calls are let in at once; they end by themselves."""
    streams = []
    while True:
        stream = bare.stream([joining(30, 50)], headers)
        streams.append(stream)
        first = stream.next()
        if first.error_message:
            assert first.error_message.startswith("[MEMORY_KV]"), first.error_message
            break
    for stream in streams:
        stream.answer()
    return len(streams) - 1


def test_the_engines_word_is_taken_while_it_can_be_true(live: Sidecar, bare_of: Bare) -> None:
    sidecar, bare, headers = live, bare_of, live.headers()
    eventually(lambda: "tells no block count" in pool(sidecar), what="the bundle's number", within_s=30)
    assert sidecar.metric("warden_pool_live", model="crowd") == 0
    assert fits(bare, headers) == 3
    say(bare, headers, max=8, used=0, free=8, tokens_per=16)
    eventually(lambda: sidecar.metric("warden_pool_live", model="crowd") == 1, what="a live pool", within_s=30)
    assert pool(sidecar) == f"live: 0 of {2 * CALL} bytes"
    assert fits(bare, headers) == 2
    say(bare, headers, max=8, used=4, free=4, tokens_per=16)
    eventually(lambda: "nobody's" in pool(sidecar), what="a stranger's blocks", within_s=30)
    assert fits(bare, headers) == 1
    eventually(lambda: sidecar.metric("warden_pool_drift_ratio", model="crowd") == 0.5, what="drift", within_s=30)
    for lie in (
        {"max": 8, "used": 9, "free": 0, "tokens_per": 16},
        {"max": -8, "used": 0, "free": 0, "tokens_per": 16},
        {"max": 8, "used": 1, "free": 1, "tokens_per": 16},
        {"max": "NaN", "used": 0, "free": 8, "tokens_per": 16},
    ):
        say(bare, headers, max=8, used=0, free=8, tokens_per=16)
        eventually(lambda: pool(sidecar).startswith("live: 0"), what="a live pool again", within_s=30)
        say(bare, headers, **lie)
        eventually(lambda: pool(sidecar).startswith("as the bundle states it"), what=f"{lie}", within_s=30)
    assert fits(bare, headers) == 3


def test_what_runs_on_is_over_as_soon_as_its_engine_says_so(
    live: Sidecar, bare_of: Bare, triton_of_its_own: Triton
) -> None:
    """Long before the ten minutes that the bundle grants it, and not before."""
    headers = live.headers()
    stream = bare_of.stream([joining(100_000, 50, deaf=True)], headers)
    stream.next()
    stream.call.cancel()
    eventually(lambda: live.metric("warden_running_on_calls") == 1, what="a call that runs on")
    eventually(lambda: (live.metric("warden_upstream_metrics_age_seconds") or 9) < 1, what="a look", within_s=30)
    assert triton_of_its_own.metric("crowd_now", model=DEAF) == 1
    assert live.metric("warden_running_on_calls") == 1
    everybody_leaves(triton_of_its_own)
    eventually(lambda: live.metric("warden_running_on_calls") == 0, what="its memory again", within_s=30)
    live.settles()


@pytest.fixture
def bare_of(live: Sidecar) -> Iterator[Bare]:
    with live.bare() as bare:
        yield bare


# --- crashes and cancels ---------------------------------------------------------------------------------------------


def test_neither_cancels_nor_a_crash_gain_anybody_a_slot(
    wire: str, triton_of_its_own: Triton, otlp: OtlpReceiver, postgres: Server, tmp_path: Path
) -> None:
    """Models are never at work on more than the limit, whoever let them in before; in the end nothing is held."""
    triton, slots = triton_of_its_own, 4
    limits = {"concurrency": slots, "on_limit": "queue 2s"}
    model = {"on_cancel": {"stops_within": "1s"}, "pool": {"concurrency": 8, "kv_memory": "1MiB"}}
    bundle = write_crowd_bundle(tmp_path / "bundle", model, limits)
    with serving(tmp_path, wire, triton, otlp, postgres, bundle) as sidecar:
        cancels = Crowd(sidecar.grpc, sidecar.headers(), joining(100, 20), workers=16, cancels=200)
        cancels.run()
        assert cancels.cancelled >= 200
        nothing_is_held(sidecar, triton)
        crowd = Crowd(sidecar.grpc, sidecar.headers(), joining(100_000, 100, deaf=True), workers=16)
        crash_loop(sidecar, triton, crowd, crashes=1, slots=slots)
        nothing_is_held(sidecar, triton)
    for name in ("crowd", DEAF):
        assert 1 <= triton.metric("crowd_peak", model=name) <= slots  # a busy machine may never fill them

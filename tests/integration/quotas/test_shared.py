"""Three whole sidecars and a real Redis: one limit for all, also while Redis is killed; a killed pod's slots return."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.postgres import Server
from tests.support.redis import RedisServer
from tests.support.shared import LEASES, PODS, RATE, drive, pods, share, shared_redis
from tests.support.sidecar import Bare, Launch, Sidecar, echo, hold
from tests.support.stack import Triton, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]  # three sidecars start one after the other


@pytest.fixture
def parts(otlp: OtlpReceiver, triton: Triton, postgres: Server) -> Parts:
    return Parts(otlp, triton.running.addresses, postgres.create_database())


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = shared_redis(tmp_path)
    yield server
    server.stop()


@pytest.mark.parametrize("wire", ["envoy"], indirect=True)  # tests/long has both wires, and Redis hung too
def test_one_limit_for_three_sidecars_while_redis_is_killed_and_a_pod_too(
    own: Launch, parts: Parts, redis: RedisServer, tmp_path: Path
) -> None:
    with pods(own, parts, redis) as sidecars:
        seen = drive(tmp_path, sidecars, 6.0, [(2.0, redis.kill), (4.0, redis.start)])
        worst = seen.most_above()
        admitted = seen.let_in
        print(f"\n{admitted} admitted in 6 s; most above rate x window + burst: {worst:.1f} (bound {LEASES:.0f})")
        assert not seen.other
        assert worst <= LEASES
        assert admitted >= RATE * 6 // 3  # a busy machine sends less than it should
        eventually(lambda: all(share(each) == PODS for each in sidecars), what="all to be back", within_s=30)
        first, second, _ = sidecars
        with first.bare() as one, second.bare() as two:
            running = fill(first, one, 6)
            eventually(lambda: not runs(second, two), what="the limit, at another pod", within_s=30)
            first.stack.stop_warden(signal.SIGKILL)
            eventually(lambda: runs(second, two), what="the killed pod's slots", within_s=30)
            assert len(running) >= 6
        held_back = "3 pods share; 1 of them not heard of, whose part is held back"
        eventually(lambda: second.ready()["redis"]["detail"] == held_back, what="it to be missed", within_s=30)
        first.stack.start_warden()
        eventually(lambda: share(second) == PODS, what="the one that takes its place to say so", within_s=60)
        assert first.stack.stop_warden() == 0
        eventually(lambda: share(second) == PODS - 1, what="who ends in order to take its leave", within_s=30)


def fill(sidecar: Sidecar, bare: Bare, slots: int) -> list[object]:
    """Calls that run until so many hold a slot; those that find none are refused."""
    running: list[object] = []

    def filled() -> bool:
        if sidecar.metric("warden_in_flight_calls", tenant="six-slots") >= slots:
            return True
        running.append(bare.begin(hold(60_000), sidecar.headers("six-slots")))
        return False

    eventually(filled, what="every slot in use", within_s=30)
    return running


def runs(sidecar: Sidecar, bare: Bare) -> bool:
    """Whether a call is let in: of another model than those that hold, behind which it would wait in Triton."""
    return bare.unary(echo(), sidecar.headers("six-slots")).code == "OK"

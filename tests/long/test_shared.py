"""Three whole sidecars and a real Redis for 30 s over one limit: well, hung (SIGSTOP) and killed, on both wires.

``pytest -m long -s tests/long/test_shared.py`` prints what was let in, and how long answers took meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.postgres import Server
from tests.support.shared import LEASES, PODS, RATE, drive, pods, share, shared_redis
from tests.support.sidecar import Launch
from tests.support.stack import Triton, eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
SECONDS = 30.0
ILL = (10.0, 20.0)  # seconds


def test_thirty_seconds_over_the_limit_of_three_sidecars(
    own: Launch, otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path: Path
) -> None:
    redis = shared_redis(tmp_path)
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    ends = {"well": None, "hung": (redis.hang, redis.go_on), "killed": (redis.kill, redis.start)}
    try:
        with pods(own, parts, redis) as sidecars:
            for ill, acts in ends.items():
                at = [] if acts is None else list(zip(ILL, acts, strict=True))
                seen = drive(sidecars, SECONDS, at)
                worst, admitted, span = seen.most_above(), sum(seen.ok), max(seen.done)
                print(
                    f"\n{ill}: {len(seen.ok)} calls, {admitted} let in over {span:.1f} s ({admitted / span:.1f}/s; "
                    f"ill {seen.between(*ILL) / 10:.1f}/s, the second after {seen.between(ILL[1], ILL[1] + 1)}); "
                    f"most above rate x window + burst: {worst:.1f} (bound {LEASES:.0f}); p99 of all answers before "
                    f"{seen.p99_ms(0, ILL[0]):.1f} ms, while ill {seen.p99_ms(*ILL):.1f} ms, "
                    f"after {seen.p99_ms(ILL[1], SECONDS):.1f} ms",
                    flush=True,
                )
                assert not seen.other
                assert worst <= LEASES
                assert admitted >= 0.8 * RATE * SECONDS  # how much at most is what ``worst`` says
                eventually(lambda: all(share(each) == PODS for each in sidecars), what="all back", within_s=30)
    finally:
        redis.stop()

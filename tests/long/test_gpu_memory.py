"""10,000 cancels at random moments, and a crash loop amid 64 streams: nothing stays held, no limit is passed.

`pytest -m long -s tests/long/test_gpu_memory.py` prints what was measured. The models themselves count what is at work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from tests.integration.wire.test_gpu_memory import nothing_is_held, serving
from tests.support.crowd import DEAF, Crowd, crash_loop, engines, joining, write_crowd_bundle
from tests.support.postgres import Server
from tests.support.stack import Triton

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(2400)]
CANCELS, CRASHES, STREAMS, SLOTS = 10_000, 20, 64, 16


@pytest.fixture
def counting(otlp: OtlpReceiver, tmp_path: Path) -> Iterator[Triton]:
    with engines(tmp_path / "engines", otlp) as found:
        yield found


def test_ten_thousand_cancels(
    wire: str, counting: Triton, otlp: OtlpReceiver, postgres: Server, tmp_path: Path
) -> None:
    """Some while they wait for a slot, some before the first token, most amid the stream."""
    limits = {"concurrency": SLOTS, "on_limit": "queue 2s"}
    model = {"on_cancel": {"stops_within": "1s"}, "pool": {"concurrency": 2 * SLOTS, "kv_memory": "4MiB"}}
    bundle = write_crowd_bundle(tmp_path / "bundle", model, limits)
    with serving(tmp_path, wire, counting, otlp, postgres, bundle) as sidecar:
        crowd = Crowd(
            sidecar.grpc, sidecar.headers(), joining(1000, 20), workers=STREAMS // 2, cancels=CANCELS, longest_s=2.0
        )
        began = time.monotonic()
        crowd.run()
        took = time.monotonic() - began
        nothing_is_held(sidecar, counting)
    peak, ended = (counting.metric(name, model="crowd") for name in ("crowd_peak", "crowd_ended"))
    print(
        f"\n{wire}: {crowd.cancelled} cancels in {took:.0f} s, {ended:.0f} of them at the model; "
        f"at most {peak:.0f} at work there, limit {SLOTS}; {dict(crowd.ended)}"
    )
    assert ended > CANCELS / 10, "the machine is too busy: most clients left before they were let in"
    assert SLOTS / 2 < peak <= SLOTS  # a busy machine may never fill them all


def test_a_crash_loop(wire: str, counting: Triton, otlp: OtlpReceiver, postgres: Server, tmp_path: Path) -> None:
    """kill -9, twenty times; the model heeds no cancel, so each start finds it at work on what was let in before."""
    bundle = write_crowd_bundle(tmp_path / "bundle", {}, {"concurrency": SLOTS})
    with serving(tmp_path, wire, counting, otlp, postgres, bundle) as sidecar:
        crowd = Crowd(sidecar.grpc, sidecar.headers(), joining(100_000, 200, deaf=True), workers=STREAMS)
        began = time.monotonic()
        crash_loop(sidecar, counting, crowd, crashes=CRASHES, slots=SLOTS)
        took = time.monotonic() - began
        nothing_is_held(sidecar, counting)
    peak, ended = (counting.metric(name, model=DEAF) for name in ("crowd_peak", "crowd_ended"))
    print(
        f"\n{wire}: {CRASHES} crashes in {took:.0f} s amid {STREAMS} streams; at most {peak:.0f} at work at the model, "
        f"limit {SLOTS}; {ended:.0f} streams ran to their end there; {dict(crowd.ended)}"
    )
    assert peak == SLOTS

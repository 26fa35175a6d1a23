"""Ids: UUIDv7 as RFC 9562 lays it out, W3C trace and span ids, and a sampling ratio."""

from __future__ import annotations

import threading
import uuid

import pytest

from sidecar.core.model import Instant
from sidecar.runtime import clock
from sidecar.runtime.ids import RandomIds, uuid7


def test_a_uuid7_is_laid_out_as_its_rfc_says() -> None:
    # RFC 9562, appendix A.6: unix_ts_ms 0x017F22E279B0, rand_a 0xCC3, rand_b 0x18C4DC0C0C07398F.
    randomness = (0xCC3 << 64 | 0x18C4DC0C0C07398F).to_bytes(10, "big")
    assert uuid7(0x017F22E279B0 * 1_000_000, randomness) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@pytest.mark.parametrize("randomness", [b"\x00" * 10, b"\xff" * 10])
def test_randomness_never_touches_version_variant_or_time(randomness: bytes) -> None:
    made = uuid.UUID(uuid7(1_700_000_000_000_999_999, randomness))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_700_000_000_000


def test_ids_are_many_and_never_the_same() -> None:
    ids, at = RandomIds(1.0), Instant(1_700_000_000_000_000_000, 0)
    assert len({ids.call(at) for _ in range(3000)}) == 3000
    assert len({ids.trace() for _ in range(3000)}) == 3000
    assert len({ids.span() for _ in range(3000)}) == 3000
    assert (len(ids.trace()), len(ids.span())) == (32, 16)


def test_two_threads_never_take_the_same_bytes() -> None:
    taking, go_on = threading.Event(), threading.Event()

    class Slow(bytes):
        """A pool that is left in the middle of being taken from."""

        def __getitem__(self, part: object) -> bytes:
            if not taking.is_set():
                taking.set()
                assert go_on.wait(5)
            return super().__getitem__(part)  # type: ignore[index,return-value]  # always a slice here

    ids, made = RandomIds(1.0), list[str]()
    ids._pool = Slow(range(256))
    threads = [threading.Thread(target=lambda: made.append(ids.trace())) for _ in range(2)]
    threads[0].start()
    assert taking.wait(5)
    threads[1].start()
    threads[1].join(0.1)  # long enough to take the same, if it could
    go_on.set()
    for thread in threads:
        thread.join(5)
    assert len(set(made)) == 2


def test_ids_sort_by_their_time() -> None:
    ids = RandomIds(1.0)
    made = [ids.call(Instant(ms * 1_000_000, 0)) for ms in range(1_700_000_000_000, 1_700_000_000_100)]
    assert made == sorted(made)


@pytest.mark.parametrize(("ratio", "low", "high"), [(0.0, 0, 0), (1.0, 2000, 2000), (0.5, 800, 1200)])
def test_about_as_many_traces_are_sampled_as_asked(ratio: float, low: int, high: int) -> None:
    ids = RandomIds(ratio)
    assert low <= sum(ids.sampled() for _ in range(2000)) <= high


def test_the_clock_reads_both_clocks() -> None:
    first, second = clock.now(), clock.now()
    assert second.mono_ns >= first.mono_ns
    assert first.wall_ns > 1_700_000_000 * 10**9

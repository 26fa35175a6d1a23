"""How long a foreign model's refusal takes against an absent one's: whether a clock tells them apart.

`pytest -m long -s tests/long/test_existence.py` prints what was measured, by wire and RPC.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left, bisect_right
from statistics import median

import pytest

from sidecar.triton.methods import KSERVE
from tests.support.kserve import packed, request
from tests.support.sidecar import Bare, Launch

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]
CALLS = 3000
# `hold` is Triton's and another tenant's; nobody has the other two, of which one is compared with the other to see how
# far two of a kind differ on this machine.
FOREIGN, ABSENT, CONTROL = "hold", "held", "helm"
# P(a call of one takes longer than a call of the other): 0.5 where nothing tells them apart. With 3,000 of each its
# standard error is 0.0075.
WITHIN = 0.04


def slower(these: list[float], those: list[float]) -> float:
    """The Mann–Whitney U over n·m: how often one of ``these`` takes longer than one of ``those``."""
    ordered = sorted(those)
    wins = sum((bisect_left(ordered, each) + bisect_right(ordered, each)) / 2 for each in these)
    return wins / (len(these) * len(those))


def message_of(method: str, model: str) -> bytes:
    if method == "ModelInfer":
        return bytes(request(model, ("text", "BYTES", [1], packed(b"hi"))).SerializeToString())
    return b"\x0a" + bytes([len(model)]) + model.encode()


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ModelReady", "ModelStatistics"])
def test_a_clock_does_not_tell_foreign_from_absent(own: Launch, wire: str, method: str) -> None:
    sidecar = own()
    headers = sidecar.headers("neighbour")
    took: dict[str, list[float]] = {FOREIGN: [], ABSENT: [], CONTROL: []}
    order = [name for name in took for _ in range(CALLS)]
    random.Random(method).shuffle(order)
    with Bare(sidecar.grpc) as bare:
        for n, name in enumerate(order[:300] + order):
            began = time.perf_counter()
            answer = bare.unary(message_of(method, name), headers, path=KSERVE + method)
            if n >= 300:  # the first warm it up
                took[name].append(time.perf_counter() - began)
            assert answer.code == "NOT_FOUND"
    told, noise = slower(took[FOREIGN], took[ABSENT]), slower(took[CONTROL], took[ABSENT])
    print(
        f"\n{wire} {method}: foreign {median(took[FOREIGN]) * 1e6:.0f} µs, absent {median(took[ABSENT]) * 1e6:.0f} µs;"
        f" P(foreign slower) {told:.3f}, of two absent ones {noise:.3f}"
    )
    assert abs(told - 0.5) < WITHIN

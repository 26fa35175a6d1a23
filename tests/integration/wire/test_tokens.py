"""Token budgets on both wires: 50 streams at once never overshoot one, and no way of asking gets round it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.kserve import chat, packed
from tests.support.sidecar import Bare, Sidecar, said, slow

pytestmark = pytest.mark.integration
BUDGET = 1500  # a minute
STREAMS = 50
ASKED = 100  # tokens of each: all together more than the budget gives in two minutes


def test_fifty_streams_that_outgrow_what_they_reserved_never_overshoot(sidecar: Sidecar) -> None:
    """Each reserves its model's default and goes on to 100; the backend sends no counts, so texts are counted."""
    headers = sidecar.headers("many-tokens")
    began = time.monotonic()

    def run(_: int) -> tuple[int, list[str]]:
        with sidecar.bare() as bare:
            responses = list(bare.stream(iter([slow(ASKED, 5)]), headers, timeout=150))
        return sum(bool(said(each)) for each in responses), [
            each.error_message for each in responses if each.error_message
        ]

    with ThreadPoolExecutor(STREAMS) as pool:
        done = list(pool.map(run, range(STREAMS)))
    took = time.monotonic() - began
    delivered = sum(texts for texts, _ in done)
    print(f"\n{delivered} tokens delivered of {STREAMS * ASKED} asked for, {BUDGET} a minute, in {took:.1f} s")
    assert delivered <= BUDGET * (1 + took / 60)
    assert delivered > BUDGET // 3  # and the budget is used
    cut = [errors for _, errors in done if errors]
    assert cut
    assert all("[RATE_TOKENS]" in error for errors in cut for error in errors)
    sidecar.settles()


HOSTILE = [
    '{"max_tokens": -1}', '{"max_tokens": 0}', '{"max_tokens": 1e30}', '{"max_tokens": 9223372036854775808}',
    '{"max_tokens": 1000000000}', '{"max_tokens": 5.5}', '{"max_tokens": "5"}', '{"max_tokens": true}',
    '{"max_tokens": [5]}', '{"max_tokens": {"a": 5}}', '{"max_tokens": NaN}', '{"max_tokens": Infinity}',
    '{"max_tokens": 1, "max_tokens": 4096}', '{"max_tokens": 1, "max_\\u0074okens": 4096}', '{"n": -1}', '{"n": 1e9}',
    '{"best_of": 0}', '[{"max_tokens": 5}]', '"max_tokens"', '{"max_tokens": 5}}', '{"max_tokens": 5', "",
]  # fmt: skip


def test_no_spelling_of_too_many_tokens_gets_past(sidecar: Sidecar, bare: Bare) -> None:
    headers = sidecar.headers("acme")
    before = sidecar.metric("warden_calls_total", tenant="acme", action="infer", outcome="completed")
    for text in HOSTILE:
        message = chat(b"hi", stream=False)
        message.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(packed(text.encode()))
        answer = bare.unary(message.SerializeToString(), headers)
        told = answer.told()
        assert told.reason in {"REQUEST_MALFORMED", "REQUEST_AMBIGUOUS", "PARAMETER_NOT_ALLOWED"}, (text, told)
    twice = chat(b"hi", stream=False, max_tokens=1)
    twice.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    twice.raw_input_contents.append(packed(json.dumps({"max_tokens": 4096}).encode()))
    assert bare.unary(twice.SerializeToString(), headers).told().reason.startswith("REQUEST_")
    after = sidecar.metric("warden_calls_total", tenant="acme", action="infer", outcome="completed")
    assert after == before
    assert sidecar.held()["warden_in_flight_calls"] == 0

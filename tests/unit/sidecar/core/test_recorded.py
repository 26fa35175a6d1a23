"""What a call delivered and used: counted once, by the backend's own numbers where it gives any."""

from __future__ import annotations

import hashlib

import pytest

from policies.document import GuardDoc
from policies.guards import compile_guards
from sidecar.core.model import TOKENS_MAX, ResponseFacts
from sidecar.core.recorded import OUTPUT_LAG_BYTES, Output
from tests.support.core import AT, FakePorts, Stage, later


@pytest.mark.parametrize(
    ("responses", "tokens", "exact"),
    [
        ([ResponseFacts(texts=(b"a",)), ResponseFacts(texts=(b"b", b"c"))], 3, False),
        ([ResponseFacts(texts=(b"",))], 0, False),
        ([ResponseFacts(texts=(b"x" * 4001,))], 1001, False),
        ([ResponseFacts(texts=(b"x" * 9,)), ResponseFacts(texts=(b"y" * 4,))], 4, False),
        ([ResponseFacts(texts=(b"x" * 4000,)), ResponseFacts(output_tokens=7)], 7, True),
        ([ResponseFacts(texts=(b"a",)), ResponseFacts(texts=(b"b",), output_tokens=5)], 5, True),
        ([ResponseFacts(output_tokens=2), ResponseFacts(output_tokens=3)], 5, True),
        ([ResponseFacts(output_tokens=2), ResponseFacts(texts=(b"a",))], 2, True),
        ([ResponseFacts(output_tokens=TOKENS_MAX)] * 3, TOKENS_MAX, True),
    ],
)
def test_a_backends_token_counts_replace_the_estimate(responses: list[ResponseFacts], tokens: int, exact: bool) -> None:
    recorded = Stage().open()
    for facts in responses:
        recorded.count(facts, AT)
    usage = recorded.usage(AT)
    assert (usage.output_tokens, usage.output_exact) == (tokens, exact)


def test_a_backends_prompt_count_replaces_the_estimate() -> None:
    recorded = Stage().open()
    recorded.count(ResponseFacts(input_tokens=11), AT)
    assert (recorded.usage(AT).input_tokens, recorded.usage(AT).input_exact) == (11, True)


def test_what_is_behind_is_taken_once_with_its_place() -> None:
    recorded = Stage().open()
    assert not recorded.lag(later(10_000))  # nothing delivered, so nothing behind
    recorded.count(ResponseFacts(texts=(b"ab", b"", b"c")), later(1))
    assert not recorded.lag(later(49))
    assert recorded.lag(later(50))
    assert recorded.take(later(50)) == Output(0, (b"ab", b"c"))
    assert recorded.take(later(51)) == Output(3, ())
    recorded.count(ResponseFacts(texts=(b"d" * OUTPUT_LAG_BYTES,)), later(51))
    assert recorded.lag(later(51))
    assert recorded.take(later(52)).offset == 3
    assert recorded.output_sha256 == hashlib.sha256(b"abc" + b"d" * OUTPUT_LAG_BYTES).digest()
    assert recorded.delivered_bytes == 3 + OUTPUT_LAG_BYTES


def test_times_are_counted_from_the_calls_arrival() -> None:
    recorded = Stage().open()
    for ms in (3, 9):
        recorded.count(ResponseFacts(nbytes=10, model_version="2"), later(ms))
    usage = recorded.usage(later(12))
    assert (usage.first_response_ns, usage.duration_ns) == (3_000_000, 12_000_000)
    assert (usage.responses, usage.response_bytes, usage.request_bytes, usage.model_version) == (2, 20, 7, "2")


def test_what_an_ending_keeps_holds_nothing_of_the_output() -> None:
    guards = compile_guards([GuardDoc.model_validate({"id": "w", "on": "output", "patterns": ["x"], "then": "deny"})])
    recorded = Stage(FakePorts(guards=guards)).open()
    assert recorded.holdback is not None
    kept = recorded.without_content()
    assert (kept.watch, kept.holdback) == (None, None)
    assert recorded.watch is not None, "the call itself goes on"

"""Guards on content, on both wires: a prompt is refused, an output cut before its forbidden piece is sent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.bundle import write_bundle
from tests.support.postgres import Server
from tests.support.sidecar import Sidecar, launch, said, slow
from tests.support.stack import Triton

pytestmark = pytest.mark.integration

GUARDS = [
    {"id": "no-cards", "on": "prompt", "classes": ["card"], "then": "deny"},
    {"id": "curious", "on": "prompt", "patterns": ["(?i)salary"], "then": "flag"},
    {"id": "on-trial", "on": "prompt", "patterns": ["trial"], "then": "deny", "shadow": True},
    {"id": "not-that", "on": "output", "patterns": ["word4 word5"], "then": "deny"},
    {"id": "noted", "on": "output", "patterns": ["word1 word2"], "then": "flag"},
]

HELD = [
    {"id": "not-that", "on": "output", "patterns": ["word40 word41"], "then": "deny"},
    {"id": "no-doubt", "on": "output", "patterns": ["word7 $"], "then": "deny"},
]

RULES = """
@id("too-much")
forbid (principal == Tenant::"acme", action == Action::"prompt", resource in Group::"llm")
when { context.length > 5000 && context.prompt_tokens > 10 };

@id("wordy") @flag("somebody should look at it")
forbid (principal == Tenant::"acme", action == Action::"output", resource)
when { context.length > 40 };
"""


@pytest.fixture(scope="module")
def guarded(
    wire: str, otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp(f"guarded-{wire}")
    bundle: Path = write_bundle(directory / "policy")
    acme = bundle / "tenants" / "acme.yaml"
    rules = YAML(typ="safe").load(acme)
    acme.write_text(json.dumps({**rules, "guards": GUARDS}))
    two = {**rules, "tenant": "two", "guards": HELD, "hold_back": {"bytes": 64, "within": "2s"}}
    (bundle / "tenants" / "two.yaml").write_text(json.dumps(two))
    (bundle / "guards").mkdir(exist_ok=True)
    (bundle / "guards" / "content.cedar").write_text(RULES)
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    sidecar = launch(directory / "sidecar", wire, parts, bundle)
    yield sidecar
    sidecar.close()


def test_a_denied_prompt_is_refused_and_the_stream_goes_on(guarded: Sidecar) -> None:
    with guarded.bare() as bare:
        bad, good = slow(2, prompt=b"pay with 4111 1111 1111 1111", id="bad"), slow(2, prompt=b"hello", id="good")
        stream = bare.stream([bad, good], guarded.headers())
        responses = list(stream)
        call_id = stream.answer().call_id
    refused = [each for each in responses if each.error_message]
    assert [each.infer_response.id for each in refused] == ["bad"]
    assert refused[0].error_message.startswith("[POLICY_FORBIDS]")
    assert "4111" not in refused[0].error_message
    assert [said(each) for each in responses if each.infer_response.id == "good"][:2] == ["word0 ", "word1 "]
    record = guarded.record(f"{call_id}/1")
    assert (record["outcome"], record["reason"], record["rule"]) == ("refused", "POLICY_FORBIDS", "guards.no-cards")
    assert record["findings"] == [{"guard": "no-cards", "on": "prompt", "verdict": "deny", "enforced": "deny"}]
    guarded.settles()


def test_what_is_flagged_or_in_shadow_goes_on_and_is_recorded(guarded: Sidecar) -> None:
    with guarded.bare() as bare:
        stream = bare.stream([slow(2, prompt=b"a trial of my salary")], guarded.headers())
        assert [said(each) for each in stream][:2] == ["word0 ", "word1 "]
        call_id = stream.answer().call_id
    record = guarded.record(f"{call_id}/1")
    assert (record["outcome"], record["would_refuse"]) == ("completed", "POLICY_FORBIDS")
    told = {(each["guard"], each["verdict"], each["enforced"]) for each in record["findings"]}
    assert told == {("curious", "flag", "flag"), ("on-trial", "deny", "none")}


def test_an_output_is_cut_before_the_forbidden_texts_last_chunk(guarded: Sidecar) -> None:
    before = guarded.metric("warden_guard_findings_total", on="output", enforced="deny")
    with guarded.bare() as bare:
        stream = bare.stream([slow(50, prompt=b"go", id="cut")], guarded.headers())
        responses = list(stream)
        call_id = stream.answer().call_id
    assert [said(each) for each in responses if not each.error_message] == [f"word{n} " for n in range(5)]
    assert responses[-1].error_message.startswith("[POLICY_FORBIDS]")
    record = guarded.record(f"{call_id}/1")
    assert (record["outcome"], record["reason"]) == ("failed", "POLICY_FORBIDS")
    assert {each["guard"] for each in record["findings"]} == {"noted", "not-that"}
    assert f"{call_id}/1" in {each["call_id"] for each in guarded.search(rule="guards.not-that")}
    assert "word5" in record["output"], "the record tells what was withheld, too"
    assert guarded.metric("warden_guard_findings_total", on="output", enforced="deny") == before + 1
    guarded.settles()


def test_of_a_forbidden_text_that_is_held_back_nothing_is_sent(guarded: Sidecar) -> None:
    with guarded.bare() as bare:
        stream = bare.stream([slow(200, prompt=b"go", id="cut")], guarded.headers("two"))
        responses = list(stream)
        call_id = stream.answer().call_id
    told = [said(each) for each in responses if not each.error_message]
    assert 20 < len(told) <= 40, "what is farther ahead than the hold was sent, and nothing of the forbidden text"
    assert told == [f"word{n} " for n in range(len(told))]
    assert responses[-1].error_message.startswith("[POLICY_FORBIDS]")
    record = guarded.record(f"{call_id}/1")
    assert (record["outcome"], record["reason"]) == ("failed", "POLICY_FORBIDS")
    assert record["findings"] == [{"guard": "not-that", "on": "output", "verdict": "deny", "enforced": "deny"}]
    guarded.settles()


def test_what_is_held_back_is_sent_in_order_and_whole(guarded: Sidecar) -> None:
    with guarded.bare() as bare:
        stream = bare.stream([slow(30, prompt=b"go", id="all")], guarded.headers("two"))
        told = [said(each) for each in stream if not each.error_message]
        call_id = stream.answer().call_id
    assert told[:30] == [f"word{n} " for n in range(30)]
    assert guarded.record(f"{call_id}/1")["outcome"] == "completed"
    guarded.settles()


def test_a_slow_token_is_held_no_longer_than_was_said(guarded: Sidecar) -> None:
    """The model pauses for longer than ``within``: what it said before is sent meanwhile, not with what comes next."""
    with guarded.bare() as bare:
        stream = bare.stream([slow(2, delay_ms=5000, prompt=b"go", id="slow")], guarded.headers("two"))
        began = time.monotonic()
        first = next(iter(stream))
        waited = time.monotonic() - began
        assert said(first) == "word0 "
        rest = [said(each) for each in stream]
    assert waited < 9, "its neighbour came after 10 s"
    assert rest[0] == "word1 "
    guarded.settles()


def test_an_output_that_ends_with_what_is_forbidden_is_cut_at_its_end(guarded: Sidecar) -> None:
    with guarded.bare() as bare:
        stream = bare.stream([slow(8, prompt=b"go", id="end")], guarded.headers("two"))
        responses = list(stream)
        call_id = stream.answer().call_id
    assert responses[-1].error_message.startswith("[POLICY_FORBIDS]")
    assert "word7 " not in [said(each) for each in responses if not each.error_message]
    assert [each["guard"] for each in guarded.record(f"{call_id}/1")["findings"]] == ["no-doubt"]
    guarded.settles()


def test_a_client_that_leaves_takes_nothing_of_what_is_held(guarded: Sidecar) -> None:
    with guarded.bare() as bare:
        assert said(next(iter(bare.stream([slow(20, delay_ms=500, prompt=b"go")], guarded.headers("two"))))) == "word0 "
    guarded.settles()


def test_a_rule_on_facts_refuses_and_flags_by_its_name(guarded: Sidecar) -> None:
    with guarded.bare() as bare:
        stream = bare.stream([slow(9, prompt=b"x" * 5001), slow(5, prompt=b"x" * 5000)], guarded.headers())
        responses = list(stream)
        call_id = stream.answer().call_id
    assert [each.error_message[:17] for each in responses if each.error_message] == ["[POLICY_FORBIDS] "]
    refused = guarded.record(f"{call_id}/1")
    assert (refused["reason"], refused["rule"]) == ("POLICY_FORBIDS", "guards.too-much")
    went_on = guarded.record(f"{call_id}/2")
    assert went_on["outcome"] == "completed"
    assert [each["guard"] for each in went_on["findings"]] == ["noted"], "30 characters are not too many"
    with guarded.bare() as bare:
        stream = bare.stream([slow(4, prompt=b"x", size=20)], guarded.headers())
        list(stream)
        call_id = stream.answer().call_id
    told = {"guard": "wordy", "on": "output", "verdict": "flag", "enforced": "flag"}
    assert told in guarded.record(f"{call_id}/1")["findings"]
    guarded.settles()

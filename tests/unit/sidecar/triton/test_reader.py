"""The governor's reader: head first, then facts, then what they cost."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from sidecar.core.model import (
    NO_FACTS,
    Contract,
    Demand,
    InferenceFacts,
    KvProfile,
    MalformedRequest,
    Method,
    ModelProfile,
    TensorFacts,
)
from sidecar.core.reasons import Reason
from sidecar.triton.methods import HEALTH, KSERVE, METHODS, lookup
from sidecar.triton.protos import service
from tests.support.kserve import chat, field, packed, request
from tests.support.reading import reader

READER = reader()
INFER = lookup(KSERVE + "ModelInfer")
CHAT = ModelProfile("chat", Contract.VLLM, KvProfile(131_072, 16))


def head_fault(message: bytes, method: str = "ModelInfer") -> MalformedRequest:
    with pytest.raises(MalformedRequest) as caught:
        READER.head(lookup(KSERVE + method), message)
    return caught.value


def named(method: Method, message: bytes) -> tuple[str, str]:
    head = READER.head(method, message)
    return head.model, head.version


# Field numbers of model and version, as the protocol's definition has them.
PLACES = {
    "ModelInfer": (1, 2),
    "ModelStreamInfer": (1, 2),
    "ModelReady": (1, 2),
    "ModelMetadata": (1, 2),
    "ModelConfig": (1, 2),
    "ModelStatistics": (1, 2),
    "RepositoryModelLoad": (2, None),
    "RepositoryModelUnload": (2, None),
    "TraceSetting": (2, None),
}


def test_every_method_that_names_a_model_is_tried() -> None:
    assert set(PLACES) == {method.name for method in METHODS.values() if method.by_model}


@pytest.mark.parametrize(("method", "places"), PLACES.items())
def test_head(method: str, places: tuple[int, int | None]) -> None:
    model, version = places
    row = lookup(KSERVE + method)
    assert named(row, field(model, b"chat")) == ("chat", "")
    if version is not None:
        assert named(row, field(version, b"12") + field(model, b"chat")) == ("chat", "12")
    twice = head_fault(field(model, b"chat") + field(model, b"other"), method)
    assert twice.reason is Reason.REQUEST_AMBIGUOUS
    if row.all_models:
        assert named(row, b"") == ("", "")
    else:
        assert "model name ''" in head_fault(b"", method).detail


def test_only_model_and_version_are_looked_at() -> None:
    broken = field(1, b"m") + field(5, b"\xff\xff") + field(3, b"\xff") + field(4, b"\xff")
    assert named(INFER, broken) == ("m", "")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a..b", "a b", "a\n", "a\x00", "é", "x" * 129, "-" * 5000])
def test_names_that_no_model_may_have(name: str) -> None:
    if name == "-" * 5000:
        assert len(head_fault(field(1, name.encode())).detail) < 300
    caught = head_fault(field(1, name.encode()))
    assert caught.reason is Reason.REQUEST_MALFORMED
    assert caught.detail.isprintable()


@pytest.mark.parametrize("version", ["0", "01", "-1", "+1", " 1", "1 ", "1abc", "0x1", "1.0", "١", "9" * 19, "1\n"])
def test_versions_that_triton_would_read_otherwise(version: str) -> None:
    assert "model version" in head_fault(field(1, b"m") + field(2, version.encode())).detail


@pytest.mark.parametrize("version", ["", "1", "10", "9" * 18])
def test_versions_in_their_one_spelling(version: str) -> None:
    assert named(INFER, field(1, b"m") + field(2, version.encode())) == ("m", version)


def test_methods_without_a_model_are_held_to_be_well_formed() -> None:
    for described in service().methods:
        method = lookup(KSERVE + described.name)
        if not method.by_model:
            assert named(method, b"") == ("", "")
            assert "unknown field 60" in head_fault(field(60, b"x"), described.name).detail
    assert named(lookup(HEALTH + "Check"), b"\xff") == ("", "")
    assert named(lookup("/x/y"), b"\xff") == ("", "")


def test_a_head_ends_at_its_bound() -> None:
    assert head_fault(field(1, b"m") + field(7, b"") * 2_000).reason is Reason.REQUEST_TOO_LARGE


def test_facts_of_a_chat() -> None:
    message = chat(b"hello world!", max_tokens=5, n=2)
    message.id, message.model_version = "r", "1"
    message.parameters["sequence_id"].int64_param = 4
    message.outputs.add(name="text_output")
    assert READER.facts(INFER, message.SerializeToString(), CHAT) == InferenceFacts(
        request_id="r",
        model="chat",
        version="1",
        inputs=(
            TensorFacts("text_input", "BYTES", (1,), 16),
            TensorFacts("stream", "BOOL", (1,), 1),
            TensorFacts("sampling_parameters", "BYTES", (1,), 29),
        ),
        outputs=("text_output",),
        parameters={"sequence_id": 4, "max_tokens": 5, "n": 2},
        prompts=(b"hello world!",),
        prompt_tokens=3,
        requested_tokens=5,
        sequences=2,
        streaming=True,
        tensor_bytes=46,
    )


def test_facts_of_any_other_method_are_none() -> None:
    assert READER.facts(lookup(KSERVE + "ModelReady"), b"\xff", CHAT) == NO_FACTS


def facts(**values: Any) -> InferenceFacts:
    return InferenceFacts(**values)


@pytest.mark.parametrize(
    ("asked", "demand"),
    [
        (facts(), Demand()),
        (facts(tensor_bytes=9), Demand(tensor_bytes=9)),
        (facts(prompt_tokens=100, requested_tokens=28), Demand(128, 8 * 2_097_152, 0)),
        (facts(prompt_tokens=100, requested_tokens=29), Demand(129, 9 * 2_097_152, 0)),
        # Six whole blocks of the prompt are shared; each of four sequences has two more of its own.
        (facts(prompt_tokens=100, requested_tokens=28, sequences=4), Demand(212, (6 + 8) * 2_097_152, 0)),
        # Two prompts of one block each share nothing.
        (
            facts(prompts=(b"x" * 64, b"y" * 64), prompt_tokens=32, requested_tokens=16, sequences=2),
            Demand(64, 4 * 2_097_152, 0),
        ),
    ],
)
def test_demand(asked: InferenceFacts, demand: Demand) -> None:
    found = READER.demand(asked, CHAT)
    assert (found.tokens, found.kv_bytes, found.tensor_bytes) == (demand.tokens, demand.kv_bytes, demand.tensor_bytes)
    assert (found.prompt_tokens, found.timed, found.kv_block) == (asked.prompt_tokens, False, CHAT.kv)


def test_a_model_without_a_profile_of_its_cache_takes_none() -> None:
    found = READER.demand(facts(prompt_tokens=5, requested_tokens=5), ModelProfile("m"))
    assert found == Demand(10, 0, 0, 5, timed=True)


def test_demand_of_what_was_read() -> None:
    got = READER.demand(READER.facts(INFER, chat(b"x" * 400, max_tokens=28).SerializeToString(), CHAT), CHAT)
    assert got == Demand(128, 8 * 2_097_152, 4 + 400 + 1 + 4 + 18, 100, kv_block=CHAT.kv)


@pytest.mark.parametrize("contract", [Contract.GENERIC, Contract.TRTLLM])
def test_a_large_payload_is_not_copied(contract: Contract) -> None:
    message = request("m", ("x", "FP32", [1, 2**22], bytes(2**24))).SerializeToString()
    tracemalloc.start()
    try:
        READER.head(INFER, message)
        got = READER.facts(INFER, message, ModelProfile("m", contract))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got.tensor_bytes == 2**24
    assert peak < 2**20


def test_prompts_are_whole_and_raw() -> None:
    prompt = b"\xff\x00" * 100_000
    assert READER.facts(INFER, chat(prompt).SerializeToString(), CHAT).prompts == (prompt,)
    many = request("chat", ("text_input", "BYTES", [3], packed(b"a", b"", b"c")))
    assert READER.facts(INFER, many.SerializeToString(), CHAT).prompts == (b"a", b"", b"c")

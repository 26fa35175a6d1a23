"""What is learnt of a model is what Triton says of it; an ensemble is what its steps make it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import message_factory

from sidecar.core.model import Contract
from sidecar.triton.knowledge import (
    NOTHING,
    CorrelationId,
    Dialect,
    Knowledge,
    ModelBook,
    Sequences,
    TensorSpec,
    dialect_of,
    read_index,
)
from sidecar.triton.protos import descriptor
from tests.support.models import ENSEMBLE, VLLM, described, sequential


def declared(*names: str) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, "BYTES", (1,)) for name in names}


DIALECTS: dict[Dialect, tuple[tuple[str, ...], ...]] = {
    Dialect.VLLM: (("text_input", "stream", "sampling_parameters"),),
    Dialect.ENSEMBLE: (("text_input", "max_tokens"), ("text_input", "max_tokens", "beam_width", "num_draft_tokens")),
    Dialect.BLS: (("text_input", "max_tokens", "image_bytes_input"), ("text_input", "max_tokens", "use_draft_logits")),
    Dialect.CORE: (("input_ids", "input_lengths", "request_output_len"),),
    Dialect.LLMAPI: (("text_input", "streaming", "sampling_param_max_tokens"),),
    Dialect.GENERIC: ((), ("text_input",), ("input_ids",), ("max_tokens",), ("image",)),
}


@pytest.mark.parametrize("dialect", Dialect)
def test_a_dialect_is_known_by_its_inputs(dialect: Dialect) -> None:
    for names in DIALECTS[dialect]:
        assert dialect_of(declared(*names)) is dialect
    expected = {Dialect.VLLM: Contract.VLLM, Dialect.GENERIC: Contract.GENERIC}.get(dialect, Contract.TRTLLM)
    assert dialect.contract is expected


def test_a_model_is_what_it_says() -> None:
    model = described("chat", VLLM, ("2", "10"))
    assert (model.name, model.versions, model.decoupled, model.backend) == ("chat", ("2", "10"), True, "vllm")
    assert model.inputs["text_input"] == TensorSpec("text_input", "BYTES", (1,))
    assert model.outputs["num_output_tokens"] == TensorSpec("num_output_tokens", "UINT32", (-1,))
    assert (model.sequences, model.steps, model.response_cache, model.dialect) == (None, (), False, Dialect.VLLM)
    batched = described("t", ENSEMBLE)
    assert batched.inputs["text_input"].shape == (-1, 1)
    assert (batched.max_batch_size, batched.platform, batched.steps) == (8, "ensemble", ("tensorrt_llm",))
    assert described("c", "response_cache { enable: true }").response_cache


@pytest.mark.parametrize(
    ("data_type", "ids"),
    [
        ("TYPE_UINT64", CorrelationId.WIDE),
        ("TYPE_INT64", CorrelationId.WIDE),
        ("TYPE_UINT32", CorrelationId.NARROW),
        ("TYPE_INT32", CorrelationId.NARROW),
        ("TYPE_STRING", CorrelationId.TEXT),
    ],
)
def test_sequences_go_by_what_their_control_says(data_type: str, ids: CorrelationId) -> None:
    assert described("m", sequential(data_type, idle_us=7)).sequences == Sequences(ids, 7)


def test_sequences_without_a_control_or_an_idle_time_have_tritons_own() -> None:
    assert described("m", "sequence_batching { }").sequences == Sequences(CorrelationId.WIDE, 1_000_000)


@pytest.mark.parametrize(
    ("config", "slots"),
    [
        ("sequence_batching { }", 0),  # it doesn't say how many instances
        ("sequence_batching { } instance_group { count: 3 }", 3),
        ("sequence_batching { direct { } } max_batch_size: 8 instance_group { count: 2 }", 16),
        ("sequence_batching { direct { } } max_batch_size: 8 instance_group { count: 2 gpus: [ 0, 1 ] }", 32),
        (
            "sequence_batching { oldest { max_candidate_sequences: 5 } } max_batch_size: 8 instance_group { count: 2 }",
            10,
        ),
    ],
)
def test_how_many_sequences_a_model_runs_at_once(config: str, slots: int) -> None:
    model = described("m", config)
    assert model.sequences is not None
    assert model.sequences.slots == slots
    more = described("more", "sequence_batching { } instance_group { count: 99 }")
    known = Knowledge.of([model, more, described("e", steps("m", "more"))]).models["e"].sequences
    assert known is not None
    assert known.slots == (slots or 99)  # as many as its scarcest step, where that says it


@pytest.mark.parametrize(
    ("said", "counts"),
    [("True", False), ("1", False), ("false", True), ("${exclude_input_in_output}", None), (None, None)],
)
def test_whether_a_prompt_is_counted_as_output(said: str | None, counts: bool | None) -> None:
    text = "" if said is None else f'parameters {{ key: "exclude_input_in_output" value {{ string_value: "{said}" }} }}'
    core = described("tensorrt_llm", text)
    assert core.prompt_in_output is counts
    assert Knowledge.of([described("t", ENSEMBLE), core]).models["t"].prompt_in_output is counts


def steps(*names: str) -> str:
    return "ensemble_scheduling { step [ " + ", ".join(f'{{ model_name: "{name}" }}' for name in names) + " ] }"


def test_an_ensemble_is_as_its_steps_are() -> None:
    number, text = described("n", sequential("TYPE_INT32", idle_us=9)), described("t", sequential("TYPE_STRING"))
    decoupled = described("d", "model_transaction_policy { decoupled: true }")
    outer, inner = described("outer", steps("inner", "d")), described("inner", steps("n"))
    known = Knowledge.of([number, text, decoupled, outer, inner, described("both", steps("n", "t"))]).models
    assert known["outer"].decoupled
    assert known["outer"].sequences == known["inner"].sequences == Sequences(CorrelationId.NARROW, 9)
    assert not known["inner"].decoupled
    assert known["both"].sequences == Sequences(CorrelationId.MIXED, 9)


def test_ensembles_in_a_circle_end() -> None:
    known = Knowledge.of([described("a", steps("b")), described("b", steps("a", "a"))])
    assert known.models["a"].sequences is None


def test_an_ensemble_with_a_step_that_is_not_learnt_is_not_either() -> None:
    known = Knowledge.of([described("e", steps("s")), described("m")], unlearnt=["s", "m"])
    assert known.models.keys() == {"m"}
    assert known.unlearnt == {"e", "s"}
    assert known.complete
    assert not NOTHING.complete


def test_the_index_is_read_by_ready_versions() -> None:
    index: Any = message_factory.GetMessageClass(descriptor("RepositoryIndexResponse"))()
    for name, version, state in (
        ("a", "10", "READY"),
        ("a", "9", "READY"),
        ("a", "11", "LOADING"),
        ("b", "1", "UNAVAILABLE"),
        ("c", "", "READY"),
    ):
        index.models.add(name=name, version=version, state=state)
    assert read_index(index) == {"a": ("9", "10"), "c": ("",)}


def test_what_models_yaml_gets_wrong() -> None:
    known = Knowledge.of([described("chat", VLLM), described("m")])
    assert known.disagreements({"chat": Contract.VLLM, "m": Contract.GENERIC, "absent": Contract.VLLM}) == {}
    assert known.disagreements({"chat": Contract.GENERIC, "m": Contract.TRTLLM}) == {
        "chat": Dialect.VLLM,
        "m": Dialect.GENERIC,
    }


def test_a_book_is_swapped_whole_and_passes_doubts_on() -> None:
    asked: list[int] = []
    book = ModelBook()
    book.doubt()
    book.on_doubt(lambda: asked.append(1))
    book.doubt()
    assert (book.current, asked) == (NOTHING, [1])

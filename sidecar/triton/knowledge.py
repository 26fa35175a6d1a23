"""What each model of this Triton is, as it says itself: versions, tensors, sequences, steps, its contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from sidecar.core.model import Contract

__all__ = [
    "MODELS_MAX",
    "NOTHING",
    "CorrelationId",
    "Dialect",
    "Knowledge",
    "ModelBook",
    "ModelFacts",
    "Sequences",
    "TensorSpec",
    "dialect_of",
    "read_index",
    "read_model",
]

MODELS_MAX: Final = 4_096  # learnt of one Triton; the rest stay unlearnt
READY: Final = "READY"  # RepositoryIndex's state of a version that answers
_STEPS_MAX: Final = 64  # of an ensemble that are followed, whichever way they nest
_IDLE_DEFAULT_US: Final = 1_000_000  # SequenceBatching.max_sequence_idle_microseconds, where it says 0
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


class Dialect(StrEnum):
    """How a model's tensors are to be understood, by release family (facts/triton.md §3)."""

    VLLM = "vllm"
    ENSEMBLE = "trtllm-ensemble"
    BLS = "trtllm-bls"
    CORE = "trtllm-core"
    LLMAPI = "trtllm-llmapi"
    GENERIC = "generic"

    @property
    def contract(self) -> Contract:
        """The contract of models.yaml that covers it."""
        if self in (Dialect.VLLM, Dialect.GENERIC):
            return Contract(self.value)
        return Contract.TRTLLM


class CorrelationId(StrEnum):
    """What a sequence's id is to its model. The 32-bit ones are cut out of 64 bits by Triton, without a word."""

    WIDE = "64 bits"
    NARROW = "32 bits"
    TEXT = "text"
    MIXED = "of several types"  # an ensemble whose steps disagree: no id suits all


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as ModelMetadata has it; -1 is a dimension of any size, the batch's included."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sequences:
    """That a model keeps sequences: the type of their ids, and how long (µs) one may say nothing.

    ``slots``: how many run at once, beyond which Triton lets them wait for as long as it takes; 0: it isn't said.
    """

    ids: CorrelationId
    idle_us: int
    slots: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model. ``versions`` are those that answer, the newest last; ``steps`` the models that an ensemble calls.

    ``decoupled`` and ``sequences`` are an ensemble's own or, where it has none, its steps'. ``prompt_in_output``: the
    model counts its prompt among the output unless a request says otherwise (None: it doesn't say).
    """

    name: str
    versions: tuple[str, ...] = ()
    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    outputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    decoupled: bool = False
    sequences: Sequences | None = None
    steps: tuple[str, ...] = ()
    max_batch_size: int = 0
    backend: str = ""
    platform: str = ""
    response_cache: bool = False
    dialect: Dialect = Dialect.GENERIC
    prompt_in_output: bool | None = None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that was learnt in one round. ``unlearnt``: models that are there but could not be asked about."""

    models: Mapping[str, ModelFacts] = field(default_factory=lambda: MappingProxyType({}))
    unlearnt: frozenset[str] = frozenset()
    complete: bool = False  # the index was read: a model that is in neither isn't there

    @classmethod
    def of(cls, models: Iterable[ModelFacts], unlearnt: Iterable[str] = ()) -> Knowledge:
        """From each model as it describes itself; what an ensemble has of its steps is filled in."""
        known = {model.name: model for model in models}
        missing = frozenset(unlearnt) - known.keys()
        whole = {name: _with_steps(model, known) for name, model in known.items() if not missing & {*model.steps}}
        return cls(MappingProxyType(whole), missing | (known.keys() - whole.keys()), complete=True)

    def disagreements(self, stated: Mapping[str, Contract]) -> dict[str, Dialect]:
        """Models whose tensors speak another contract than models.yaml says: by name, what they speak."""
        return {
            name: model.dialect
            for name, model in self.models.items()
            if name in stated and stated[name] is not model.dialect.contract
        }


NOTHING: Final = Knowledge()


class ModelBook:
    """Where the current knowledge is had: swapped whole, so that a call sees one state. Memory only, no lock."""

    __slots__ = ("_ask", "current")

    def __init__(self, knowledge: Knowledge = NOTHING, ask: Callable[[], None] = lambda: None) -> None:
        self.current = knowledge
        self._ask = ask

    def known(self, model: str) -> ModelFacts | None:
        """One model, where it was learnt."""
        return self.current.models.get(model)

    def on_doubt(self, ask: Callable[[], None]) -> None:
        """``ask`` is told where something isn't known, or has changed; it must return at once."""
        self._ask = ask

    def doubt(self) -> None:
        """Have it all learnt anew, soon."""
        self._ask()


# --- reading Triton's own answers ---------------------------------------------------------------------------------


def read_index(index: Any) -> dict[str, tuple[str, ...]]:
    """A RepositoryIndexResponse: each model's ready versions, the newest last; models with none are left out."""
    ready: dict[str, set[str]] = {}
    for entry in index.models:
        if entry.state == READY:
            ready.setdefault(entry.name, set()).add(entry.version)
    return {name: tuple(sorted(versions, key=_number)) for name, versions in ready.items()}


def _number(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isascii() and version.isdigit() else (-1, version)


def read_model(metadata: Any, config: Any, versions: tuple[str, ...]) -> ModelFacts:
    """One model from its ModelMetadataResponse and the ModelConfig of its ModelConfigResponse."""
    inputs, outputs = _tensors(metadata.inputs), _tensors(metadata.outputs)
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    return ModelFacts(
        name=metadata.name,
        versions=versions,
        inputs=inputs,
        outputs=outputs,
        decoupled=config.model_transaction_policy.decoupled,
        sequences=_sequences(config),
        steps=tuple(step.model_name for step in config.ensemble_scheduling.step)[:_STEPS_MAX],
        max_batch_size=config.max_batch_size,
        backend=config.backend,
        platform=config.platform,
        response_cache=config.response_cache.enable,
        dialect=dialect_of(inputs),
        prompt_in_output=_counts_prompt(parameters),
    )


def _tensors(tensors: Any) -> Mapping[str, TensorSpec]:
    return MappingProxyType({each.name: TensorSpec(each.name, each.datatype, tuple(each.shape)) for each in tensors})


def dialect_of(inputs: Mapping[str, TensorSpec]) -> Dialect:
    """By the inputs that a model declares. The most peculiar first: BLS has the ensemble's inputs and more."""
    names = inputs.keys()
    if {"input_ids", "request_output_len"} <= names:
        return Dialect.CORE
    if "text_input" not in names:
        return Dialect.GENERIC
    if any(name.startswith("sampling_param_") for name in names):
        return Dialect.LLMAPI
    if "max_tokens" in names:
        return Dialect.BLS if names & {"image_bytes_input", "image_url_input", "use_draft_logits"} else Dialect.ENSEMBLE
    return Dialect.VLLM if "sampling_parameters" in names else Dialect.GENERIC


_CONTROL_CORRID: Final = "CONTROL_SEQUENCE_CORRID"
_CORRELATION: Final = {
    "TYPE_STRING": CorrelationId.TEXT,
    "TYPE_INT32": CorrelationId.NARROW,
    "TYPE_UINT32": CorrelationId.NARROW,
}


def _sequences(config: Any) -> Sequences | None:
    """A model without a CORRID control never sees the id; Triton itself tells its sequences apart by all 64 bits."""
    if config.WhichOneof("scheduling_choice") != "sequence_batching":
        return None
    batching = config.sequence_batching
    found = {
        _CORRELATION.get(_enum(control, "data_type"), CorrelationId.WIDE)
        for tensor in batching.control_input
        for control in tensor.control
        if _enum(control, "kind") == _CONTROL_CORRID
    }
    ids = CorrelationId.WIDE if not found else found.pop() if len(found) == 1 else CorrelationId.MIXED
    return Sequences(ids, batching.max_sequence_idle_microseconds or _IDLE_DEFAULT_US, _slots(config))


def _slots(config: Any) -> int:
    """Each instance has a batcher of its own (core/src/sequence_batch_scheduler.cc); ``direct`` is what none means."""
    batching = config.sequence_batching
    oldest = batching.HasField("oldest")
    each = batching.oldest.max_candidate_sequences if oldest else max(1, config.max_batch_size)
    return int(each * sum(group.count * max(1, len(group.gpus)) for group in config.instance_group))


def _enum(message: Any, name: str) -> str:
    """An enum field's value by name: messages of one class have it under a number of their own."""
    value = message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number.get(getattr(message, name))
    return "" if value is None else str(value.name)


def _counts_prompt(parameters: Mapping[str, str]) -> bool | None:
    """TensorRT-LLM's exclude_input_in_output, turned round: its output, and so its count, then holds the prompt."""
    said = parameters.get("exclude_input_in_output", "").strip().lower()
    return False if said in _TRUE else True if said in _FALSE else None


def _with_steps(model: ModelFacts, known: Mapping[str, ModelFacts]) -> ModelFacts:
    if not model.steps:
        return model
    steps = _all_steps(model, known)
    kept = [step.sequences for step in (model, *steps) if step.sequences is not None]
    counts = {step.prompt_in_output for step in (model, *steps)} - {None}
    return replace(
        model,
        decoupled=model.decoupled or any(step.decoupled for step in steps),
        sequences=_joined(kept),
        prompt_in_output=counts.pop() if len(counts) == 1 else None,
    )


def _joined(kept: list[Sequences]) -> Sequences | None:
    if not kept:
        return None
    ids = {each.ids for each in kept}
    return Sequences(
        ids.pop() if len(ids) == 1 else CorrelationId.MIXED,
        min(each.idle_us for each in kept),
        min((each.slots for each in kept if each.slots), default=0),
    )


def _all_steps(model: ModelFacts, known: Mapping[str, ModelFacts]) -> list[ModelFacts]:
    """Every model that an ensemble calls, through inner ensembles too, each once and at most ``_STEPS_MAX``."""
    found: dict[str, ModelFacts] = {}
    left = list(model.steps)
    while left and len(found) < _STEPS_MAX:
        name = left.pop()
        step = known.get(name)
        if step is not None and name not in found and name != model.name:
            found[name] = step
            left += step.steps
    return list(found.values())

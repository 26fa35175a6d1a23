"""What keeps tenants apart: what may go to Triton at all, and what goes there under another name (facts §2, §8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from sidecar.core.model import (
    Action,
    Call,
    Contract,
    Denial,
    Forward,
    InferenceFacts,
    Instant,
    Limits,
    ModelProfile,
    ParameterValue,
    Principal,
    Secret,
    Share,
    Undo,
    Verdict,
    replace,
)
from sidecar.core.reasons import Reason
from sidecar.triton import suffix
from sidecar.triton.contracts import STOP
from sidecar.triton.counting import Counting, asked_for
from sidecar.triton.knowledge import CorrelationId, Dialect, ModelBook, ModelFacts
from sidecar.triton.mac import Mac
from sidecar.triton.protos import message_class
from sidecar.triton.request import ELSEWHERE
from sidecar.triton.sequences import SequenceTable

__all__ = [
    "FORBIDDEN_PARAMETERS",
    "FORBIDDEN_SAMPLING",
    "FORBIDDEN_TENSORS",
    "LORA_TENSORS",
    "Isolation",
    "contract_of",
    "manage",
]

# Tensors that reach past the caller's own request, whatever the contract: a model may be another than it is said to be.
FORBIDDEN_TENSORS: Final[dict[str, str]] = {
    "image_url": "the server would fetch it",
    "image_url_input": "the server would fetch it",
    "lora_path": "a path on the server",
    "lora_ckpt_source": "a path on the server",
    "lora_weights": "replaces an adapter that others use",
    "lora_config": "replaces an adapter that others use",
    "context_phase_params": "a memory image that the server trusts",
    "embedding_request": "its prompt would not be seen",
    "prompt_embedding_table": "its prompt would not be seen",
    "return_perf_metrics": "tells what others have cached",
    "return_kv_cache_reuse_stats": "tells what others have cached",
    "sampling_param_return_perf_metrics": "tells what others have cached",
    "return_context_logits": "as large as the vocabulary for each token",
    "return_generation_logits": "as large as the vocabulary for each token",
}
# TensorRT-LLM's adapters by number or name: those that the tenant's document grants (``loras``), read by its contract.
LORA_TENSORS: Final = frozenset({"lora_task_id", "lora_id", "lora_name"})
_RETENTION: Final = "retention_"  # pins cache blocks against everybody else's

FORBIDDEN_PARAMETERS: Final[dict[str, str]] = {
    "headers": "set by the server itself",
    "binary_data_output": "belongs to HTTP",
}
_SHARED_MEMORY: Final = "shared_memory_"
_TRITON: Final = "triton_"
_TRITON_ALLOWED: Final = "triton_enable_empty_final_response"
_SEQUENCE, _START, _END = "sequence_id", "sequence_start", "sequence_end"
_PRIORITY, _TIMEOUT = "priority", "timeout"
_QUEUED: Final = frozenset({_PRIORITY, _TIMEOUT})
_CLASSIFICATION: Final = "classification"
_CLASSIFYING: Final = f"/{_CLASSIFICATION}"
# Triton reads the count modulo 2^32, so 2^62 is 0 there and means none; ImageNet's 1000 labels are as many as one asks.
_CLASSES_MAX: Final = 1_000

# vLLM's sampling parameters, from their JSON or from request parameters.
FORBIDDEN_SAMPLING: Final[dict[str, str]] = {
    "logits_processors": "names code on the server",
    "extra_args": "reaches the engine unchecked",
    "kv_transfer_params": "names another engine's memory",
}
RULE: Final = "isolation"


def contract_of(profile: ModelProfile, model: ModelFacts | None) -> Contract:
    """As models.yaml states it; a model that it doesn't name speaks what its tensors say."""
    return profile.contract if profile.stated or model is None else model.dialect.contract


def _refuse(what: str, why: str) -> Denial:
    return Denial(Reason.PARAMETER_NOT_ALLOWED, f"{what}: {why}", rule=RULE)


@dataclass(frozen=True, slots=True)
class Isolation:
    """Judges and rewrites inferences; knows of Triton's models what the book says.

    ``key``: 32 bytes that request ids are mapped under; the same for as long as a ``stop`` shall find its request.
    """

    book: ModelBook
    key: Secret
    sequences: SequenceTable
    naming: Mac = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "naming", Mac(self.key))

    def infer(
        self, call: Call, principal: Principal, facts: InferenceFacts, verdict: Verdict, at: Instant
    ) -> Forward | Denial:
        """What Triton is sent of an inference, or why it may not pass."""
        if not facts.model:  # only in mode observe: it could not be read
            return Forward(call.message)
        name = verdict.profile.name  # facts.model may be an alias
        model = self.book.current.models.get(name)
        contract = contract_of(verdict.profile, model)
        denial = self._unlearnt(facts, verdict) if model is None else None
        denial = denial or _forbidden(facts, verdict, contract, model)
        if denial is not None:
            return replace(denial, always=True) if _kills(facts, model) else denial
        sequence = _NO_SEQUENCE
        if facts.parameters.get(_SEQUENCE):
            assert model is not None  # else unlearnt
            found = self._sequence(principal.tenant, facts, model, verdict.limits.share, at)
            if isinstance(found, Denial):
                return found
            sequence = found
        counting = Counting(call.message) if contract is Contract.GENERIC else asked_for(call.message, facts, model)
        sent = self.request_id(principal.tenant, name, facts.request_id)
        added = sequence.suffix
        if not _QUEUED.isdisjoint(facts.parameters):
            added += _queue(facts.parameters, verdict.limits)
        added += counting.suffix
        if sent:
            added += suffix.request_id(sent)
        return Forward(
            counting.message,
            suffix=added,
            undo=_undo(facts.request_id, sent, counting, sequence),
            ordered=model is not None and not model.decoupled,
            sequence=sequence.key,
            begins=sequence.begins,
        )

    def request_id(self, tenant: str, model: str, client: str) -> str:
        """What Triton is given for a client's request id: the same for the same, and nobody else's; "" for ""."""
        if not client:
            return ""
        named = f"{len(tenant)}:{tenant}{len(model)}:{model}{client}".encode()
        return self.naming.of(named)[:16].hex()

    def _unlearnt(self, facts: InferenceFacts, verdict: Verdict) -> Denial | None:
        """A model that Triton hasn't told of. Where nothing hangs on what it is, Triton itself says what becomes of it.

        What models.yaml doesn't name is read by its tensors' contract; without that its tokens would go uncounted.
        """
        known = self.book.current
        if known.complete and verdict.profile.name not in known.unlearnt:
            self.book.doubt()  # it may just have been loaded
            absent = Denial(Reason.MODEL_NOT_FOUND, rule="triton", internal="not in Triton's repository index")
            return absent if _needs_knowledge(facts, verdict) else None
        if not _needs_knowledge(facts, verdict):
            return None
        self.book.doubt()
        return Denial(Reason.UPSTREAM_UNAVAILABLE, "what the model is isn't known yet", retry_after=1.0, rule="models")

    def _sequence(
        self, tenant: str, facts: InferenceFacts, model: ModelFacts, share: Share, at: Instant
    ) -> _Sequence | Denial:
        client = facts.parameters[_SEQUENCE]
        assert isinstance(client, int | str)
        kept = model.sequences
        if kept is None:
            if isinstance(client, str):
                return _refuse(f"parameter {_SEQUENCE}", "the model keeps no sequences")
            # Its backend may read the number all the same, and know its callers by it.
            mapped = int(self.request_id(tenant, f"{model.name} sequence", str(client)), 16) % _WIDE + 1
            return _Sequence(suffix.integer_parameter(_SEQUENCE, mapped))
        text = kept.ids is CorrelationId.TEXT
        if kept.ids is CorrelationId.MIXED or text is not isinstance(client, str):
            # A string where the model wants a number corrupts the heap of Triton 2.51, which dies of it later.
            wanted = "a string" if text else f"a number ({kept.ids})"
            detail = f"parameter {_SEQUENCE}: must be {wanted} for this model"
            return Denial(Reason.REQUEST_MALFORMED, detail, rule=RULE, always=_kills(facts, model))
        start, end = (facts.parameters.get(name) is True for name in (_START, _END))
        given = self.sequences.enter(tenant, model.name, kept, client, at.mono_ns, start=start, share=share)
        if isinstance(given, Denial):
            return given
        if isinstance(given.id, int):
            added = suffix.integer_parameter(_SEQUENCE, given.id)
        else:
            added = suffix.string_parameter(_SEQUENCE, given.id)
        this = (client, given.epoch)
        return _Sequence(added, (tenant, model.name, client), this if end else None, this if given.begun else None)


_WIDE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What a request's sequence makes of it; ``ends``: it is the sequence's last; ``begins``: its first."""

    suffix: bytes = b""
    key: tuple[object, ...] | None = None
    ends: tuple[int | str, int] | None = None
    begins: tuple[int | str, int] | None = None


_NO_SEQUENCE: Final = _Sequence()


def _undo(client: str, sent: str, counting: Counting, sequence: _Sequence) -> Undo | None:
    if not (sent or counting.strip or counting.beams or sequence.ends):
        return None
    return Undo(client if sent else None, counting.strip, sent, counting.beams, sequence.ends)


def _needs_knowledge(facts: InferenceFacts, verdict: Verdict) -> bool:
    if not verdict.profile.stated or facts.parameters.get(_SEQUENCE):
        return True
    for name in facts.parameters:  # noqa: SIM110 — a generator costs as much as the rest of this
        if name.endswith(_CLASSIFYING):
            return True
    return False


def _kills(facts: InferenceFacts, model: ModelFacts | None) -> bool:
    """Whether Triton 2.51, sent this as the client wrote it, could die of it, and everybody's calls with it.

    What is refused for that is refused in every mode. Of a model that isn't known the worst is taken.
    """
    sequence = facts.parameters.get(_SEQUENCE)
    if isinstance(sequence, str) and sequence:
        # Read as a number it corrupts the heap; read as text, one that is shorter than 128 ends the Python backend.
        return model is None or model.sequences is not None
    if any(tensor.name in _TRUSTED for tensor in facts.inputs):
        return True
    if facts.streaming and model is not None and model.dialect in _STREAMERS and not model.decoupled:
        return True
    return any(
        name.endswith(f"/{_CLASSIFICATION}") and not _numeric(name.removeprefix("outputs/").rpartition("/")[0], model)
        for name in facts.parameters
    )


_TRUSTED: Final = frozenset({"context_phase_params"})  # read by TensorRT-LLM as the memory of its own objects


def _numeric(output: str, model: ModelFacts | None) -> bool:
    declared = model.outputs.get(output) if model is not None else None
    return declared is not None and declared.datatype != "BYTES"


# What nearly every request of a language model has, and which nothing below says a word about (tests hold them to it).
_HARMLESS: Final = frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "n"})
_ORDINARY: Final = frozenset({"text_input", "sampling_parameters", "stream", "max_tokens"})


# --- what may not pass --------------------------------------------------------------------------------------------


def _forbidden(facts: InferenceFacts, verdict: Verdict, contract: Contract, model: ModelFacts | None) -> Denial | None:
    for name, value in facts.parameters.items():
        if name not in _HARMLESS:
            why = _parameter(name, value, verdict, contract, model)
            if why is not None:
                return _refuse(f"parameter {name}", why)
    for tensor in facts.inputs:
        if tensor.name not in _ORDINARY:
            why = _tensor(tensor.name, contract)
            if why is not None:
                return _refuse(f"input {tensor.name}", why)
    if facts.loras and not verdict.loras.issuperset(facts.loras):
        return _refuse("lora", "this adapter is not among the tenant's loras")
    if facts.flags.get(STOP) and not facts.request_id:
        return _refuse(f"input {STOP}", "stops by request id, and this request has none")
    return _beyond(facts, verdict, model)


def _beyond(facts: InferenceFacts, verdict: Verdict, model: ModelFacts | None) -> Denial | None:
    """More than the model gives."""
    most = verdict.profile.max_tokens
    if facts.requested_tokens > most:
        return _refuse("max_tokens", f"{facts.requested_tokens} asked, at most {most} for this model")
    if facts.streaming and model is not None and model.dialect in _STREAMERS and not model.decoupled:
        return _refuse("streaming", "the model answers once (it is not decoupled)")
    return None


# Where streaming is asked of a model that isn't decoupled, older backends of TensorRT-LLM end the whole server.
_STREAMERS: Final = frozenset({Dialect.ENSEMBLE, Dialect.BLS, Dialect.CORE, Dialect.LLMAPI})


def _tensor(name: str, contract: Contract) -> str | None:
    if name.startswith(_RETENTION):
        return "holds cache against others"
    if name in LORA_TENSORS and contract is not Contract.TRTLLM:
        return "adapters are asked for as the model's contract says"
    return FORBIDDEN_TENSORS.get(name)


def _parameter(
    name: str, value: ParameterValue, verdict: Verdict, contract: Contract, model: ModelFacts | None
) -> str | None:
    """Why a parameter may not pass; None: it may. Tensors' own are ``inputs/…`` and ``outputs/…``."""
    place, _, bare = name.rpartition("/")
    if bare.startswith(_SHARED_MEMORY):
        return ELSEWHERE
    if place:
        if bare == _CLASSIFICATION and place.startswith("outputs/"):
            return _classification(place.removeprefix("outputs/"), value, verdict, contract, model)
        return "not a parameter of a tensor"
    if bare.startswith(_TRITON) and bare != _TRITON_ALLOWED:
        return "not a parameter that Triton has"
    if contract is not Contract.GENERIC and bare in FORBIDDEN_SAMPLING:
        return FORBIDDEN_SAMPLING[bare]
    return FORBIDDEN_PARAMETERS.get(bare)


def _classification(
    output: str, count: ParameterValue, verdict: Verdict, contract: Contract, model: ModelFacts | None
) -> str | None:
    """Why an output may not be asked for as classes. Where it holds strings, Triton 2.51 divides by zero and dies.

    That an output is declared numeric isn't enough: a Python model may give another. So models.yaml must say so too.
    """
    if not verdict.profile.classification or contract is not Contract.GENERIC:
        return "models.yaml doesn't say classification: true of this model"
    declared = model.outputs.get(output) if model is not None else None
    if declared is None:
        return "the model has no such output"
    if declared.datatype == "BYTES":
        return "the output holds strings"
    if not isinstance(count, int) or not 1 <= count <= _CLASSES_MAX:
        return f"must be 1 to {_CLASSES_MAX}"
    return None


# --- the queue ----------------------------------------------------------------------------------------------------


def _queue(parameters: object, limits: Limits) -> bytes:
    """Priority and timeout as the plan bounds them. Without a bound the model's default stands (0 means that): stock
    clients send them, and would break if they were refused."""
    assert isinstance(parameters, dict)
    added = b""
    if _PRIORITY in parameters:
        asked = int(parameters[_PRIORITY])
        allowed = 0 if limits.priority is None or asked <= 0 else max(asked, limits.priority)
        if allowed != asked:
            added += suffix.integer_parameter(_PRIORITY, min(allowed, _WIDE))
    if _TIMEOUT in parameters:
        asked = int(parameters[_TIMEOUT])
        # A negative one would be read as half a million years.
        most = limits.queue_timeout_us
        allowed = 0 if most is None else asked if 0 <= asked <= most else most
        if allowed != asked:
            added += suffix.integer_parameter(_TIMEOUT, allowed)
    return added


def manage(call: Call, parameters: tuple[str, ...]) -> Forward | Denial:
    """Any other call. ``parameters``: the message's fields that change something; none may be sent.

    With ``config`` or ``file:…`` a load uploads a model, and so code; settings write files and can silence the log.
    """
    if call.method.action is Action.MANAGE and parameters and not _unloads_dependents(call):
        return _refuse(parameters[0], f"{call.method.name} may not carry any")
    return Forward(call.message)


def _unloads_dependents(call: Call) -> bool:
    """Whether all that is said is ``unload_dependents``: stock clients send it with every unload."""
    if call.method.name != "RepositoryModelUnload":
        return False
    try:
        said = message_class("RepositoryModelUnloadRequest").FromString(call.message).parameters
    except DecodeError:
        return False
    return set(said) == {"unload_dependents"} and said["unload_dependents"].WhichOneof("parameter_choice") == _BOOL


_BOOL: Final = "bool_param"

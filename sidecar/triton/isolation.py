"""What keeps tenants apart: which parameters and tensors may go to Triton (facts §8)."""

from __future__ import annotations

from typing import Final

from sidecar.core.model import (
    Action,
    Call,
    Contract,
    Denial,
    Forward,
    InferenceFacts,
    ModelProfile,
    ParameterValue,
    Principal,
    Verdict,
)
from sidecar.core.reasons import Reason

__all__ = ["FORBIDDEN_PARAMETERS", "FORBIDDEN_TENSORS", "infer", "manage"]

# Tensors that reach past the caller's own request, whatever the contract: a model may be another than it is said to be.
FORBIDDEN_TENSORS: Final[dict[str, str]] = {
    "image_url": "the server would fetch it",
    "image_url_input": "the server would fetch it",
    "lora_path": "a path on the server",
    "lora_ckpt_source": "a path on the server",
    "lora_weights": "replaces an adapter that others use",
    "lora_config": "replaces an adapter that others use",
    "lora_task_id": "adapters are not granted to tenants yet",
    "lora_id": "adapters are not granted to tenants yet",
    "lora_name": "adapters are not granted to tenants yet",
    "context_phase_params": "a memory image that the server trusts",
    "embedding_request": "its prompt would not be seen",
    "prompt_embedding_table": "its prompt would not be seen",
    "return_perf_metrics": "tells what others have cached",
    "return_context_logits": "as large as the vocabulary for each token",
    "return_generation_logits": "as large as the vocabulary for each token",
    "stop": "stops every request with the same id",
}
_RETENTION: Final = "retention_"  # pins cache blocks against everybody else's

FORBIDDEN_PARAMETERS: Final[dict[str, str]] = {
    "headers": "set by the server itself",
    "binary_data_output": "belongs to HTTP",
    "priority": "the queue is shared with others",
    "timeout": "the call's deadline is what ends it",
}
_SHARED_MEMORY: Final = "shared_memory_"
_TRITON: Final = "triton_"
_TRITON_ALLOWED: Final = "triton_enable_empty_final_response"
# A model says whether its sequences' ids are numbers or strings. A string where it wants a number corrupts the heap of
# Triton 2.51, which dies of it later; and what each model wants isn't known here.
_SEQUENCE: Final = "sequence_id"
_OUTPUT_PARAMETER: Final = "classification"
# Triton reads the count modulo 2^32, so 2^62 is 0 there and means none; ImageNet's 1000 labels are as many as one asks.
_CLASSES_MAX: Final = 1_000

# vLLM's sampling parameters, from their JSON or from request parameters.
FORBIDDEN_SAMPLING: Final[dict[str, str]] = {
    "lora_name": "adapters are not granted to tenants yet",
    "logits_processors": "names code on the server",
    "extra_args": "reaches the engine unchecked",
    "kv_transfer_params": "names another engine's memory",
}


def _refuse(what: str, why: str) -> Denial:
    return Denial(Reason.PARAMETER_NOT_ALLOWED, f"{what}: {why}", rule="isolation")


def infer(call: Call, principal: Principal, facts: InferenceFacts, verdict: Verdict) -> Forward | Denial:
    """The untouched message of an inference that asks for nothing it may not have."""
    profile = verdict.profile
    for name, value in facts.parameters.items():
        why = _parameter(name, value, profile)
        if why is not None:
            return _refuse(f"parameter {name}", why)
    for tensor in facts.inputs:
        why = FORBIDDEN_TENSORS.get(tensor.name)
        if why is None and tensor.name.startswith(_RETENTION):
            why = "holds cache against others"
        if why is not None:
            return _refuse(f"input {tensor.name}", why)
    if facts.requested_tokens > profile.max_tokens:
        return _refuse("max_tokens", f"{facts.requested_tokens} asked, at most {profile.max_tokens} for this model")
    return Forward(call.message, sequence=_sequence(principal, facts))


def _sequence(principal: Principal, facts: InferenceFacts) -> tuple[object, ...] | None:
    """What the requests of one sequence share; None where there is none: 0 and "" mean that (facts §2)."""
    value = facts.parameters.get(_SEQUENCE)
    return (principal.tenant, facts.model, type(value), value) if value else None


def _parameter(name: str, value: ParameterValue, profile: ModelProfile) -> str | None:
    """Why a parameter may not pass; None: it may. Tensors' own are ``inputs/…`` and ``outputs/…``."""
    place, _, bare = name.rpartition("/")
    if bare.startswith(_SHARED_MEMORY):
        return "shared memory is one namespace for all tenants"
    if place:
        known = place.startswith("outputs/") and bare == _OUTPUT_PARAMETER
        return _classification(value, profile) if known else "not a parameter of a tensor"
    if bare == _SEQUENCE and isinstance(value, str):
        return "string sequence ids aren't supported"
    if bare.startswith(_TRITON) and bare != _TRITON_ALLOWED:
        return "not a parameter that Triton has"
    if profile.contract is not Contract.GENERIC and bare in FORBIDDEN_SAMPLING:
        return FORBIDDEN_SAMPLING[bare]
    return FORBIDDEN_PARAMETERS.get(bare)


def _classification(count: ParameterValue, profile: ModelProfile) -> str | None:
    """Why an output may not be asked for as classes. Where it holds strings, Triton 2.51 divides by zero and dies."""
    if not profile.classification or profile.contract is not Contract.GENERIC:
        return "models.yaml doesn't say classification: true of this model"
    if not isinstance(count, int) or not 1 <= count <= _CLASSES_MAX:
        return f"must be 1 to {_CLASSES_MAX}"
    return None


def manage(call: Call, parameters: tuple[str, ...]) -> Forward | Denial:
    """Any other call. ``parameters``: the message's fields that change something; none may be sent.

    With ``config`` or ``file:…`` a load uploads a model, and so code; settings write files and can silence the log.
    """
    if call.method.action is Action.MANAGE and parameters:
        return _refuse(parameters[0], f"{call.method.name} may not carry any")
    return Forward(call.message)

"""Has the backend count tokens where it can: asks for its counts, and knows which of its outputs only we asked for."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from sidecar.core.model import InferenceFacts
from sidecar.triton import suffix
from sidecar.triton.knowledge import Dialect, ModelFacts, TensorSpec
from sidecar.triton.protos import ModelInferRequest

__all__ = ["COUNTS", "Counting", "asked_for"]

COUNTS: Final = (
    ("return_num_input_tokens", "num_input_tokens"),
    ("return_num_output_tokens", "num_output_tokens"),
)  # the input that asks → the output that tells (facts/triton.md §3)
# The core and what stands before it count the prompt with the output where the output holds it; vLLM never does.
_COUNTS_PROMPT: Final = frozenset({Dialect.ENSEMBLE, Dialect.BLS, Dialect.CORE})
_PROMPTS: Final = ("text_input", "input_ids")  # whose first dimension is the batch's


class Counting(Struct, frozen=True):
    """The message to forward, what to append to it, the outputs to take out of its responses, and ``Undo.beams``."""

    message: bytes
    suffix: bytes = b""
    strip: frozenset[str] = frozenset()
    beams: int = 0


def asked_for(message: bytes, facts: InferenceFacts, model: ModelFacts | None) -> Counting:
    """What it takes to have this call's tokens counted; the message as it is where the model can't count."""
    if model is None or model.dialect is Dialect.GENERIC:
        return Counting(message)
    inputs, payloads, outputs = b"", b"", b""
    strip: set[str] = set()
    declined: list[str] = []
    for flag, output in COUNTS:
        spec = model.inputs.get(flag)
        if spec is None or spec.datatype != "BOOL" or output not in model.outputs:
            continue
        asked = facts.flags.get(flag)
        if asked is None:
            shape = _shape(spec, facts, model)
            if shape is None:
                continue
            inputs += suffix.input_flags(flag, shape, typed=not facts.raw)
            payloads += suffix.raw(shape) if facts.raw else b""
        elif not asked:
            declined.append(flag)
        if output not in facts.outputs:
            if facts.outputs:
                outputs += suffix.output(output)
            if facts.outputs or not asked:
                strip.add(output)
    sent = _accepted(message, declined) if declined else message
    return Counting(sent, inputs + payloads + outputs, frozenset(strip), _beams(facts, model))


def _shape(spec: TensorSpec, facts: InferenceFacts, model: ModelFacts) -> tuple[int, ...] | None:
    """The flag's shape, one element a prompt; None where the prompt's own leaves the batch open."""
    if not model.max_batch_size:
        return tuple(1 if dim < 0 else dim for dim in spec.shape)
    prompt = next((each for each in facts.inputs if each.name in _PROMPTS), None)
    if prompt is None or not prompt.shape or prompt.shape[0] > model.max_batch_size:
        return None
    return (prompt.shape[0], *(1 if dim < 0 else dim for dim in spec.shape[1:]))


def _accepted(message: bytes, declined: list[str]) -> bytes:
    """The message with these flags true: a tenant's "don't count" is about its answer, not about its quota."""
    request: Any = ModelInferRequest.FromString(message)
    for index, tensor in enumerate(request.inputs):
        if tensor.name not in declined:
            continue
        if request.raw_input_contents:
            request.raw_input_contents[index] = b"\x01" * len(request.raw_input_contents[index])
        else:
            tensor.contents.bool_contents[:] = [True] * len(tensor.contents.bool_contents)
    serialized: bytes = request.SerializeToString()
    return serialized


def _beams(facts: InferenceFacts, model: ModelFacts) -> int:
    """A streamed response counts what is new in it; a whole one, all that its text holds (TensorRT-LLM PR #5445)."""
    if facts.streaming or model.dialect not in _COUNTS_PROMPT:
        return 0
    excluded = facts.flags.get("exclude_input_in_output")
    holds_prompt = model.prompt_in_output is True if excluded is None else not excluded
    prompt = next((each.shape for each in facts.inputs if each.name in _PROMPTS), ())
    return max(1, facts.sequences // max(1, prompt[0])) if holds_prompt and len(prompt) > 1 else int(holds_prompt)

"""How a model's tensors are to be understood, by contract: prompt, requested tokens, sequences, streaming."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, assert_never

import msgspec

from sidecar.core.model import Contract, MalformedRequest, ModelProfile, ParameterValue
from sidecar.triton.request import EACH_MAX, NAME, REMEMBERED, REMEMBERED_BYTES, Request
from sidecar.triton.strictjson import parse_object
from sidecar.triton.tensors import Tensor, flags, integers, strings

__all__ = ["RESERVED", "SEQUENCES_MAX", "STOP", "Asked", "Sampling", "ask", "estimate_tokens", "sampled"]

STOP: Final = "stop"  # TensorRT-LLM ends every request with this one's id
SEQUENCES_MAX: Final = 1_024  # n, beams and best_of, multiplied, of one prompt
_TEXT_MAX: Final = 1_024  # characters of a nested sampling parameter that the record keeps

# Request parameters that Triton acts on itself: they are not sampling parameters (core kReservedParameterKeys).
RESERVED: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)

# bytes / 4: what English costs with byte-pair vocabularies of 32k and more. Code, digits and other scripts cost more,
# up to a token a byte: an estimate, marked as one. The backend's own count replaces it when the call is settled. An
# exact count needs the model's tokenizer, which the sidecar doesn't have.
_BYTES_PER_TOKEN: Final = 4


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a request asks of a language model; nothing for others. ``sequences`` counts over all prompts."""

    prompts: tuple[bytes, ...] = ()
    prompt_tokens: int = 0
    prompt_tokens_exact: bool = False
    requested_tokens: int = 0
    sequences: int = 1
    streaming: bool = False
    sampling: dict[str, ParameterValue] = {}
    flags: dict[str, bool] = {}
    loras: tuple[str, ...] = ()


def ask(request: Request, profile: ModelProfile) -> Asked:
    """Read a request through its model's contract; raises ``MalformedRequest`` for values that it doesn't allow."""
    match profile.contract:
        case Contract.VLLM:
            return _vllm(request, profile)
        case Contract.TRTLLM:
            return _trtllm(request, profile)
        case Contract.GENERIC:
            return Asked(flags=_flags(request))
        case unreachable:
            assert_never(unreachable)


# Inputs that are true or false and mean something to isolation and to the count of tokens.
_FLAGS: Final = (STOP, "return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output")
_FLAG_NAMES: Final = frozenset(_FLAGS)


def _flags(request: Request) -> dict[str, bool]:
    """Those that the request has. A stop that isn't BOOL at all may be one to a model that reads it so."""
    if _FLAG_NAMES.isdisjoint(request.tensors):  # nearly always
        return {}
    found: dict[str, bool] = {}
    for name in _FLAGS:
        tensor = request.tensors.get(name)
        if tensor is not None and tensor.datatype == "BOOL":
            found[name] = any(flags(tensor))
        elif tensor is not None and name == STOP:
            found[name] = True
    return found


def estimate_tokens(prompt: bytes) -> int:
    """About how many tokens a prompt is, at least 1."""
    return -(-len(prompt) // _BYTES_PER_TOKEN) or 1


def _at_least_one(name: str, value: Any) -> int:
    # ``int(value)`` is what backends do with it: "5000", 5000.9 and true would be read there as numbers, here as none.
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MalformedRequest(f"{name}: must be a positive integer")
    return value


def _multiplied(sequences: int) -> int:
    if sequences > SEQUENCES_MAX:
        raise MalformedRequest(f"sequences: {sequences} for one prompt, at most {SEQUENCES_MAX}")
    return sequences


# --- vLLM: vllm_backend/src/model.py ------------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """vLLM's sampling parameters as judged. ``requested`` None: not stated; 0: null, as many as the model can."""

    requested: int | None
    sequences: int
    recorded: dict[str, ParameterValue]
    loras: tuple[str, ...]


def _vllm(request: Request, profile: ModelProfile) -> Asked:
    text = request.tensors.get("text_input")
    if text is None:
        raise MalformedRequest("input text_input: is missing")
    prompts = strings(text)
    sampling = _vllm_sampling(request)
    requested = sampling.requested
    if requested is None:
        requested = min(profile.default_tokens, profile.max_tokens)
    return Asked(
        prompts=prompts,
        prompt_tokens=sum([estimate_tokens(prompt) for prompt in prompts]),
        requested_tokens=requested or profile.max_tokens,
        sequences=sampling.sequences * max(1, len(prompts)),
        streaming=_any_flag(request, "stream"),
        sampling=sampling.recorded,
        flags=_flags(request),
        loras=sampling.loras,
    )


def _vllm_sampling(request: Request) -> Sampling:
    """The JSON of ``sampling_parameters``; without that tensor the backend takes all request parameters instead."""
    tensor = request.tensors.get("sampling_parameters")
    if tensor is None:
        return _judged({name: value for name, value in request.parameters.items() if _may_sample(name)})
    documents = strings(tensor)
    if len(documents) != 1:
        raise MalformedRequest(f"input sampling_parameters: {len(documents)} strings, must be 1")
    return sampled(documents[0])


def sampled(document: bytes) -> Sampling:
    """The JSON of ``sampling_parameters``, judged; raises ``MalformedRequest``."""
    return _document(document) if len(document) <= REMEMBERED_BYTES else _read_document(document)


def _may_sample(name: str) -> bool:
    """Whether a name is a sampling parameter's, and no request parameter's that Triton acts on."""
    return "/" not in name and name not in RESERVED and not name.startswith("triton_")


def _read_document(document: bytes) -> Sampling:
    sampling = parse_object(document, "sampling_parameters")
    for name in sampling:
        if not _may_sample(name):  # it would stand for the request parameter of that name, which Triton never saw
            raise MalformedRequest(f"sampling_parameters: key {name[:128]!a} is a request parameter's")
    return _judged(sampling)


_document: Final = lru_cache(REMEMBERED)(_read_document)


def _judged(sampling: Mapping[str, Any]) -> Sampling:
    requested = None
    if "max_tokens" in sampling:
        asked = sampling["max_tokens"]
        requested = 0 if asked is None else _at_least_one("max_tokens", asked)
    # Only these two multiply what is generated; null is vLLM's own way to leave them out.
    counts = [_at_least_one(name, sampling[name]) for name in ("n", "best_of") if sampling.get(name) is not None]
    lora = sampling.get("lora_name")
    if lora is not None and not isinstance(lora, str):
        raise MalformedRequest("lora_name: must be a string")
    loras = () if lora is None else (lora,)
    return Sampling(requested, _multiplied(max(counts, default=1)), _recorded(sampling), loras)


def _recorded(sampling: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """Sampling parameters as a record can hold them: numbers and texts as they are, all else as JSON text."""
    if len(sampling) > EACH_MAX:
        raise MalformedRequest(f"sampling_parameters: {len(sampling)} keys, at most {EACH_MAX}")
    found: dict[str, ParameterValue] = {}
    for name, value in sampling.items():
        if NAME.fullmatch(name) is None:
            raise MalformedRequest(f"sampling_parameters: key {name[:128]!a} must match {NAME.pattern}")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise MalformedRequest(f"sampling_parameters: {name} does not fit 64 bits")
        if isinstance(value, str):
            found[name] = _unicode(name, value)
        elif isinstance(value, bool | int | float):
            found[name] = value
        else:
            found[name] = json.dumps(value, separators=(",", ":"))[:_TEXT_MAX]  # ASCII
    return found


def _unicode(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # "\ud800" in JSON: half a character
        raise MalformedRequest(f"sampling_parameters: {name} is not Unicode text") from None
    return value


# --- TensorRT-LLM: triton_backend/all_models ------------------------------------------------------------------------

_TRTLLM_PROMPTS: Final = ("text_input", "decoder_text_input")  # ensemble, bls, llmapi
_TRTLLM_REQUESTED: Final = ("max_tokens", "request_output_len", "sampling_param_max_tokens")  # ensemble, core, llmapi
# Beams and returned sequences are multiplied: releases differ in whether the second is taken out of the first.
_TRTLLM_SEQUENCES: Final = ("beam_width", "num_return_sequences", "sampling_param_best_of")
_TRTLLM_STREAMING: Final = ("stream", "streaming")
_TRTLLM_LORAS: Final = ("lora_task_id", "lora_id", "lora_name")  # ensemble, bls and core; llmapi


def _trtllm(request: Request, profile: ModelProfile) -> Asked:
    prompts = tuple(text for name in _TRTLLM_PROMPTS for text in _strings(request.tensors.get(name)))
    batch = max(len(_strings(request.tensors.get("text_input"))), 1)
    tokens, exact = sum(map(estimate_tokens, prompts)), False
    ids = request.tensors.get("input_ids")
    if ids is not None:
        # Rows of a batch are padded to the longest, so only a single one's length is its count.
        batch = ids.shape[0] if len(ids.shape) > 1 and ids.shape[0] > 0 else 1
        tokens, exact = ids.elements, batch == 1 and not prompts
    asked = [value for name in _TRTLLM_REQUESTED for value in _positive(request, name)]
    each = 1
    for name in _TRTLLM_SEQUENCES:
        each *= max(_positive(request, name), default=1)
    return Asked(
        prompts=prompts,
        prompt_tokens=tokens,
        prompt_tokens_exact=exact,
        requested_tokens=max(asked, default=min(profile.default_tokens, profile.max_tokens)),
        sequences=_multiplied(each) * batch,
        streaming=any(_any_flag(request, name) for name in _TRTLLM_STREAMING),
        flags=_flags(request),
        loras=tuple(name for tensor in _TRTLLM_LORAS for name in _names(request.tensors.get(tensor))),
    )


def _names(tensor: Tensor | None) -> tuple[str, ...]:
    """Adapters, by name or by number; what isn't UTF-8 is nobody's name."""
    if tensor is None:
        return ()
    if tensor.datatype == "BYTES":
        return tuple(text.decode(errors="replace") for text in strings(tensor))
    return tuple(map(str, integers(tensor)))


def _strings(tensor: Tensor | None) -> tuple[bytes, ...]:
    return () if tensor is None else strings(tensor)


def _positive(request: Request, name: str) -> tuple[int, ...]:
    tensor = request.tensors.get(name)
    return () if tensor is None else tuple(_at_least_one(name, value) for value in integers(tensor))


def _any_flag(request: Request, name: str) -> bool:
    tensor = request.tensors.get(name)
    return tensor is not None and any(flags(tensor))

"""Which of Triton's error texts a caller may read: by template, and with values that are its own or public."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from sidecar.core.model import Admission
from sidecar.triton.knowledge import ModelFacts
from sidecar.triton.tensors import DATATYPES

__all__ = ["TEMPLATES", "Said", "bare", "said_by", "tell"]

LONGEST: Final = 4096  # characters of a text that is looked at: Triton's own have a few hundred
HIDDEN: Final = "…"  # instead of a value that is neither the caller's nor public
_NO_ID: Final = "<id_unknown>"  # Triton's word for a request without an id

_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_MISSING: Final = "Got input(s) {names}, but missing required input(s) {names}. Please provide all required input(s)."

# Triton's own words (core/src and server/src, 2.51 to 26.08), and those of the engines' backends. A model's own words
# are in none of them, because one exception is every request's answer of a batch, and may quote them all. What stands
# for a value is {name} a model or tensor, {names} a list of them, {type}, {shape}, {number}, and {sequence}.
TEMPLATES: Final = (
    # core/src/infer_request.cc, model.cc
    "unexpected inference input '{name}' for model '{name}'",
    "unexpected inference output '{name}' for model '{name}'",
    "input '{name}' has no shape but model requires batch dimension for '{name}'",
    "input '{name}' batch size does not match other inputs for '{name}'",
    "input '{name}' already exists in request",
    "output '{name}' already exists in request",
    "inference request batch-size must be <= {number} for '{name}'",
    "inference input '{name}' data-type is '{type}', but model '{name}' expects '{type}'",
    "All input dimensions should be specified for input '{name}' for model '{name}', got {shape}",
    "unexpected shape for input '{name}' for model '{name}'. Expected {shape}, got {shape}. ",
    "unexpected shape for input '{name}' for model '{name}'. Expected {shape}, got {shape}. " + _NOTE,
    "input byte size mismatch for input '{name}' for model '{name}'. Expected {number}, got {number}",
    "expected {number} inputs but got {number} inputs for model '{name}'. " + _MISSING,
    "expected number of inputs between {number} and {number} but got {number} inputs for model '{name}'. " + _MISSING,
    (
        "incomplete string length indicator for inference input '{name}' for model '{name}', expecting "
        "{number} bytes but only {number} bytes available. Please make sure the string length indicator is in "
        "one buffer."
    ),
    (
        "incomplete string data for inference input '{name}' for model '{name}', expecting string of length "
        "{number} but only {number} bytes available"
    ),
    (
        "incomplete string data for inference input '{name}', expecting string of length {number} but only "
        "{number} bytes available"
    ),
    "unexpected number of string elements {number} for inference input '{name}' for model '{name}', expecting {number}",
    "expected {number} string elements for inference input '{name}' for model '{name}', got {number}",
    "sequence batching control '{name}' data-type is '{type}', but model '{name}' expects '{type}'",
    # core/src/sequence_batch_scheduler.cc
    "inference request to model '{name}' must specify a non-zero or non-empty correlation ID",
    "inference request to model '{name}' must specify batch-size 1 due to requirements of sequence batcher",
    (
        "inference request for sequence {sequence} to model '{name}' must specify the START flag on the first "
        "request of the sequence"
    ),
    "timeout of the corresponding sequence has been expired",
    # server/src/grpc, classification.cc
    "ModelInfer RPC doesn't support models with decoupled transaction policy",
    "unable to find data for input tensor '{name}' for model '{name}' in request.",
    (
        "unexpected explicit tensor data for input tensor '{name}' for model '{name}' of type '{type}', "
        "expected datatype '{type}'"
    ),
    "unexpected explicit tensor data for input tensor '{name}' for model '{name}', binary data was already supplied.",
    "contents field must not be specified when using raw_input_contents for '{name}' for model '{name}'",
    "invalid value type for '{name}' parameter, expected int64_param or string_param.",
    "invalid value type for '{name}' parameter, expected int64_param or uint64_param.",
    "invalid value type for '{name}' parameter, expected int64_param.",
    "invalid value type for '{name}' parameter, expected bool_param.",
    "Response has byte size {number} which exceeds gRPC's byte size limit {number}.",
    "class result not available for output due to unsupported type '{type}'",
    "classification output tensor too large",
    "expected a single response, got {number}",
    "'repository_name' specification is not supported",
    "Request was cancelled",
    "Cancelled",
    # python_backend: its process died; the model's own words follow "Failed to process the request(s)", never told.
    "Stub process '{name}' is not healthy.",
    "Stub process is not healthy.",
    # vllm_backend, src/model.py; TensorRT-LLM. Without the adapters that others have, and without what it was given.
    "LoRA {name} is not supported, we currently support {names}",
    "Streaming is only supported in decoupled mode.",
    (
        "Error generating stream: The decoder prompt (length {number}) is longer than the maximum model "
        "length of {number}. Make sure that `max_model_len` is no smaller than the number of text tokens."
    ),
)

_HOLES: Final = {
    "name": r"([^'\n]{0,256}?)",
    # The second: Triton's own slip, where no input is missing but one is too many.
    "names": r"(\[[^\]\n]{0,2048}\]|\])",
    "type": r"([A-Z0-9_a-z<>]{1,32})",
    "shape": r"(\[[-0-9,]{0,512}\])",
    "number": r"(-?[0-9]{1,20})",
    "sequence": r"([^\n]{1,256}?)",
}
_HOLE: Final = re.compile(r"\{([a-z]+)\}")
_EACH: Final = re.compile(r"'([^']*)'")
# What Triton puts before its own words: the ensembles the request was a step of, and the request's id.
_BEFORE: Final = re.compile(r"((?:in ensemble '[^'\n]{0,256}', ){0,8})(\[request id: [^\]\n]{0,256}\] )?")
_ENSEMBLE: Final = re.compile(r"in ensemble '([^']*)', ")
_TYPES: Final = frozenset(DATATYPES) | {"STRING", "TYPE_STRING"} | {f"TYPE_{name}" for name in DATATYPES}


@dataclass(frozen=True, slots=True)
class _Template:
    pattern: re.Pattern[str]
    parts: tuple[str, ...]  # the words between the values: one more than there are values
    kinds: tuple[str, ...]


def _compiled(template: str) -> _Template:
    pieces = _HOLE.split(template)
    words, kinds = tuple(pieces[::2]), tuple(pieces[1::2])
    pattern = re.escape(words[0])
    for kind, after in zip(kinds, words[1:], strict=True):
        pattern += _HOLES[kind] + re.escape(after)
    return _Template(re.compile(pattern), words, kinds)


_COMPILED: Final = tuple(_compiled(template) for template in TEMPLATES)


@dataclass(frozen=True, slots=True)
class Said:
    """What one caller may read again in an error: what its own request said, and what its model makes public.

    ``names`` are of tensors and parameters; ``shapes`` as Triton writes them, ``[-1,3]``.
    """

    call: str
    model: str = ""  # as Triton knows it
    alias: str = ""  # what the caller calls it, where that is another name
    request_id: str = ""
    sequence: str = ""
    names: frozenset[str] = frozenset()
    shapes: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()


def said_by(admission: Admission, public: ModelFacts | None = None) -> Said:
    """Of one call's own request, and of its model what whoever may use it can ask for."""
    facts = admission.facts
    names, shapes = {*facts.outputs}, {_shape(tensor.shape) for tensor in facts.inputs}
    numbers = {len(facts.inputs), len(facts.outputs), facts.requested_tokens, admission.verdict.profile.max_tokens}
    if facts.prompt_tokens_exact:
        numbers.add(facts.prompt_tokens)
    for name in facts.parameters:
        names.add(name.rpartition("/")[2])
    for tensor in facts.inputs:
        names.add(tensor.name)
        elements = prod(tensor.shape)
        numbers |= {tensor.nbytes, elements, elements * DATATYPES.get(tensor.datatype, 0), *tensor.shape}
    if public is not None:
        numbers |= {public.max_batch_size, len(public.inputs)}
        for spec in (*public.inputs.values(), *public.outputs.values()):
            names.add(spec.name)
            shapes.add(_shape(spec.shape))
    return Said(
        call=admission.call.id,
        model=admission.verdict.profile.name,
        alias=admission.verdict.alias,
        request_id=facts.request_id,
        sequence=str(facts.parameters.get("sequence_id", "")),
        names=frozenset(names),
        shapes=frozenset(shapes),
        numbers=frozenset(numbers),
    )


def _shape(dims: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, dims))}]"


def bare(text: str) -> str:
    """Triton's words without what it puts before them."""
    found = _BEFORE.match(text)
    return text if found is None else text[found.end() :]


def tell(text: str, said: Said) -> str | None:
    """``text`` as its caller may read it, values that are nobody's business hidden; None where no template fits."""
    if len(text) > LONGEST:
        return None
    before = _BEFORE.match(text)
    assert before is not None  # it matches the empty text too
    own = text[before.end() :]
    for template in _COMPILED:
        found = template.pattern.fullmatch(own)
        if found is not None:
            return _prefix(before, said) + "".join(_filled(template, found, said))
    return None


def _prefix(before: re.Match[str], said: Said) -> str:
    ensembles = _ENSEMBLE.sub(lambda each: f"in ensemble '{_name(each[1], said)}', ", before[1])
    return ensembles + (f"[request id: {said.request_id or _NO_ID}] " if before[2] else "")


def _filled(template: _Template, found: re.Match[str], said: Said) -> Iterator[str]:
    yield template.parts[0]
    for kind, value, words in zip(template.kinds, found.groups(), template.parts[1:], strict=True):
        yield _value(kind, value, said)
        yield words


def _value(kind: str, value: str, said: Said) -> str:
    match kind:
        case "name":
            return _name(value, said)
        case "names":
            return _EACH.sub(lambda each: f"'{_name(each[1], said)}'", value) if _listed(value) else HIDDEN
        case "type":
            return value if value in _TYPES else HIDDEN
        case "shape":
            return value if value in said.shapes else HIDDEN
        case "number":
            return value if int(value) in said.numbers else HIDDEN
        case _:
            return said.sequence or HIDDEN  # Triton was told another than the client said


def _name(value: str, said: Said) -> str:
    if value == said.model:
        return said.alias or value
    return value if value in said.names else HIDDEN


def _listed(value: str) -> bool:
    """Whether there is nothing in a list but quoted names."""
    return not _EACH.sub("", value).strip("[], ")

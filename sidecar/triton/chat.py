"""The ordinary chat with vLLM's tensors, from its layout straight to its facts: a prompt, its sampling parameters."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.core.model import InferenceFacts, MalformedRequest, ModelProfile, ParameterValue, TensorFacts
from sidecar.triton.contracts import estimate_tokens, sampled
from sidecar.triton.layout import Layout
from sidecar.triton.request import REMEMBERED, REMEMBERED_BYTES, check_id, read_form

__all__ = ["plan", "read_chat"]

_STRING: Final = struct.Struct("<I")
_TENSORS: Final = frozenset({"text_input", "sampling_parameters"})


class _Plan(NamedTuple):
    """What a header says where it is a chat's; its tensors in their order."""

    model: str
    version: str
    outputs: tuple[str, ...]
    parameters: dict[str, ParameterValue]
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, datatype, shape
    prompt_first: bool


@lru_cache(REMEMBERED)
def plan(header: bytes) -> _Plan | None:
    """None: it isn't one string of each. Raises ``MalformedRequest``, which isn't remembered."""
    form = read_form(header)
    inputs = form.inputs
    if len(inputs) != len(_TENSORS) or {each.name for each in inputs} != _TENSORS:
        return None
    if any(each.datatype != "BYTES" or each.elements != 1 or each.contents is not None for each in inputs):
        return None
    tensors = tuple((each.name, each.datatype, each.shape) for each in inputs)
    return _Plan(form.model, form.version, form.outputs, form.parameters, tensors, inputs[0].name == "text_input")


def read_chat(data: bytes, found: Layout, profile: ModelProfile) -> InferenceFacts | None:
    """The facts as ``contracts.ask`` finds them in a request of vLLM's, at half the cost.

    None: it is another request than that, or something is wrong with it; then it has to be read tensor by tensor.
    """
    if len(found.raws) != len(_TENSORS) or found.raws_at > REMEMBERED_BYTES:
        return None
    try:
        request_id = data[found.id_start : found.id_end].decode()
        check_id(request_id)
        said = plan(found.header(data))
        if said is None:
            return None
        (begin, stop), (again, end) = found.raws
        one, two = data[begin + 4 : stop], data[again + 4 : end]
        said_one, said_two = _STRING.unpack_from(data, begin)[0], _STRING.unpack_from(data, again)[0]
        if said_one != stop - begin - 4 or said_two != end - again - 4:
            return None  # not the one string that its shape says
        prompt, document = (one, two) if said.prompt_first else (two, one)
        sampling = sampled(document)
    except (MalformedRequest, UnicodeDecodeError, struct.error):
        return None
    first, second = TensorFacts(*said.tensors[0], stop - begin), TensorFacts(*said.tensors[1], end - again)
    requested = sampling.requested
    if requested is None:
        requested = min(profile.default_tokens, profile.max_tokens)
    return InferenceFacts(
        request_id,
        said.model,
        said.version,
        (first, second),
        said.outputs,
        {**said.parameters, **sampling.recorded} if said.parameters else sampling.recorded,
        (prompt,),
        estimate_tokens(prompt),
        requested_tokens=requested or profile.max_tokens,
        sequences=sampling.sequences,
        tensor_bytes=first.nbytes + second.nbytes,
        loras=sampling.loras,
    )

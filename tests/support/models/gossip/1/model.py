"""Fails as it is asked to, and says in its error what the whole batch said."""

import numpy as np
import triton_python_backend_utils as pb_utils

# The beginning of a request's text → what the error of that request (or, of "raise", of all) says.
WORDS = {
    "quote": "cannot read {}",
    "pretend": "unexpected inference input '{}' for model '{}'",
    "numbers": "input byte size mismatch for input 'text' for model 'gossip'. Expected {}, got {}",
    "queue": "Exceeds maximum queue size, said {}",
}


class TritonPythonModel:
    def execute(self, requests):
        said = [text(request) for request in requests]
        if any(each.startswith("raise") for each in said):
            raise ValueError(f"cannot read {said}")
        return [answer(each, " | ".join(said)) for each in said]


def text(request):
    return pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)[0].decode()


def answer(said, batch):
    words = WORDS.get(said.split()[0])
    if words is None:
        tensor = pb_utils.Tensor("text", np.array([[said.encode()]], dtype=np.object_))
        return pb_utils.InferenceResponse(output_tensors=[tensor])
    if words.startswith("input byte"):
        batch = "".join(character for character in batch if character.isdigit())
    code = pb_utils.TritonError.UNAVAILABLE if said.startswith("queue") else pb_utils.TritonError.INVALID_ARG
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(words.format(batch, batch), code))

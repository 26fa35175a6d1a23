"""TensorRT-LLM's contract over the `chat` model, which is called inside the server.

A request that is cancelled is still generated to its end, of at most MAX_TOKENS: Triton 2.51's Python backend can't
cancel a request that a model has made.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

MODEL = "chat"
MAX_TOKENS = 512
FLAGS = ("exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens")
SAMPLING = ("max_tokens", "temperature", "top_p", "seed")


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    max_tokens = int(given["max_tokens"][0])
    if not 1 <= max_tokens <= MAX_TOKENS:
        return failed(f"max_tokens must be from 1 to {MAX_TOKENS}, got {max_tokens}", pb_utils.TritonError.INVALID_ARG)
    sampling = {name: given[name][0].item() for name in SAMPLING if name in given}
    if "stop_words" in given:
        sampling["stop"] = [word.decode("utf-8") for word in given["stop_words"]]
    call = pb_utils.InferenceRequest(
        model_name=MODEL,
        request_id=request.request_id(),
        requested_output_names=["text_output", "num_input_tokens", "num_output_tokens"],
        inputs=[
            pb_utils.Tensor("text_input", given["text_input"]),
            pb_utils.Tensor("sampling_parameters", np.array([json.dumps(sampling).encode()], dtype=np.object_)),
            *(pb_utils.Tensor(name, np.array([True])) for name in FLAGS),
        ],
        trace=request.trace(),  # its spans belong under ours
    )
    return last(call.exec(decoupled=True), given)


def last(responses, given):
    """The answer from the one response that `chat` gives when it isn't asked to stream."""
    outputs = {}
    for response in responses:  # all of them: the last one is empty and ends the request
        if response.has_error():
            return failed(response.error().message(), response.error().code())
        outputs |= {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
    wanted = [count for count in ("num_input_tokens", "num_output_tokens") if given.get(f"return_{count}", [False])[0]]
    tensors = [pb_utils.Tensor("text_output", outputs["text_output"])]
    tensors += [pb_utils.Tensor(count, outputs[count].astype(np.int32)) for count in wanted]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def failed(message, code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))

"""What all contract models do: answer max_tokens tokens, word0 word1 …, whole or one by one, in their own tensors."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

REQUESTED = ("max_tokens", "request_output_len", "sampling_param_max_tokens")
STREAMING = ("stream", "streaming")
TYPES = {"TYPE_STRING": np.object_, "TYPE_INT32": np.int32, "TYPE_UINT32": np.uint32, "TYPE_FP32": np.float32}
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.outputs = {each["name"]: TYPES.get(each["data_type"]) for each in config["output"]}
        self.inputs = {each["name"] for each in config["input"]}
        self.batched = config["max_batch_size"] > 0

    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        wanted = set(request.requested_output_names())
        sender = request.get_response_sender()
        prompt, tokens = prompt_of(given), requested(given)
        sequences = int(first(given.get("num_return_sequences", np.array([1]))))
        if first(given.get("return_perf_metrics", np.array([False]))):
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("perf metrics were asked for")), FINAL)
            return
        pieces = range(tokens) if streams(given) else [slice(0, tokens)]
        for piece in pieces:
            said = [piece] if isinstance(piece, int) else list(range(tokens))
            values = self.values(given, prompt, said, sequences, whole=not streams(given))
            sender.send(self.response(values, wanted))
        sender.send(flags=FINAL)

    def values(self, given, prompt, said, sequences, *, whole):
        """By output, before they are pruned to what was asked for."""
        words = "".join(f"word{n} " for n in said)
        # TensorRT-LLM repeats the prompt, and counts it for each beam, where it is told not to leave it out.
        echoes = whole and not excluded(given) and (self.kind() == "vllm" or "exclude_input_in_output" in given)
        text = prompt + words if echoes else words
        values = {"text_output": [text.encode()] * sequences, "finish_reason": [b"length"] * sequences}
        values["output_ids"] = [[[100 + n for n in said]]]
        values["sequence_length"] = [[len(said)]]
        if first(given.get("return_num_input_tokens", np.array([False]))):
            values["num_input_tokens"] = [count(given, prompt)]
        if first(given.get("return_num_output_tokens", np.array([False]))):
            each = len(said) + (count(given, prompt) if echoes and self.kind() != "vllm" else 0)
            values["num_output_tokens"] = [each] * sequences if self.kind() == "vllm" else [each * sequences]
        return values

    def kind(self):
        return "vllm" if "sampling_parameters" in self.inputs else "trtllm"

    def response(self, values, wanted):
        tensors = []
        for name, value in values.items():
            if name in self.outputs and (not wanted or name in wanted):
                array = np.array(value, dtype=self.outputs[name])
                if self.batched and array.ndim == 1:
                    array = array[None]
                tensors.append(pb_utils.Tensor(name, array))
        return pb_utils.InferenceResponse(output_tensors=tensors)


def first(array):
    return array.reshape(-1)[0]


def prompt_of(given):
    text = given.get("text_input")
    return "" if text is None else first(text).decode()


def count(given, prompt):
    ids = given.get("input_ids")
    return len(prompt.split()) if ids is None else ids.size


def requested(given):
    for name in REQUESTED:
        if name in given:
            return int(first(given[name]))
    return (
        int(json.loads(first(given["sampling_parameters"])).get("max_tokens", 16))
        if "sampling_parameters" in given
        else 16
    )


def streams(given):
    return any(bool(first(given[name])) for name in STREAMING if name in given)


def excluded(given):
    return bool(first(given.get("exclude_input_in_output", np.array([False]))))

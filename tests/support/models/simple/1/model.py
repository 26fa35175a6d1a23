"""Adds and subtracts; a batch of any size takes batch_ms."""

import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.batch_s = int(json.loads(args["model_config"])["parameters"]["batch_ms"]["string_value"]) / 1000

    def execute(self, requests):
        time.sleep(self.batch_s)
        return [answer(request) for request in requests]


def answer(request):
    a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
    outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
    return pb_utils.InferenceResponse(output_tensors=outputs)

"""Adds up the numbers of each sequence, by whatever its CORRID is: only START begins a total anew."""

import numpy as np
import triton_python_backend_utils as pb_utils


def first(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def initialize(self, _args):
        self.totals = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        if not first(request, "READY"):
            return pb_utils.InferenceResponse(output_tensors=[])
        sequence = first(request, "CORRID")
        before = 0 if first(request, "START") else self.totals.get(sequence, 0)
        self.totals[sequence] = total = before + int(first(request, "number"))
        output = pb_utils.Tensor("total", np.array([[total]], dtype=np.int32))
        return pb_utils.InferenceResponse(output_tensors=[output])

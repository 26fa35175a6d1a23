"""Adds up the numbers of each sequence; the sequence is what Triton's correlation id names."""

import numpy as np
import triton_python_backend_utils as pb_utils


def scalar(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])


class TritonPythonModel:
    def initialize(self, _args):
        self.totals = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        if not scalar(request, "READY"):  # a place in the batch that no sequence holds
            return pb_utils.InferenceResponse(output_tensors=[])
        sequence = scalar(request, "CORRID")
        if scalar(request, "START"):
            self.totals[sequence] = np.int32(0)
        total = np.int32(self.totals.get(sequence, 0) + scalar(request, "number"))
        if scalar(request, "END"):
            self.totals.pop(sequence, None)
        else:
            self.totals[sequence] = total
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor("total", np.array([[total]], dtype=np.int32))]
        )

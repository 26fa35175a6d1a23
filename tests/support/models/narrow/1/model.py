"""Holds each request for the time it asks for."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [hold(request) for request in requests]


def hold(request):
    ms = pb_utils.get_input_tensor_by_name(request, "ms").as_numpy()
    time.sleep(int(ms.reshape(-1)[0]) / 1000)
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("held_ms", ms.astype(np.int32))])
